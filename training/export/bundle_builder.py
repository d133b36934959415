"""Builds the bundle in memory: exported graph, calibration, scope, and metrics on validation tickets."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import onnxruntime

from models.bundle import Bundle, BundleConfig, quiet_options
from models.decision import calibrated
from models.reference import reference
from models.scope import review_reasons
from models.tokenizer import Tokenizer
from models.tradeoff import Thresholds
from training.assess.calibration import calibration_error, cross_fitted_confidence, fit_calibration
from training.assess.evaluation import Answers, Evaluation, answer, assess
from training.assess.scope import Scored
from training.assess.scope import fit as fit_scope
from training.assess.thresholds import fit_tradeoff
from training.data.dataset import Dataset, Tickets, fingerprint
from training.data.templates import first_of_each
from training.recipe import Recipe
from training.synthetic import out_of_scope
from training.versions import library_versions

UNKNOWN_TEAM = -1
OUTLIERS = 600  # texts of no team that the limit of the scope is chosen by


def uncalibrated_bundle(
    model: bytes, tokenizer: Tokenizer, dataset: Dataset, recipe: Recipe, out: Path, name: str
) -> Bundle:
    """The exported network as a bundle in memory, not yet calibrated."""
    config = BundleConfig(
        name=name,
        version=f"{recipe.name}-{hashlib.sha256(model).hexdigest()[:10]}",
        teams=list(dataset.teams),
        max_tokens=recipe.max_tokens,
        window=recipe.window,
        vocab_size=tokenizer.vocab_size,
        temperature=1.0,
        thresholds=Thresholds(confidence=0.0),
        recipe=recipe.to_json(),
        fingerprint=fingerprint(dataset.train),
        libraries=library_versions(),
    )
    session = onnxruntime.InferenceSession(model, quiet_options(), providers=["CPUExecutionProvider"])
    return Bundle(out, config, tokenizer, session)


def calibrate(bundle: Bundle, dataset: Dataset, precision: float | None = None) -> Bundle:
    """The bundle with calibration, scope statistics and thresholds, fitted on the exported graph's logits.

    `precision` is the share of routed tickets that should be right; None: `Tradeoff.default`.
    """
    dataset = dataset.with_distinct_valid()
    train, valid = dataset.train, dataset.valid
    logits, targets = answer(bundle, valid.texts).logits, team_numbers(valid.teams, dataset.teams)
    largest = logits.max(axis=1)
    scope = fit_scope(train.texts, train.teams, Scored(valid.texts, largest), outliers(bundle))
    in_scope = [
        not review_reasons(text, logit, scope)
        for text, logit in zip(valid.texts, largest.tolist(), strict=True)
    ]
    bundle = bundle.with_config(out_of_scope=scope)
    return with_thresholds(bundle, logits, targets, np.array(in_scope), precision)


def with_thresholds(
    bundle: Bundle, logits: np.ndarray, targets: np.ndarray, in_scope: np.ndarray, precision: float | None
) -> Bundle:
    """The bundle with calibration, trade-off and thresholds fitted on `logits` (tickets, teams).

    `targets` (tickets,) are indices of teams, `UNKNOWN_TEAM` for a team that the bundle does not have.
    Tickets that are not `in_scope` (tickets,) go to review at any confidence. `precision` is as in
    `calibrate`.
    """
    temperature, exponent = fit_calibration(logits, targets)
    answered = logits.argmax(axis=1)
    confidence = calibrated(logits, temperature, exponent).max(axis=1)
    teams = len(bundle.config.teams)
    tradeoff = fit_tradeoff(confidence, answered == targets, answered, in_scope, teams)
    wanted = tradeoff.default() if precision is None else precision
    return bundle.with_config(
        temperature=temperature,
        exponent=exponent,
        tradeoff=tradeoff,
        thresholds=tradeoff.thresholds(wanted),
    )


def outliers(bundle: Bundle) -> Scored:
    """Texts that belong to no team, with their largest logits; the network was not trained on them."""
    texts = [text.text for text in out_of_scope(OUTLIERS, split="fit")]
    return Scored(texts, answer(bundle, texts).logits.max(axis=1))


def team_numbers(tickets: Sequence[str], teams: Sequence[str]) -> np.ndarray:
    """The teams of the tickets as indices of `teams` (tickets,), UNKNOWN_TEAM for others."""
    number = {team: place for place, team in enumerate(teams)}
    return np.array([number.get(team, UNKNOWN_TEAM) for team in tickets])


def validate(bundle: Bundle, valid: Tickets) -> tuple[Answers, Evaluation]:
    """The answers to the validation tickets and their figures; the calibration error is cross-fitted."""
    answers = answer(bundle, valid.texts)
    first = first_of_each(valid.text_groups)
    logits, targets = answers.logits[first], team_numbers(valid.teams, bundle.config.teams)[first]
    confidence = cross_fitted_confidence(logits, targets)
    error = calibration_error(confidence, logits.argmax(axis=1) == targets)
    evaluation = assess(answers, valid, bundle.config.teams)
    return answers, replace(evaluation, calibration_error=error)


def with_metrics(bundle: Bundle, answers: Answers, evaluation: Evaluation) -> Bundle:
    """Add the validation metrics, and the reference distribution for drift detection."""
    counts = np.array([max(1, one.tokens) for one in answers.tickets])
    unknown = np.array([one.unknown for one in answers.tickets]) / counts
    traffic = reference(
        answers.teams, answers.confidence.tolist(), unknown.tolist(), counts.tolist(), bundle.config.teams
    )
    return bundle.with_config(metrics=asdict(evaluation), reference=traffic)
