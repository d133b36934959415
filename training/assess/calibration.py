"""Calibration: fits temperature and exponent, and measures how far confidence and accuracy are apart.

The temperature divides all logits (Guo et al., 2017), and the exponent bends their gaps (`models.decision`):
the scores of ridge regression, a part of the logits, grow with the probability and not with its log-odds.
Neither changes a prediction. They are fitted so that the confidence is the probability that the predicted
team is right (top-label calibration, Gupta and Ramdas, 2022), not to the likelihood of all teams.
"""

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, logsumexp

from models.decision import calibrated

BINS = 15
FOLDS = 5
EXPONENTS = (0.25, 4.0)
PENALTY = 3.0  # times the squared logarithm of the exponent, as negative log-likelihood: it stays near 1
TEMPERATURES = (0.05, 20.0)


def fit_calibration(logits: np.ndarray, targets: np.ndarray) -> tuple[float, float]:
    """(temperature, exponent) with the least log loss of "the prediction is right".

    `logits` are (tickets, teams), `targets` (tickets,) the numbers of the right teams. The targets of this
    loss are smoothed by 1 / (n + 2) for n tickets (Platt, 1999). Without smoothing, n right predictions would
    make every confidence 1, also that of a text that belongs to no team.
    """
    logits = np.asarray(logits, dtype=np.float64)
    smoothing = 1 / (len(logits) + 2)
    right = (1 - 2 * smoothing) * (logits.argmax(axis=1) == targets) + smoothing
    # The gaps of the teams that are not predicted, (tickets, teams - 1), as logarithms.
    gaps = np.sort(logits.max(axis=1, keepdims=True) - logits, axis=1)[:, 1:]
    logarithms = np.log(np.maximum(gaps, 1e-300))

    def loss(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        """The mean loss and its gradient by the logarithms of temperature and exponent."""
        log_temperature, log_exponent = parameters
        exponent = np.exp(log_exponent)
        scaled = np.minimum(logarithms - log_temperature, 700 / exponent)
        bent = np.exp(exponent * scaled)
        log_others = logsumexp(-bent, axis=1)  # of the sum of their weights; that of the predicted team is 1
        value = np.logaddexp(0, log_others) - (1 - right) * log_others
        by_log_others = expit(log_others) - (1 - right)
        steps = np.exp(-bent - log_others[:, None]) * bent * exponent
        by_temperature = by_log_others * steps.sum(axis=1)
        by_exponent = -by_log_others * (steps * scaled).sum(axis=1)
        penalty = PENALTY / len(logits)
        gradient = [by_temperature.mean(), by_exponent.mean() + 2 * penalty * log_exponent]
        return float(value.mean() + penalty * log_exponent**2), np.array(gradient)

    found = minimize(
        loss, np.zeros(2), jac=True, method="L-BFGS-B", bounds=[np.log(TEMPERATURES), np.log(EXPONENTS)]
    )
    temperature, exponent = np.exp(found.x).tolist()
    return temperature, exponent


def cross_fitted_confidence(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The confidence of each ticket (tickets,), with a calibration that was fitted on the other folds."""
    fold = np.random.default_rng(0).permutation(len(logits)) % min(FOLDS, len(logits))
    confidence = np.zeros(len(logits))
    for held_out in np.unique(fold):
        fitted, measured = fold != held_out, fold == held_out
        fit = fit_calibration(logits[fitted], targets[fitted]) if fitted.any() else (1.0, 1.0)
        confidence[measured] = calibrated(logits[measured], *fit).max(axis=1)
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
