"""Builds the bundle in memory: exported graph, calibration, scope, and metrics on validation tickets."""

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from models.bundle import Bundle, BundleConfig, Thresholds, quiet_options
from models.decision import calibrated
from models.reference import reference
from models.scope import review_reasons
from models.tokenizer import Tokenizer
from training.assess.calibration import choose_threshold, fit_temperature
from training.assess.evaluation import Answers, Evaluation, answer
from training.assess.scope import fit as fit_scope
from training.data.dataset import Dataset, fingerprint
from training.recipe import Recipe
from training.versions import library_versions


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


def calibrate(bundle: Bundle, dataset: Dataset) -> Bundle:
    """Fit the temperature, the scope and the threshold on the exported graph's validation logits."""
    train, valid = dataset.train, dataset.valid
    number = {team: place for place, team in enumerate(dataset.teams)}
    logits = answer(bundle, valid.texts).logits
    targets = np.array([number[team] for team in valid.teams])
    temperature = fit_temperature(logits, targets)
    scope = fit_scope(train.texts, train.teams, valid.texts, logits)
    in_scope = np.array(
        [
            not review_reasons(text, max(row), scope)
            for text, row in zip(valid.texts, logits.tolist(), strict=True)
        ]
    )
    probabilities = calibrated(logits[in_scope], temperature)
    thresholds = choose_threshold(
        probabilities.max(axis=1), probabilities.argmax(axis=1) == targets[in_scope]
    )
    coverage = (thresholds.coverage or 0.0) * float(in_scope.mean())
    return _with_config(
        bundle,
        temperature=temperature,
        out_of_scope=scope,
        thresholds=thresholds.model_copy(update={"coverage": coverage}),
    )


def with_metrics(bundle: Bundle, answers: Answers, evaluation: Evaluation) -> Bundle:
    """Add the validation metrics, and the reference that serving compares its traffic with."""
    counts = np.array([max(1, one.tokens) for one in answers.tickets])
    unknown = np.array([one.unknown for one in answers.tickets]) / counts
    traffic = reference(
        answers.teams, answers.confidence.tolist(), unknown.tolist(), counts.tolist(), bundle.config.teams
    )
    metrics = asdict(evaluation)
    return _with_config(bundle, metrics=metrics, reference=traffic)


def _with_config(bundle: Bundle, **changes: Any) -> Bundle:
    config = BundleConfig.model_validate({**dict(bundle.config), **changes})
    return Bundle(bundle.folder, config, bundle.tokenizer, bundle.session)
