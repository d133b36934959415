"""After training: make the confidence mean what it says, then choose when a ticket may go unseen.

One temperature divides all logits (Guo et al., 2017); it changes no prediction. The threshold is the
lowest confidence at which routed validation tickets are right often enough, by the lower end of an exact
binomial interval (Clopper and Pearson, 1934), so that luck on few tickets does not pass for skill.
"""

import math

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.stats import beta

from models.bundle import Thresholds
from models.decision import calibrated

PRECISION = 0.99
CERTAINTY = 0.95
BINS = 15


def fit_temperature(logits: np.ndarray, targets: np.ndarray) -> float:
    """The temperature that makes (tickets, teams) `logits` most likely to give `targets` (tickets,).

    Fewer tickets than can show PRECISION leave a share of 1 / (n + 2) to the other teams (Platt, 1999), else
    a handful of right answers would make every confidence 1.
    """
    logits = np.asarray(logits, dtype=np.float64)
    tickets, teams = logits.shape
    doubt = 1 / (tickets + 2) if tickets < fewest_tickets() else 0.0

    def loss(log_temperature: float) -> float:
        probabilities = calibrated(logits, float(np.exp(log_temperature)))
        logs = np.log(np.maximum(probabilities, 1e-300))
        right = logs[np.arange(tickets), targets]
        others = (logs.sum(axis=1) - right) / (teams - 1) if doubt else 0.0
        return -float(((1 - doubt) * right + doubt * others).mean())

    found = minimize_scalar(loss, bounds=(np.log(0.05), np.log(20.0)), method="bounded")
    return float(np.exp(found.x))


def precision_bound(right: np.ndarray, routed: np.ndarray, certainty: float = CERTAINTY) -> np.ndarray:
    """One-sided lower bound of a share: `right` of `routed`, both counts, elementwise."""
    right, routed = np.asarray(right), np.asarray(routed)
    bound = beta.ppf(1 - certainty, np.maximum(right, 1), routed - right + 1)
    return np.where(right > 0, bound, 0.0)


def fewest_tickets(precision: float = PRECISION, certainty: float = CERTAINTY) -> int:
    """How many tickets, all of them right, it takes to show `precision`: precision^n <= 1 - certainty."""
    return math.ceil(math.log(1 - certainty) / math.log(precision))


def choose_threshold(confidence: np.ndarray, correct: np.ndarray, precision: float = PRECISION) -> Thresholds:
    """The lowest confidence whose routed tickets are right with at least `precision`, by the lower bound.

    `confidence` (tickets,) in 0..1, `correct` (tickets,) bool. Where no threshold reaches `precision`
    (too few validation tickets, or too many mistakes) the one with the highest bound is taken, but none below
    `precision`: what was not shown has to be claimed by each ticket's own confidence. The bound that is
    reached is what the result states as its precision.
    """
    order = np.argsort(-confidence, kind="stable")
    sorted_confidence, sorted_correct = confidence[order], correct[order]
    bound = precision_bound(np.cumsum(sorted_correct), np.arange(1, len(order) + 1))
    # Only where the next ticket is less sure can a threshold cut.
    cuts = np.append(sorted_confidence[1:] < sorted_confidence[:-1], True)[: len(order)]
    bound = np.where(cuts, bound, -1.0)
    enough = np.flatnonzero(bound >= precision)
    if len(enough):
        chosen = float(sorted_confidence[enough[-1]])
    else:
        chosen = max(precision, float(sorted_confidence[np.argmax(bound)]) if len(order) else 0.0)
    routed = int((confidence >= chosen).sum())
    return Thresholds(
        confidence=chosen,
        precision=float(min(precision, bound[routed - 1])) if routed else 0.0,
        coverage=routed / max(1, len(order)),
    )


def caution(thresholds: Thresholds, tickets: int) -> str:
    """What `tickets` validation tickets could not show, in words; empty where they showed PRECISION."""
    if thresholds.precision >= PRECISION:
        return ""
    fewest = fewest_tickets()
    wanted = f"{PRECISION:.0%} of the routed ones are right"
    counted = "1 validation ticket is" if tickets == 1 else f"{tickets:,} validation tickets are"
    why = (
        f"{counted} too few to show that {wanted}: even without a mistake it takes {fewest:,}"
        if tickets < fewest
        else f"no threshold shows on {tickets:,} validation tickets that {wanted}"
    )
    shown = (
        f"the precision that was shown is {thresholds.precision:.1%} (lower bound at 95 %)"
        if thresholds.coverage
        else "of the validation tickets, all of them"
    )
    return (
        f"{why}. So a ticket is routed only from a confidence of {thresholds.confidence:.4f} on, and more go "
        f"to review: {shown}."
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
