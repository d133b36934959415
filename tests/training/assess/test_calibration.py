"""Temperature, threshold and calibration error, against cases with a known answer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from models.bundle import Thresholds
from models.decision import calibrated
from training.assess.calibration import (
    calibration_error,
    caution,
    choose_threshold,
    coverage_curve,
    fewest_tickets,
    fit_temperature,
    precision_bound,
    reliability,
)


@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.5])
def test_the_temperature_that_made_the_labels_is_found(temperature):
    generator = np.random.default_rng(0)
    logits = 3 * generator.standard_normal((20_000, 4))
    gumbel = generator.gumbel(size=logits.shape)
    targets = (logits / temperature + gumbel).argmax(axis=1)  # drawn from softmax(logits / temperature)
    assert fit_temperature(logits, targets) == pytest.approx(temperature, rel=0.05)


@pytest.mark.parametrize(("right", "routed"), [(299, 299), (95, 100), (1, 2), (3, 50)])
def test_the_bound_is_where_such_luck_has_five_percent(right, routed):
    bound = float(precision_bound(np.array([right]), np.array([routed]))[0])
    assert binom.sf(right - 1, routed, bound) == pytest.approx(0.05, abs=1e-9)


def test_the_bound_of_no_right_ticket_is_zero():
    assert precision_bound(np.array([0]), np.array([10]))[0] == 0


def test_299_right_tickets_are_the_fewest_that_show_99_percent():
    confidence = np.linspace(0.5, 1, 299)
    assert choose_threshold(confidence, np.ones(299, bool)).coverage == 1
    fewer = choose_threshold(confidence[:298], np.ones(298, bool))
    assert fewer.precision < 0.99  # not reached, and not claimed
    assert fewer.confidence == 0.99  # so each ticket has to claim it
    assert fewer.coverage == pytest.approx((confidence[:298] >= 0.99).mean())
    assert fewest_tickets() == 299


def test_what_was_not_shown_sends_more_to_review_and_never_less():
    """The same mistakes on ever fewer tickets: the threshold does not fall."""
    generator = np.random.default_rng(0)
    confidence = generator.uniform(0.6, 1, 2_000)
    correct = confidence > 0.62
    chosen = [choose_threshold(confidence[:n], correct[:n]) for n in (2_000, 600, 200, 60, 20)]
    assert [one.precision == 0.99 for one in chosen] == [True, True, False, False, False]
    assert [one.confidence for one in chosen[2:]] == [0.99] * 3
    assert all(one.coverage < 0.05 for one in chosen[2:])


@pytest.mark.parametrize("tickets", [0, 1, 5])
def test_a_few_unsure_tickets_route_none(tickets):
    chosen = choose_threshold(np.full(tickets, 0.8), np.ones(tickets, bool))
    assert (chosen.confidence, chosen.precision, chosen.coverage) == (0.99, 0, 0)


@pytest.mark.parametrize("tickets", [3, 12, 60, 298])
def test_few_right_answers_do_not_make_the_confidence_one(tickets):
    """n right of n show about n + 1 right of n + 2 (Laplace); the likelihood alone would say: surely."""
    targets = np.arange(tickets) % 3
    logits = 5.0 * np.eye(3)[targets]
    confidence = calibrated(logits, fit_temperature(logits, targets)).max(axis=1)
    assert confidence.mean() == pytest.approx((tickets + 1) / (tickets + 2), abs=1e-3)


def test_enough_tickets_have_no_doubt_added():
    targets = np.arange(299) % 3
    logits = 5.0 * np.eye(3)[targets]
    assert calibrated(logits, fit_temperature(logits, targets)).max(axis=1).min() > 0.9999


def test_the_caution_says_what_was_too_few():
    none = caution(Thresholds(confidence=0.99, precision=0.99, coverage=1.0), 600)
    few = caution(Thresholds(confidence=0.99, precision=0.9, coverage=0.5), 30)
    nothing = caution(Thresholds(confidence=0.99, precision=0.0, coverage=0.0), 1)
    noisy = caution(Thresholds(confidence=0.995, precision=0.97, coverage=0.5), 3_000)
    assert none == ""
    assert "30 validation tickets are too few to show that 99%" in few
    assert "299" in few
    assert "90.0%" in few
    assert "1 validation ticket is too few" in nothing
    assert "all of them" in nothing
    assert "no threshold shows on 3,000 validation tickets" in noisy
    assert "0.9950" in noisy


def test_the_threshold_leaves_the_mistakes_out():
    confidence = np.linspace(0, 1, 1_000)
    correct = confidence > 0.3
    chosen = choose_threshold(confidence, correct)
    kept = confidence >= chosen.confidence
    assert chosen.coverage == pytest.approx(kept.mean())
    assert precision_bound(correct[kept].sum(), kept.sum()) >= 0.99
    one_lower = confidence >= confidence[confidence < chosen.confidence].max()
    assert precision_bound(correct[one_lower].sum(), one_lower.sum()) < 0.99


def test_equal_confidences_are_routed_together():
    confidence = np.array([0.9] * 600 + [0.5] * 400)
    correct = np.array([True] * 600 + [False] * 400)
    chosen = choose_threshold(confidence, correct)
    assert (chosen.confidence, chosen.coverage) == (0.9, 0.6)


@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.2, 0.5, 0.7, 0.9, 1.0]), st.booleans()), min_size=1, max_size=60
    )
)
def test_the_stated_precision_always_holds(tickets):
    confidence, correct = np.array([t[0] for t in tickets]), np.array([t[1] for t in tickets])
    chosen = choose_threshold(confidence, correct, precision=0.6)
    routed = confidence >= chosen.confidence
    assert chosen.coverage == pytest.approx(routed.mean())
    assert precision_bound(correct[routed].sum(), routed.sum()) >= chosen.precision - 1e-12


def test_calibration_error_by_hand():
    confidence = np.array([0.9, 0.9, 0.9, 0.9, 0.6, 0.6])
    correct = np.array([True, True, True, False, True, False])
    # bin of 0.9: |0.9 - 0.75| * 4/6, bin of 0.6: |0.6 - 0.5| * 2/6
    assert calibration_error(confidence, correct) == pytest.approx(0.15 * 4 / 6 + 0.1 * 2 / 6)
    assert [bin["tickets"] for bin in reliability(confidence, correct)] == [2, 4]


def test_full_confidence_falls_into_the_last_bin():
    assert calibration_error(np.ones(3), np.ones(3, bool)) == 0
    assert reliability(np.ones(3), np.ones(3, bool))[0]["high"] == 1


def test_the_coverage_curve_ends_with_every_ticket():
    confidence = np.array([0.9, 0.8, 0.7, 0.6])
    curve = coverage_curve(confidence, np.array([True, True, False, True]))
    assert [point["coverage"] for point in curve] == [0.25, 0.5, 0.75, 1]
    assert [point["precision"] for point in curve] == pytest.approx([1, 1, 2 / 3, 3 / 4])
