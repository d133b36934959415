"""Drift and accuracy by hand, and as gauges of a running service."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from models.reference import binned, reference, shares
from service.feedback.drift import drift, population_stability_index, quality


def row(team: str = "a", confidence: float = 0.9, tokens: int = 10, unknown: int = 0) -> SimpleNamespace:
    return SimpleNamespace(predicted=team, confidence=confidence, tokens=tokens, unknown=unknown)


def answer(predicted: str, actual: str, confidence: float, decision: str = "route") -> SimpleNamespace:
    return SimpleNamespace(predicted=predicted, actual=actual, confidence=confidence, decision=decision)


def test_psi_by_hand() -> None:
    """(.6-.5) ln(.6/.5) + (.4-.5) ln(.4/.5) = .1 ln 1.2 - .1 ln .8 = .1 ln 1.5."""
    assert population_stability_index([0.5, 0.5], [0.6, 0.4]) == pytest.approx(0.1 * math.log(1.5))
    assert population_stability_index([0.6, 0.4], [0.5, 0.5]) == pytest.approx(0.1 * math.log(1.5))
    assert population_stability_index([0.2, 0.3, 0.5], [0.2, 0.3, 0.5]) == 0.0


def test_psi_of_an_empty_bin_is_large_and_finite() -> None:
    value = population_stability_index([1.0, 0.0], [0.5, 0.5])
    assert 1 < value < 10
    with pytest.raises(ValueError, match="2 and 3 bins"):
        population_stability_index([0.5, 0.5], [0.5, 0.25, 0.25])


def test_bins_hold_every_value_once() -> None:
    assert binned([0.0] * 70 + [0.1] * 20 + [0.5] * 10) == {"edges": [0.1], "shares": [0.7, 0.3]}
    assert len(binned([float(n) for n in range(1000)])["edges"]) == 9
    assert shares([-5.0, 0.1, 99.0], [0.1]) == [pytest.approx(1 / 3), pytest.approx(2 / 3)]


def test_a_feature_that_is_nearly_always_the_same_can_still_drift() -> None:
    assert binned([0.0] * 97 + [0.2, 0.3, 0.3]) == {"edges": [0.2], "shares": [0.97, 0.03]}
    constant = binned([3, 3, 3])
    assert constant["shares"] == [1.0, 0.0]
    assert shares([3, 3, 4], constant["edges"]) == [pytest.approx(2 / 3), pytest.approx(1 / 3)]


def test_a_reference_of_unequal_lists_is_refused() -> None:
    with pytest.raises(ValueError, match="same number"):
        reference(["a"], [0.5, 0.6], [0.0], [4], ["a"])
    with pytest.raises(ValueError, match="same number"):
        reference([], [], [], [], ["a"])


def test_the_same_tickets_do_not_drift_and_others_do() -> None:
    chance = np.random.default_rng(3)

    def tickets(number: int, length: float, team_a: float) -> list[SimpleNamespace]:
        return [
            row(
                "a" if chance.random() < team_a else "b",
                float(chance.beta(8, 2)),
                int(chance.poisson(length)) + 1,
                int(chance.random() < 0.2),
            )
            for _ in range(number)
        ]

    before = tickets(600, 40, 0.5)
    made = reference(
        [each.predicted for each in before],
        [each.confidence for each in before],
        [each.unknown / each.tokens for each in before],
        [each.tokens for each in before],
        ["a", "b"],
    )
    calm = drift(made, tickets(2000, 40, 0.5))
    assert set(calm) == {"team", "confidence", "unknown_ratio", "length"}
    assert max(calm.values()) < 0.1
    other = drift(made, tickets(2000, 60, 0.9))
    assert other["length"] > 0.25
    assert other["team"] > 0.25
    assert other["confidence"] < 0.1
    assert drift({}, before) == {} == drift(made, [])


def test_a_team_that_the_reference_lacks_counts_as_drift() -> None:
    made = reference(["a"] * 9 + ["b"], [0.9] * 10, [0.0] * 10, [5] * 10, ["a", "b"])
    assert drift(made, [row("c")] * 50)["team"] > 1


def test_quality_by_hand() -> None:
    rows = [
        answer("a", "a", 0.95),
        answer("a", "b", 0.95),
        answer("b", "b", 0.65, "review"),
        answer("b", "b", 0.55, "review"),
    ]
    found = quality(rows)
    assert found.accuracy == 0.75
    assert found.routed_accuracy == 0.5
    assert found.review_accuracy == 1.0
    # Bins .9-1: |1.9 - 1|; .6-.7: |.65 - 1|; .5-.6: |.55 - 1|; over 4 tickets.
    assert found.calibration_error == pytest.approx((0.9 + 0.35 + 0.45) / 4)
    assert found.overconfidence == pytest.approx((0.95 + 0.95 + 0.65 + 0.55) / 4 - 0.75)


def test_quality_of_nothing_is_nan_and_of_certainty_is_counted() -> None:
    assert all(math.isnan(value) for value in quality([]))
    assert quality([answer("a", "a", 1.0)]).calibration_error == 0.0
