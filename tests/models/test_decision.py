"""From logits to a decision."""

from __future__ import annotations

import numpy as np
import pytest

from models.bundle import BundleConfig
from models.decision import calibrated, decide
from models.tokenizer import Tokenizer, build_word_tokenizer
from models.tradeoff import Thresholds

TOKENIZER = Tokenizer(build_word_tokenizer(["my parcel is late"], min_count=1), 20)
ENCODING = TOKENIZER.encode("my parcel is late")


def config(**changes: object) -> BundleConfig:
    values = {
        "name": "small",
        "version": "1",
        "teams": ["delivery", "payment", "account"],
        "max_tokens": 20,
        "vocab_size": TOKENIZER.vocab_size,
        "temperature": 2.0,
        "thresholds": Thresholds(confidence=0.7),
    }
    return BundleConfig(**(values | changes))


def test_temperature_divides_the_logits() -> None:
    logits = np.array([[2.0, 0.0, -1.0], [0.0, 0.0, 0.0]], dtype=np.float32)
    expected = np.exp(logits / 2) / np.exp(logits / 2).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(calibrated(logits, 2.0), expected, rtol=1e-6)
    np.testing.assert_allclose(calibrated(logits, 2.0).sum(axis=1), 1, rtol=1e-15)


def test_the_exponent_bends_the_gaps_and_keeps_the_order() -> None:
    logits = np.array([[2.0, 0.0, -6.0]])
    weights = np.exp([0, -1, -(4**0.5)])
    np.testing.assert_allclose(calibrated(logits, 2.0, 0.5), weights[None] / weights.sum(), rtol=1e-12)
    decision = decide(logits[0], ENCODING, config(exponent=0.5))
    np.testing.assert_allclose(
        list(decision.probabilities.values()), calibrated(logits, 2.0, 0.5)[0], rtol=1e-12
    )
    assert decision.confidence == max(decision.probabilities.values())


def test_a_bundle_without_an_exponent_has_the_exponent_one() -> None:
    logits = np.array([2.0, 0.5, -6.0])
    np.testing.assert_allclose(
        list(decide(logits, ENCODING, config()).probabilities.values()), calibrated(logits, 2.0), rtol=1e-12
    )


def test_huge_logits_do_not_overflow() -> None:
    with np.errstate(all="raise", under="ignore"):
        assert calibrated(np.array([1e30, 0, -1e30]), 1.0).tolist() == [1, 0, 0]
        assert calibrated(np.array([1e30, 0, -1e30]), 1.0, 2.0).tolist() == [1, 0, 0]


def test_the_most_likely_team_is_named_with_its_probability() -> None:
    decision = decide(np.array([0.0, 4.0, 1.0], dtype=np.float32), ENCODING, config())
    assert decision.team == "payment"
    assert list(decision.probabilities) == ["delivery", "payment", "account"]
    assert decision.confidence == decision.probabilities["payment"] == max(decision.probabilities.values())
    assert sum(decision.probabilities.values()) == pytest.approx(1)


def test_routes_at_the_threshold_and_asks_below_it() -> None:
    logits = np.array([0.0, 4.0, 1.0], dtype=np.float32)
    confidence = decide(logits, ENCODING, config()).confidence
    at = decide(logits, ENCODING, config(thresholds=Thresholds(confidence=confidence)))
    assert (at.decision, at.reasons) == ("route", [])
    above = decide(
        logits, ENCODING, config(thresholds=Thresholds(confidence=np.nextafter(confidence, 1).item()))
    )
    assert (above.decision, above.reasons) == ("review", ["low_confidence"])
