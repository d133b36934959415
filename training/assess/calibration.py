"""Calibration: fits the temperature, and measures how far confidence and accuracy are apart.

One temperature divides all logits (Guo et al., 2017) and changes no prediction. It is fitted so that the
confidence is the probability that the predicted team is right (top-label calibration, Gupta and Ramdas,
2022), not to the likelihood of all teams.
"""

import numpy as np
from scipy.optimize import minimize_scalar

from models.decision import calibrated

BINS = 15
FOLDS = 5


def fit_temperature(logits: np.ndarray, targets: np.ndarray) -> float:
    """The temperature for `logits` (tickets, teams) that minimizes the log loss of "the prediction is right".

    The targets of this loss are smoothed by 1 / (n + 2) for n tickets (Platt, 1999). Without smoothing, n
    right predictions would make every confidence 1, also that of a text that belongs to no team.
    """
    logits = np.asarray(logits, dtype=np.float64)
    smoothing = 1 / (len(logits) + 2)
    right = (1 - 2 * smoothing) * (logits.argmax(axis=1) == targets) + smoothing
    below = logits - logits.max(axis=1, keepdims=True)

    def loss(log_temperature: float) -> float:
        weights = np.exp(below / np.exp(log_temperature))
        total = weights.sum(axis=1)
        others = np.maximum(total - 1, 1e-300)  # the largest weight is 1
        return float((np.log(total) - (1 - right) * np.log(others)).mean())

    found = minimize_scalar(loss, bounds=(np.log(0.05), np.log(20.0)), method="bounded")
    return float(np.exp(found.x))


def cross_fitted_confidence(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The confidence of each ticket (tickets,), with a temperature that was fitted on the other folds."""
    fold = np.random.default_rng(0).permutation(len(logits)) % min(FOLDS, len(logits))
    confidence = np.zeros(len(logits))
    for held_out in np.unique(fold):
        fitted, measured = fold != held_out, fold == held_out
        temperature = fit_temperature(logits[fitted], targets[fitted]) if fitted.any() else 1.0
        confidence[measured] = calibrated(logits[measured], temperature).max(axis=1)
    return confidence


def calibration_error(confidence: np.ndarray, correct: np.ndarray, bins: int = BINS) -> float:
    """The root mean squared gap between confidence and accuracy, over `bins` groups of equally many tickets.

    The expected squared gap by chance, a(1 - a) / (n - 1) for n tickets of accuracy a, is subtracted from
    each squared gap (Kumar, Liang and Ma, 2019). Otherwise a perfect confidence would have an error of 0.04
    on 800 tickets.
    """
    order = np.argsort(confidence, kind="stable")
    squared = 0.0
    for group in np.array_split(order, min(bins, max(1, len(order) // 2))):
        accuracy = correct[group].mean()
        chance = accuracy * (1 - accuracy) / max(1, len(group) - 1)
        squared += len(group) / len(order) * float((confidence[group].mean() - accuracy) ** 2 - chance)
    return float(np.sqrt(max(0.0, squared)))


def reliability(confidence: np.ndarray, correct: np.ndarray, bins: int = BINS) -> list[dict[str, float]]:
    """For each bin with tickets: its bounds, their number, mean confidence and accuracy."""
    index = np.minimum((confidence * bins).astype(int), bins - 1)
    return [
        {
            "low": number / bins,
            "high": (number + 1) / bins,
            "tickets": int((index == number).sum()),
            "confidence": float(confidence[index == number].mean()),
            "accuracy": float(correct[index == number].mean()),
        }
        for number in range(bins)
        if (index == number).any()
    ]


def coverage_curve(confidence: np.ndarray, correct: np.ndarray) -> list[dict[str, float]]:
    """Coverage and precision at thresholds, at most 200 of them, from the highest confidence down."""
    order = np.argsort(-confidence, kind="stable")
    right = np.cumsum(correct[order])
    routed = np.arange(1, len(order) + 1)
    steps = np.unique(np.linspace(0, len(order) - 1, min(len(order), 200)).astype(int))
    return [
        {
            "threshold": float(confidence[order[step]]),
            "coverage": float(routed[step] / len(order)),
            "precision": float(right[step] / routed[step]),
        }
        for step in steps
    ]
