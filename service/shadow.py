"""A second bundle on live tickets: what would it have said? It answers nobody and delays nobody.

A ticket is compared after its answer is ready, in a thread of its own, and only while no ticket waits for the
engine; what does not fit into a short queue is skipped and counted. Set LARKFIELD_SHADOW_BUNDLE to use it.
"""

from __future__ import annotations

import logging
import random
import threading
from queue import Empty, Full, Queue
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from models.bundle import BundleError
from models.decision import decide
from service.runtime import Runtime, pad

if TYPE_CHECKING:
    from service.app import Application
    from service.core import Answer, Service

log = logging.getLogger("larkfield.shadow")

MOST_WAITING = 64
_SECONDS = [0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25]


class Compared(NamedTuple):
    """A ticket's cleaned text and what the served bundle said."""

    text: str
    team: str
    decision: str


def install(app: Application, service: Service) -> None:
    """Compare live tickets where LARKFIELD_SHADOW_BUNDLE names a bundle."""
    if service.settings.shadow_bundle is None:
        return
    shadow = Shadow(service)
    service.observers.append(shadow.observe)
    service.on_start.append(shadow.start)
    service.on_stop.append(shadow.stop)


class Shadow:
    """The second bundle and its thread."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.runtime: Runtime | None = None
        self.sample = service.settings.shadow_sample
        self.waiting: Queue[Compared] = Queue(MOST_WAITING)
        metrics = service.metrics
        self.tickets = metrics.counter(
            "shadow_tickets", "Tickets compared with the shadow bundle.", "outcome"
        )
        self.changes = metrics.counter(
            "shadow_changes", "Tickets that the shadow sends elsewhere.", "team", "shadow_team"
        )
        self.skipped = metrics.counter("shadow_skipped", "Tickets not compared.", "reason")
        self.seconds = metrics.histogram("shadow_seconds", "Time to compare one ticket.", _SECONDS)
        self.info = metrics.gauge("shadow_bundle_info", "1 for the shadow bundle.", "name", "version")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shadow", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def observe(self, answer: Answer) -> None:
        """Put a ticket in line, or skip it; never waits."""
        if self.runtime is None or (self.sample < 1 and random.random() >= self.sample):
            return
        try:
            self.waiting.put_nowait(
                Compared(answer.joined.text, answer.decision.team, answer.decision.decision)
            )
        except Full:
            self.skipped.labels("full").inc()

    def compare(self, ticket: Compared) -> None:
        """Decide on one ticket with the shadow bundle and count how that compares."""
        runtime = self.runtime
        if runtime is None:
            return
        began = perf_counter()
        encoding = runtime.tokenizer.encode(ticket.text)
        decision = decide(runtime.run(pad([encoding.ids]))[0], encoding, runtime.config)
        if decision.team != ticket.team:
            outcome = "other_team"
            self.changes.labels(ticket.team, decision.team).inc()
        else:
            outcome = "same" if decision.decision == ticket.decision else "other_decision"
        self.tickets.labels(outcome).inc()
        self.seconds.observe(perf_counter() - began)

    def _run(self) -> None:
        if not self._load():
            return
        while not self._stop.is_set():
            try:
                ticket = self.waiting.get(timeout=0.25)
            except Empty:
                continue
            if self.service.engine.depth:
                self.skipped.labels("busy").inc()
                continue
            try:
                self.compare(ticket)
            except Exception:
                self.skipped.labels("error").inc()
                log.exception("a ticket could not be compared")

    def _load(self) -> bool:
        """Open the second bundle; one that cannot be served is told and left out."""
        folder = self.service.settings.shadow_bundle
        assert folder is not None
        try:
            self.runtime = Runtime.load(folder, self.service.settings)
        except (BundleError, OSError) as error:
            log.error("the shadow bundle is left out", extra={"reason": str(error)})
            return False
        for outcome in ("same", "other_decision", "other_team"):
            self.tickets.labels(outcome)
        for reason in ("full", "busy", "error"):
            self.skipped.labels(reason)
        self.info.labels(self.runtime.name, self.runtime.version).set(1)
        return True
