"""Temperature, exponent and calibration error, against cases with a known answer."""

import numpy as np
import pytest

from models.decision import calibrated
from training.assess.calibration import (
    PENALTY,
    calibration_error,
    coverage_curve,
    cross_fitted_confidence,
    fit_calibration,
    reliability,
)


@pytest.mark.parametrize("temperature", [0.4, 1.0, 2.5])
def test_the_temperature_that_made_the_labels_is_found(temperature):
    generator = np.random.default_rng(0)
    logits = 3 * generator.standard_normal((20_000, 4))
    gumbel = generator.gumbel(size=logits.shape)
    targets = (logits / temperature + gumbel).argmax(axis=1)  # drawn from softmax(logits / temperature)
    assert fit_calibration(logits, targets) == pytest.approx((temperature, 1.0), rel=0.05)


def test_the_confidence_counts_and_not_how_the_others_share_the_rest():
    """Mistakes that avoid the runner-up would make the likelihood of all teams choose a larger one."""
    generator = np.random.default_rng(0)
    logits = np.zeros((20_000, 4))
    logits[:, 0], logits[:, 1] = generator.uniform(1, 5, 20_000), 0.5
    confidence = calibrated(logits, 1.0)[:, 0]
    right = generator.random(20_000) < confidence
    targets = np.where(right, 0, generator.integers(2, 4, 20_000))
    assert fit_calibration(logits, targets) == pytest.approx((1.0, 1.0), rel=0.05)


@pytest.mark.parametrize("exponent", [0.5, 0.8, 1.5])
def test_the_exponent_that_made_the_labels_is_found(exponent):
    generator = np.random.default_rng(0)
    logits = 3 * generator.standard_normal((20_000, 4))
    right = generator.random(20_000) < calibrated(logits, 1.5, exponent).max(axis=1)
    targets = np.where(right, logits.argmax(axis=1), logits.argmin(axis=1))
    assert fit_calibration(logits, targets) == pytest.approx((1.5, exponent), rel=0.08)
    few = fit_calibration(logits[:20], targets[:20])
    assert abs(np.log(few[1])) < abs(np.log(exponent))  # few tickets do not show another exponent than 1


def test_the_calibration_has_the_least_loss_nearby():
    generator = np.random.default_rng(1)
    logits = 2 * generator.standard_normal((300, 5))
    drawn = generator.random(300) < calibrated(logits, 1.5, 0.7).max(axis=1)
    targets = np.where(drawn, logits.argmax(axis=1), logits.argmin(axis=1))
    right = (300 / 302) * (logits.argmax(axis=1) == targets) + 1 / 302

    def loss(temperature: float, exponent: float) -> float:
        confidence = calibrated(logits, temperature, exponent).max(axis=1)
        likelihood = right * np.log(confidence) + (1 - right) * np.log(1 - confidence)
        return float(PENALTY * np.log(exponent) ** 2 - likelihood.sum())

    temperature, exponent = fit_calibration(logits, targets)
    for step in (0.97, 1.03):
        assert loss(temperature, exponent) < loss(temperature * step, exponent)
        assert loss(temperature, exponent) < loss(temperature, exponent * step)


def test_no_ticket_is_measured_with_a_calibration_that_it_helped_to_choose():
    logits = np.array([[2.0, 0.0]] * 40)
    targets = np.arange(40) % 4 // 3  # three of four right
    confidence = cross_fitted_confidence(logits, targets)
    fold = np.random.default_rng(0).permutation(40) % 5
    for number in range(5):
        others = fold != number
        expected = calibrated(logits[:1], *fit_calibration(logits[others], targets[others])).max()
        assert confidence[~others] == pytest.approx(expected)
    assert len(set(confidence.round(9))) > 1


@pytest.mark.parametrize("tickets", [3, 12, 60, 600, 5_000])
def test_right_answers_alone_do_not_make_the_confidence_one(tickets):
    """n right of n show about n + 1 right of n + 2 (Laplace); the likelihood alone would say: surely."""
    targets = np.arange(tickets) % 3
    logits = 5.0 * np.eye(3)[targets]
    confidence = calibrated(logits, *fit_calibration(logits, targets)).max(axis=1)
    assert confidence.mean() == pytest.approx((tickets + 1) / (tickets + 2), abs=1e-3)


def test_calibration_error_by_hand():
    confidence = np.array([0.9, 0.9, 0.9, 0.9, 0.6, 0.6, 0.6, 0.6])
    correct = np.array([True, False, False, False, True, False, True, False])
    # group of 0.6: (0.6 - 0.5)^2 - 0.5 * 0.5 / 3; group of 0.9: (0.9 - 0.25)^2 - 0.25 * 0.75 / 3
    squared = ((0.01 - 0.25 / 3) + (0.65**2 - 0.1875 / 3)) / 2
    assert calibration_error(confidence, correct, bins=2) == pytest.approx(squared**0.5)
    assert [bin["tickets"] for bin in reliability(confidence, correct)] == [4, 4]


def test_the_error_of_a_perfect_confidence_is_not_that_of_chance():
    """On 800 tickets the plain error of a perfect confidence is 0.04; half of these are below 0.02."""
    generator = np.random.default_rng(0)
    errors, off = [], []
    for _ in range(100):
        confidence = generator.uniform(0.3, 0.9, 800)
        correct = generator.random(800) < confidence
        errors.append(calibration_error(confidence, correct))
        off.append(calibration_error(confidence + 0.08, correct))
    assert np.median(errors) < 0.02
    assert np.mean(off) == pytest.approx(0.08, abs=0.015)


def test_full_confidence_falls_into_the_last_bin():
    assert calibration_error(np.ones(3), np.ones(3, bool)) == 0
    assert reliability(np.ones(3), np.ones(3, bool))[0]["high"] == 1


def test_the_coverage_curve_ends_with_every_ticket():
    confidence = np.array([0.9, 0.8, 0.7, 0.6])
    curve = coverage_curve(confidence, np.array([True, True, False, True]))
    assert [point["coverage"] for point in curve] == [0.25, 0.5, 0.75, 1]
    assert [point["precision"] for point in curve] == pytest.approx([1, 1, 2 / 3, 3 / 4])
