"""Drift of live tickets from the bundle's reference, and accuracy and calibration by feedback.

Drift is the population stability index between the reference shares e and the live shares a of the same
bins: the sum over bins of (a - e) ln(a / e), over the newest tickets that the served bundle version decided.
Below 0.1 there is no drift; above 0.25 the tickets differ from those that the bundle was trained on.

All figures come from the shared database. Each worker computes the same ones, so it does not matter which
worker set a gauge last.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from fastapi import FastAPI

from models.reference import shares
from service.feedback.rows import StoreUnavailable

if TYPE_CHECKING:
    from prometheus_client import Gauge

    from models.bundle import BundleConfig
    from service.feedback.store import Store
    from service.inference.runtime import Runtime
    from service.inference.service import Service

log = logging.getLogger("larkfield.drift")

FEATURES = ("team", "confidence", "unknown_ratio", "length")
SMALLEST_SHARE = 1e-4  # used for empty bins, whose logarithm would be infinite
CALIBRATION_BINS = 10
PRUNE_EVERY_SECONDS = 600.0
MOST_UNKNOWN_TEAMS = 20  # unknown teams with their own gauge


def population_stability_index(expected: Sequence[float], actual: Sequence[float]) -> float:
    """PSI of two lists of shares over the same bins; symmetric, 0 for equal lists, always finite."""
    if len(expected) != len(actual):
        raise ValueError(f"shares over {len(expected)} and {len(actual)} bins cannot be compared")
    e, a = (np.maximum(np.asarray(each, dtype=float), SMALLEST_SHARE) for each in (expected, actual))
    e, a = e / e.sum(), a / a.sum()
    return float(((a - e) * np.log(a / e)).sum())


def drift(reference: Mapping[str, Any], rows: Sequence[Any]) -> dict[str, float]:
    """PSI by feature; rows have predicted, confidence, tokens, unknown. {} without reference or rows."""
    if not reference or not rows:
        return {}
    teams = Counter(row.predicted for row in rows)
    names = sorted({*reference["team"], *teams})
    values = {
        "confidence": [row.confidence for row in rows],
        "unknown_ratio": [row.unknown / max(1, row.tokens) for row in rows],
        "length": [row.tokens for row in rows],
    }
    found = {
        "team": population_stability_index(
            [reference["team"].get(name, 0.0) for name in names], [teams[name] / len(rows) for name in names]
        )
    }
    for feature, live in values.items():
        bins = reference[feature]
        found[feature] = population_stability_index(bins["shares"], shares(live, bins["edges"]))
    return found


class Quality(NamedTuple):
    """Accuracy and calibration by feedback: shares between 0 and 1, NaN if there are no tickets."""

    accuracy: float
    routed_accuracy: float
    review_accuracy: float
    calibration_error: float
    overconfidence: float


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def quality(rows: Sequence[Any]) -> Quality:
    """Accuracy and calibration of `rows` with predicted, actual, confidence, decision.

    calibration_error: expected calibration error over ten equal bins of confidence (Naeini et al., 2015);
    overconfidence: mean confidence minus accuracy.
    """
    right = [float(row.predicted == row.actual) for row in rows]
    confidence = [row.confidence for row in rows]
    bins = [min(int(value * CALIBRATION_BINS), CALIBRATION_BINS - 1) for value in confidence]
    gaps = np.bincount(bins, np.subtract(confidence, right)) if rows else np.array([math.nan])
    return Quality(
        accuracy=mean(right),
        routed_accuracy=mean([r for r, row in zip(right, rows, strict=True) if row.decision == "route"]),
        review_accuracy=mean([r for r, row in zip(right, rows, strict=True) if row.decision == "review"]),
        calibration_error=float(np.abs(gaps).sum()) / max(1, len(rows)),
        overconfidence=mean(confidence) - mean(right),
    )


class Measured(NamedTuple):
    """Figures over the newest tickets; `drift` is empty and `quality` NaN if there are too few."""

    drift: dict[str, float]
    drift_tickets: int
    quality: Quality
    feedback_tickets: int
    unknown_teams: dict[str, int]


def unknown_teams(rows: Sequence[Any], teams: Collection[str]) -> dict[str, int]:
    """Tickets by the team that solved them, of the commonest teams that the bundle does not know."""
    names = (row.actual for row in rows if row.actual not in teams and not row.actual.startswith("#"))
    return dict(Counter(names).most_common(MOST_UNKNOWN_TEAMS))


def measure(store: Store, config: BundleConfig, window: int, least: int) -> Measured:
    """Drift and quality over the newest `window` tickets of a bundle, if there are `least`."""
    version, reference = config.version, config.reference
    rows = store.recent_decisions(version, window)
    answers = store.recent_feedback(version, window)
    return Measured(
        drift(reference, rows) if len(rows) >= least else {},
        len(rows),
        quality(answers if len(answers) >= least else []),
        len(answers),
        unknown_teams(answers, config.teams),
    )


def install(app: FastAPI, service: Service) -> None:
    """Measure the served bundle every few seconds, if there is a feedback database."""
    store: Callable[[], Store] | None = app.state.store
    if store is None:
        return
    monitor = DriftMonitor(service, store)
    service.on_start.append(monitor.start)
    service.on_swap.append(monitor.show_precision)
    service.on_stop.append(monitor.stop)


class DriftMonitor:
    """A thread that measures every few seconds and deletes old rows from the database."""

    def __init__(self, service: Service, store: Callable[[], Store]) -> None:
        self.service = service
        self.store = store
        self._define(partial(service.metrics.gauge, across="livemostrecent"))
        self._unknown_shown: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="drift", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def show_precision(self, runtime: Runtime) -> None:
        """Set the gauge of the precision chosen for routed tickets."""
        self.precision.set(runtime.config.thresholds.precision)

    def measure(self) -> None:
        """Measure once and set the gauges; StoreUnavailable if the database cannot be read."""
        runtime = self.service.runtime
        if runtime is None:
            return
        settings = self.service.settings
        store = self.store()
        store.match_late()
        found = measure(
            store,
            runtime.config,
            settings.drift_window,
            settings.drift_least,
        )
        for feature in FEATURES:
            self.psi.labels(feature).set(found.drift.get(feature, math.nan))
        self.drift_tickets.set(found.drift_tickets)
        self.feedback_tickets.set(found.feedback_tickets)
        quality = found.quality
        self.accuracy.labels("all").set(quality.accuracy)
        self.accuracy.labels("route").set(quality.routed_accuracy)
        self.accuracy.labels("review").set(quality.review_accuracy)
        self.calibration.set(quality.calibration_error)
        self.overconfidence.set(quality.overconfidence)
        for team in {*self._unknown_shown, *found.unknown_teams}:
            self.unknown_team.labels(team).set(found.unknown_teams.get(team, 0))
        self._unknown_shown |= found.unknown_teams.keys()
        self.measured_at.set(time.time())

    def _define(self, gauge: Callable[..., Gauge]) -> None:
        self.psi = gauge(
            "drift_psi", "Population stability index against the bundle's validation tickets.", "feature"
        )
        self.drift_tickets = gauge("drift_tickets", "Decisions in the window that drift is measured over.")
        self.feedback_tickets = gauge("feedback_tickets", "Feedback in the window of `feedback_accuracy`.")
        self.accuracy = gauge("feedback_accuracy", "Share of right predictions, by feedback.", "decision")
        self.calibration = gauge("calibration_error", "Expected calibration error, by feedback.")
        self.overconfidence = gauge("overconfidence", "Mean confidence minus accuracy, by feedback.")
        self.precision = gauge("bundle_precision", "Precision chosen for routed tickets.")
        self.unknown_team = gauge(
            "feedback_unknown_team", "Feedback in the window that names a team unknown to the bundle.", "team"
        )
        self.measured_at = gauge("drift_measured_timestamp_seconds", "When drift was measured last.")

    def _run(self) -> None:
        settings = self.service.settings
        pruned_at = -math.inf
        failing = False
        while not self._stop.wait(settings.drift_seconds):
            try:
                self.measure()
                if time.monotonic() - pruned_at > PRUNE_EVERY_SECONDS:
                    self.store().prune(
                        keep_days=settings.feedback_retention_days,
                        text_days=settings.feedback_text_days,
                        most_decisions=settings.feedback_most_decisions,
                    )
                    pruned_at = time.monotonic()
                failing = False
            except StoreUnavailable as error:
                if not failing:
                    log.error("drift cannot be measured: %s; routing goes on", error)
                failing = True
            except Exception:  # the thread must go on, or the gauges would become stale
                log.exception("drift cannot be measured")
