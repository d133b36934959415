"""The figures of a training run, as JSON values.

With `texts` they contain the texts of some tickets, else only ids, so that a report can be shared.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from models.bundle import BundleConfig
from training.assess.baselines import Baseline
from training.assess.calibration import coverage_curve, reliability
from training.assess.checks import Checks
from training.assess.evaluation import Answers, Evaluation
from training.assess.label_errors import Suspect, expected_errors
from training.assess.reading import chosen
from training.assess.thresholds import precision_bound
from training.data.dataset import Dataset, Tickets
from training.fit.loop import Epoch
from training.report.routing import precision_table, team_table

WORST_MISTAKES = 30
SHOWN_SUSPECTS = 200
LENGTH_BINS = 30


def figures(
    config: BundleConfig,
    dataset: Dataset,
    history: list[Epoch],
    answers: Answers,
    evaluation: Evaluation,
    checks: Checks,
    texts: bool,
) -> dict[str, Any]:
    """All figures of the run, as JSON values."""
    predicted = np.array(answers.teams)
    correct = predicted == np.array(dataset.valid.teams)
    edges = _length_edges(dataset.train)
    return {
        "bundle": {"name": config.name, "version": config.version, "libraries": config.libraries},
        "data": {
            "fingerprint": config.fingerprint,
            "train": _describe(dataset.train, edges),
            "valid": _describe(dataset.valid, edges),
            "faults": dataset.faults.to_json(),
        },
        "recipe": config.recipe,
        "epochs": [asdict(epoch) for epoch in history],
        "validation": asdict(evaluation),
        "accuracy_at_least": float(precision_bound(np.array(correct.sum()), np.array(len(correct)))),
        "routers": [
            _transformer(evaluation, history, dataset),
            *(_baseline(one, predicted, dataset.valid.teams) for one in checks.baselines),
        ],
        "robustness": [asdict(one) for one in checks.robustness],
        "confusions": _confusions(dataset.valid.teams, answers.teams),
        "temperature": config.temperature,
        "exponent": config.exponent,
        "thresholds": config.thresholds.model_dump(),
        **_routing(config),
        "reading": {"chosen": chosen(config), "compared": config.reading},
        "reliability": reliability(answers.confidence, correct),
        "coverage": coverage_curve(answers.confidence, correct),
        "review_reasons": dict(Counter(reason for one in answers.tickets for reason in one.reasons)),
        "mistakes": _mistakes(dataset.valid, answers, correct, texts),
        "suspected_label_errors": {
            "looked_for": bool(checks.baselines),
            "doubt": checks.doubt,
            "count": len(checks.suspects),
            "expected": expected_errors(checks.suspects),
            "costs": _costs(checks.suspects, dataset, predicted),
            "first": [_suspect(one, dataset.checked, texts) for one in checks.suspects[:SHOWN_SUSPECTS]],
        },
    }


def _routing(config: BundleConfig) -> dict[str, Any]:
    """The trade-off of precision and coverage: plain values, tables, and a warning."""
    tradeoff, wanted = config.tradeoff, config.thresholds.precision
    assert tradeoff is not None
    return {
        "tradeoff": tradeoff.model_dump(),
        "precision_table": asdict(precision_table(tradeoff, wanted)),
        "team_table": asdict(team_table(config)),
        "caution": tradeoff.caution(wanted),
    }


def to_json(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _length_edges(train: Tickets) -> list[float]:
    words = [len(text.split()) for text in train.texts]
    edges: list[float] = np.linspace(0, max(10.0, float(np.percentile(words, 98))), LENGTH_BINS + 1).tolist()
    return edges


def _describe(tickets: Tickets, edges: list[float]) -> dict[str, Any]:
    words = np.array([len(text.split()) for text in tickets.texts])
    counts, _ = np.histogram(np.minimum(words, edges[-1]), edges)
    return {
        "file": tickets.file,
        "tickets": len(tickets),
        "teams": dict(Counter(tickets.teams).most_common()),
        "styles": dict(Counter(tickets.styles).most_common()),
        "repetition": asdict(tickets.repetition),
        "words": {
            "shortest": int(words.min()),
            "median": float(np.median(words)),
            "percentile_95": float(np.percentile(words, 95)),
            "longest": int(words.max()),
        },
        "length_edges": edges,
        "length_counts": counts.tolist(),
    }


def _transformer(evaluation: Evaluation, history: list[Epoch], dataset: Dataset) -> dict[str, Any]:
    return {
        "router": "transformer",
        "accuracy": evaluation.accuracy,
        "correct": evaluation.correct,
        "macro_f1": evaluation.macro_f1,
        "train_tickets": len(dataset.train),
        "seconds": sum(epoch.seconds for epoch in history),
    }


def _baseline(baseline: Baseline, transformer: np.ndarray, teams: list[str]) -> dict[str, Any]:
    """Its figures; `only_right`: validation tickets that it alone, or the transformer alone, has right."""
    ours, its = transformer == np.array(teams), np.array(baseline.predicted) == np.array(teams)
    return {
        "only_right": [int((its & ~ours).sum()), int((ours & ~its).sum())],
        "router": baseline.name,
        "accuracy": baseline.accuracy,
        "correct": baseline.correct,
        "macro_f1": baseline.macro_f1,
        "train_tickets": baseline.train_tickets,
        "seconds": baseline.seconds,
    }


def _confusions(actual: list[str], predicted: list[str]) -> list[list[Any]]:
    """[team, predicted team, tickets] of each confusion, most frequent first."""
    wrong = Counter((a, p) for a, p in zip(actual, predicted, strict=True) if a != p)
    return [[a, p, count] for (a, p), count in wrong.most_common()]


def _mistakes(valid: Tickets, answers: Answers, correct: np.ndarray, texts: bool) -> list[dict[str, Any]]:
    """The mistakes with the highest confidence."""
    wrong = np.flatnonzero(~correct)
    worst = wrong[np.argsort(-answers.confidence[wrong], kind="stable")][:WORST_MISTAKES]
    return [
        {
            "ticket_id": valid.ids[row],
            "row": valid.rows[row],
            "team": valid.teams[row],
            "predicted": answers.tickets[row].team,
            "confidence": answers.tickets[row].confidence,
            "decision": answers.tickets[row].decision,
            **({"style": valid.styles[row]} if valid.styles else {}),
            **({"text": valid.texts[row]} if texts else {}),
        }
        for row in worst.tolist()
    ]


def _costs(suspects: Sequence[Suspect], dataset: Dataset, predicted: np.ndarray) -> float:
    """The share of the validation tickets that count as mistakes only because of a suspected label."""
    first = len(dataset.train)
    counted = [
        one.probability
        for one in suspects
        if one.index >= first and predicted[one.index - first] == one.suggested_team
    ]
    return sum(counted) / len(dataset.valid)


def _suspect(suspect: Suspect, train: Tickets, texts: bool) -> dict[str, Any]:
    values = asdict(suspect)
    index = values.pop("index")
    return {**values, **({"text": train.texts[index]} if texts else {})}
