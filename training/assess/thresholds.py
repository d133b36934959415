"""Fits the thresholds for routing without a person: the trade-off between precision and coverage.

Validation tickets are ranked by the log-odds of their confidence plus a shift for the predicted team. For a
target precision p, as many of them as possible are routed such that

    right / (routed + 1) >= p,

so that the precision would still be p if one more routed ticket were wrong. This is conformal risk control
(Angelopoulos et al., 2022) for the loss "routed and wrong", with the count of conformal selection (Jin and
Candes, 2023): averaged over draws of the validation tickets, at most 1 - p of the routed tickets are wrong
(0 if none is routed), although the threshold is chosen on the same tickets.

The lower bounds quantify the sampling error of few validation tickets. They are exact binomial bounds
(Clopper and Pearson, 1934) at a few numbers of routed tickets, with a Bonferroni correction, so that all of
them hold at once with a probability of 95 %, whichever threshold is chosen. Between these numbers a bound
holds if tickets with higher scores are right at least as often.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, logit
from scipy.stats import beta

from models.tradeoff import HIGHEST_PRECISION, LOWEST_PRECISION, REVIEWED_PER_HOUR, Choice, Tradeoff

CERTAINTY = 0.95
PRECISIONS = (
    *(LOWEST_PRECISION, 0.6, 0.7, 0.75),
    *(percent / 100 for percent in range(80, 100)),
    *(0.995, HIGHEST_PRECISION),
)
PENALTIES = (10.0, 3.0, 1.0, 0.3)  # L2 penalties on the shifts; the larger, the closer the shifts are to 0
FOLDS = 5
EPSILON = 1e-12  # confidences are clipped to EPSILON and 1 - EPSILON
BOUND_STEP = 1.25  # ratio of successive numbers of routed tickets with a bound
FEWEST_BOUNDED = 20  # smallest such number


def precision_bound(right: np.ndarray, routed: np.ndarray, certainty: float = CERTAINTY) -> np.ndarray:
    """One-sided lower bound of the share `right` / `routed`, both counts, elementwise."""
    right, routed = np.asarray(right), np.asarray(routed)
    bound = beta.ppf(1 - certainty, np.maximum(right, 1), routed - right + 1)
    return np.where(right > 0, bound, 0.0)


@dataclass(frozen=True)
class Ranked:
    """In-scope validation tickets in falling order of their scores; all arrays (tickets,).

    `right[i]` counts the right ones among the first i + 1, `bounds[i]` is the lower bound of their precision,
    and `cuts[i]` is False if the next ticket has the same score, so that no threshold can separate them.
    """

    scores: np.ndarray
    correct: np.ndarray
    team: np.ndarray
    right: np.ndarray
    bounds: np.ndarray
    cuts: np.ndarray


def rank(scores: np.ndarray, correct: np.ndarray, team: np.ndarray) -> Ranked:
    """Sort tickets, arrays (tickets,), by their scores."""
    order = np.argsort(-scores, kind="stable")
    ordered, right = scores[order], np.cumsum(correct[order])
    cuts = np.append(ordered[1:] < ordered[:-1], True)[: len(order)]
    return Ranked(ordered, correct[order], team[order], right, joint_bounds(right), cuts)


def fit_tradeoff(
    confidence: np.ndarray, correct: np.ndarray, answered: np.ndarray, in_scope: np.ndarray, teams: int
) -> Tradeoff:
    """The trade-off of validation tickets, all arrays (tickets,).

    `answered` is the index of the predicted team, below `teams`; tickets that are not `in_scope` go to review
    at any confidence.
    """
    team_tickets = np.bincount(answered, minlength=teams)
    odds, right, team = log_odds(confidence[in_scope]), correct[in_scope].astype(float), answered[in_scope]
    level = with_common_shift(odds, right)
    penalty = choose_penalty(level, right, team, teams)
    shifts: list[float] = []
    scores = odds
    if penalty is not None:
        shifts = [round(float(shift), 4) for shift in fit_shifts(level, right, team, teams, penalty)]
        scores = odds + cross_fitted_shifts(level, right, team, teams, penalty)
    ranked = rank(scores, right, team)
    return Tradeoff(
        tickets=len(confidence),
        team_tickets=team_tickets.tolist(),
        shifts=shifts,
        choices=[_choice(precision, ranked, teams, len(confidence)) for precision in PRECISIONS],
    )


def log_odds(confidence: np.ndarray) -> np.ndarray:
    odds: np.ndarray = logit(np.clip(confidence, EPSILON, 1 - EPSILON))
    return odds


def fit_shifts(
    odds: np.ndarray, correct: np.ndarray, team: np.ndarray, teams: int, penalty: float
) -> np.ndarray:
    """For each team the shift of the log-odds (tickets,) with the largest penalized likelihood of `correct`.

    penalty/2 * shift^2 is a normal prior with variance 1/penalty; it keeps teams with few tickets near 0.
    """
    shifts = np.zeros(teams)
    for _ in range(30):  # steps of Newton's method
        expected = expit(odds + shifts[team])
        gradient = np.bincount(team, correct - expected, teams) - penalty * shifts
        curvature = np.bincount(team, expected * (1 - expected), teams) + penalty
        step = np.clip(gradient / curvature, -1, 1)
        shifts += step
        if np.abs(step).max() < 1e-6:
            break
    return shifts


def with_common_shift(odds: np.ndarray, correct: np.ndarray) -> np.ndarray:
    """The log-odds (tickets,) plus the best common shift of all teams, which does not change their order."""
    common = fit_shifts(odds, correct, np.zeros(len(odds), int), 1, penalty=0.01)
    return np.asarray(odds + common)


def cross_fitted_shifts(
    odds: np.ndarray, correct: np.ndarray, team: np.ndarray, teams: int, penalty: float
) -> np.ndarray:
    """The shift of each ticket's team (tickets,), fitted on the other folds."""
    fold = np.random.default_rng(0).permutation(len(odds)) % FOLDS
    shifts = np.zeros(len(odds))
    for held_out in range(FOLDS):
        fitted, measured = fold != held_out, fold == held_out
        of_teams = fit_shifts(odds[fitted], correct[fitted], team[fitted], teams, penalty)
        shifts[measured] = of_teams[team[measured]]
    return shifts


