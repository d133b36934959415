"""After training: make the confidence mean what it says, then choose when a ticket may go unseen.

One temperature divides all logits (Guo et al., 2017); it changes no prediction. The threshold is the
lowest confidence at which routed validation tickets are right often enough, by the lower end of an exact
binomial interval (Clopper and Pearson, 1934), so that luck on few tickets does not pass for skill.
"""

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.stats import beta

from models.bundle import Thresholds
from models.decision import calibrated

PRECISION = 0.99
CERTAINTY = 0.95
BINS = 15


def fit_temperature(logits: np.ndarray, targets: np.ndarray) -> float:
    """The temperature that makes (tickets, teams) `logits` most likely to give `targets` (tickets,)."""
    logits = np.asarray(logits, dtype=np.float64)

    def loss(log_temperature: float) -> float:
        probabilities = calibrated(logits, float(np.exp(log_temperature)))
        right = probabilities[np.arange(len(targets)), targets]
        return -float(np.log(np.maximum(right, 1e-300)).mean())

    found = minimize_scalar(loss, bounds=(np.log(0.05), np.log(20.0)), method="bounded")
    return float(np.exp(found.x))


def precision_bound(right: np.ndarray, routed: np.ndarray, certainty: float = CERTAINTY) -> np.ndarray:
    """One-sided lower bound of a share: `right` of `routed`, both counts, elementwise."""
    right, routed = np.asarray(right), np.asarray(routed)
    bound = beta.ppf(1 - certainty, np.maximum(right, 1), routed - right + 1)
    return np.where(right > 0, bound, 0.0)


def choose_threshold(confidence: np.ndarray, correct: np.ndarray, precision: float = PRECISION) -> Thresholds:
    """The lowest confidence whose routed tickets are right with at least `precision`, by the lower bound.

    `confidence` (tickets,) in 0..1, `correct` (tickets,) bool. Where no threshold reaches `precision`
    (too few validation tickets, or too many mistakes) the one with the highest bound is taken, and the
    bound that it does reach is what the result states as its precision.
    """
    order = np.argsort(-confidence, kind="stable")
    sorted_confidence = confidence[order]
    routed = np.arange(1, len(order) + 1)
    bound = precision_bound(np.cumsum(correct[order]), routed)
    # Only where the next ticket is less sure can a threshold cut.
    cuts = np.append(sorted_confidence[1:] < sorted_confidence[:-1], True)
    bound = np.where(cuts, bound, -1.0)
    enough = np.flatnonzero(bound >= precision)
    at = int(enough[-1]) if len(enough) else int(np.argmax(bound))
    return Thresholds(
        confidence=float(sorted_confidence[at]),
        precision=float(min(precision, bound[at])),
        coverage=float(routed[at] / len(order)),
    )


def calibration_error(confidence: np.ndarray, correct: np.ndarray, bins: int = BINS) -> float:
    """Expected calibration error: mean gap of confidence and accuracy over equally wide bins, by tickets."""
    index = np.minimum((confidence * bins).astype(int), bins - 1)
    gap = np.bincount(index, weights=confidence - correct.astype(float), minlength=bins)
    return float(np.abs(gap).sum() / len(confidence))


def reliability(confidence: np.ndarray, correct: np.ndarray, bins: int = BINS) -> list[dict[str, float]]:
    """For each bin that holds tickets: its bounds, their number, mean confidence and accuracy."""
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
    """For each threshold that changes anything: share of tickets routed, and how many of those are right."""
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