def choose_penalty(odds: np.ndarray, correct: np.ndarray, team: np.ndarray, teams: int) -> float | None:
    """The penalty with the smallest cross-fitted log loss; None if no shifts are better.

    Shifts must be better by more than one standard error of the difference.
    """
    if len(odds) < 2 * FOLDS or len(set(team.tolist())) < 2:
        return None

    def losses(shifts: np.ndarray | float) -> np.ndarray:
        score = odds + shifts
        found: np.ndarray = np.logaddexp(0, score) - correct * score
        return found

    without = losses(0.0)
    gains = {
        penalty: without - losses(cross_fitted_shifts(odds, correct, team, teams, penalty))
        for penalty in PENALTIES
    }
    best = max(gains, key=lambda penalty: float(gains[penalty].mean()))
    error = gains[best].std(ddof=1) / math.sqrt(len(odds))
    return best if gains[best].mean() > error else None


def routed_for(precision: float, ranked: Ranked) -> int:
    """How many of the ranked tickets to route; 0 if they do not show this precision."""
    routed = np.arange(1, len(ranked.right) + 1)
    enough = np.flatnonzero(ranked.cuts & (ranked.right >= precision * (routed + 1) - 1e-9))
    return int(enough[-1]) + 1 if len(enough) else 0


def joint_bounds(right: np.ndarray, certainty: float = CERTAINTY) -> np.ndarray:
    """Simultaneous lower bounds (tickets,) of the precision of the first 1, 2, ... ranked tickets.

    `right` (tickets,) counts the right ones among them.
    """
    tickets = len(right)
    if not tickets:
        return np.zeros(0)
    steps = math.floor(math.log(max(1.0, tickets / FEWEST_BOUNDED), BOUND_STEP)) + 1
    counts = np.unique([math.ceil(tickets / BOUND_STEP**step) for step in range(steps)])
    bounds = precision_bound(right[counts - 1], counts, 1 - (1 - certainty) / len(counts))
    # A bound for more tickets also holds for fewer: higher scores are assumed to be right at least as often.
    best_from = np.maximum.accumulate(bounds[::-1])[::-1]
    joint: np.ndarray = best_from[np.searchsorted(counts, np.arange(1, tickets + 1))]
    return joint


def _choice(precision: float, ranked: Ranked, teams: int, tickets: int) -> Choice:
    """The threshold and figures for one target precision; `tickets` counts those out of scope too."""
    routed = routed_for(precision, ranked)
    if not routed:
        return Choice(precision=precision)
    scores, team = ranked.scores, ranked.team[:routed]
    # The threshold is between the last routed ticket and the first that is not.
    below = scores[routed] if routed < len(scores) else scores[-1] - 1e-3
    least_sure = scores[max(0, routed - max(REVIEWED_PER_HOUR, tickets // 20)) : routed]
    team_routed = np.bincount(team, minlength=teams)
    team_right = np.bincount(team, ranked.correct[:routed], teams).astype(int)
    return Choice(
        precision=precision,
        score=float((scores[routed - 1] + below) / 2),
        coverage=routed / tickets,
        at_least=round(float(ranked.bounds[routed - 1]), 4),
        doubtful=round(float((1 - expit(least_sure)).mean()), 4),
        team_routed=team_routed.tolist(),
        team_at_least=[round(float(bound), 4) for bound in precision_bound(team_right, team_routed)],
    )
