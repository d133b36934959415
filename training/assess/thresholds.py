"""When a ticket may be routed without a person: the trade-off between precision and coverage.

Tickets are put in one order, by the log-odds of their confidence plus a shift for the team that is answered.
For a wanted precision p the most of them are routed at which

    right / (routed + 1) >= p,

that is, one more routed ticket, a wrong one, would still leave enough right. This is conformal risk control
(Angelopoulos et al., 2022) for the loss "routed and wrong", with the count that conformal selection (Jin and
Candes, 2023) uses: on average over validation tickets drawn anew, at most 1 - p of the routed tickets are
wrong (0 where none is routed), although every threshold was tried.

Luck on few validation tickets is what the lower bounds tell: exact binomial bounds (Clopper and Pearson,
1934) at a few numbers of routed tickets, which share the error of 5 % (Bonferroni), so that they hold
together whichever threshold is chosen. Between these numbers a bound holds if surer tickets are not less
often right.
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
PULLS = (10.0, 3.0, 1.0, 0.3)  # towards a shift of 0; the larger, the more teams are alike
FOLDS = 5
SURE = 1e-12  # no confidence is nearer to 0 or 1
BOUND_STEP = 1.25  # from one number of routed tickets with a bound of its own to the next
FEWEST_BOUNDED = 20


def precision_bound(right: np.ndarray, routed: np.ndarray, certainty: float = CERTAINTY) -> np.ndarray:
    """One-sided lower bound of a share: `right` of `routed`, both counts, elementwise."""
    right, routed = np.asarray(right), np.asarray(routed)
    bound = beta.ppf(1 - certainty, np.maximum(right, 1), routed - right + 1)
    return np.where(right > 0, bound, 0.0)


@dataclass(frozen=True)
class Ranked:
    """Usual validation tickets, the surest first; all arrays (tickets,).

    `right` counts the right ones among the 1, 2, ... surest, `bounds` are the lower bounds of their
    precision, and `cuts` says where a threshold can cut.
    """

    scores: np.ndarray
    correct: np.ndarray
    team: np.ndarray
    right: np.ndarray
    bounds: np.ndarray
    cuts: np.ndarray


def rank(scores: np.ndarray, correct: np.ndarray, team: np.ndarray) -> Ranked:
    """Put tickets, arrays (tickets,), into the order of their scores."""
    order = np.argsort(-scores, kind="stable")
    ordered, right = scores[order], np.cumsum(correct[order])
    cuts = np.append(ordered[1:] < ordered[:-1], True)[: len(order)]
    return Ranked(ordered, correct[order], team[order], right, joint_bounds(right), cuts)


def fit_tradeoff(
    confidence: np.ndarray, correct: np.ndarray, answered: np.ndarray, usual: np.ndarray, teams: int
) -> Tradeoff:
    """The trade-off of validation tickets, all arrays (tickets,).

    `answered` is the place of the team that is answered, of `teams`; `usual` is False for tickets that
    go to review whatever their confidence.
    """
    team_tickets = np.bincount(answered, minlength=teams)
    odds, right, team = log_odds(confidence[usual]), correct[usual].astype(float), answered[usual]
    level = levelled(odds, right)
    pull = choose_pull(level, right, team, teams)
    shifts: list[float] = []
    scores = odds
    if pull is not None:
        shifts = [round(float(shift), 4) for shift in fit_shifts(level, right, team, teams, pull)]
        scores = odds + cross_fitted_shifts(level, right, team, teams, pull)
    ranked = rank(scores, right, team)
    return Tradeoff(
        tickets=len(confidence),
        team_tickets=team_tickets.tolist(),
        shifts=shifts,
        choices=[_choice(precision, ranked, teams, len(confidence)) for precision in PRECISIONS],
    )


def log_odds(confidence: np.ndarray) -> np.ndarray:
    odds: np.ndarray = logit(np.clip(confidence, SURE, 1 - SURE))
    return odds


def fit_shifts(
    odds: np.ndarray, correct: np.ndarray, team: np.ndarray, teams: int, pull: float
) -> np.ndarray:
    """For each team the shift of the log-odds (tickets,) that makes `correct` most likely, pulled to 0.

    The penalty pull/2 * shift^2 is a normal prior with variance 1/pull: a team with few tickets stays near 0.
    """
    shifts = np.zeros(teams)
    for _ in range(30):  # steps of Newton's method
        expected = expit(odds + shifts[team])
        gradient = np.bincount(team, correct - expected, teams) - pull * shifts
        curvature = np.bincount(team, expected * (1 - expected), teams) + pull
        step = np.clip(gradient / curvature, -1, 1)
        shifts += step
        if np.abs(step).max() < 1e-6:
            break
    return shifts


def levelled(odds: np.ndarray, correct: np.ndarray) -> np.ndarray:
    """The log-odds (tickets,) with what all teams have in common added: it would not change their order."""
    common = fit_shifts(odds, correct, np.zeros(len(odds), int), 1, pull=0.01)
    return np.asarray(odds + common)


def cross_fitted_shifts(
    odds: np.ndarray, correct: np.ndarray, team: np.ndarray, teams: int, pull: float
) -> np.ndarray:
    """The shift of each ticket (tickets,), fitted on the other folds: no ticket speaks for itself."""
    fold = np.random.default_rng(0).permutation(len(odds)) % FOLDS
    shifts = np.zeros(len(odds))
    for held_out in range(FOLDS):
        fitted, measured = fold != held_out, fold == held_out
        of_teams = fit_shifts(odds[fitted], correct[fitted], team[fitted], teams, pull)
        shifts[measured] = of_teams[team[measured]]
    return shifts


def choose_pull(odds: np.ndarray, correct: np.ndarray, team: np.ndarray, teams: int) -> float | None:
    """The pull with the smallest cross-fitted log loss; None: teams are better treated alike.

    Shifts have to be better by more than one standard error of the difference.
    """
    if len(odds) < 2 * FOLDS or len(set(team.tolist())) < 2:
        return None

    def losses(shifts: np.ndarray | float) -> np.ndarray:
        score = odds + shifts
        found: np.ndarray = np.logaddexp(0, score) - correct * score
        return found

    alike = losses(0.0)
    gains = {pull: alike - losses(cross_fitted_shifts(odds, correct, team, teams, pull)) for pull in PULLS}
    best = max(gains, key=lambda pull: float(gains[pull].mean()))
    error = gains[best].std(ddof=1) / math.sqrt(len(odds))
    return best if gains[best].mean() > error else None


def routed_for(precision: float, ranked: Ranked) -> int:
    """How many of the surest tickets to route; 0: the precision cannot be shown."""
    routed = np.arange(1, len(ranked.right) + 1)
    enough = np.flatnonzero(ranked.cuts & (ranked.right >= precision * (routed + 1) - 1e-9))
    return int(enough[-1]) + 1 if len(enough) else 0


def joint_bounds(right: np.ndarray, certainty: float = CERTAINTY) -> np.ndarray:
    """Lower bounds (tickets,) of the precision of the 1, 2, ... surest tickets that hold together.

    `right` (tickets,) counts the right ones among them.
    """
    tickets = len(right)
    if not tickets:
        return np.zeros(0)
    steps = math.floor(math.log(max(1.0, tickets / FEWEST_BOUNDED), BOUND_STEP)) + 1
    counts = np.unique([math.ceil(tickets / BOUND_STEP**step) for step in range(steps)])
    bounds = precision_bound(right[counts - 1], counts, 1 - (1 - certainty) / len(counts))
    # The surest are at least as right as they are together with less sure ones.
    best_from = np.maximum.accumulate(bounds[::-1])[::-1]
    joint: np.ndarray = best_from[np.searchsorted(counts, np.arange(1, tickets + 1))]
    return joint


def _choice(precision: float, ranked: Ranked, teams: int, tickets: int) -> Choice:
    """What `precision` means for these tickets, of `tickets` altogether."""
    routed = routed_for(precision, ranked)
    if not routed:
        return Choice(precision=precision)
    scores, team = ranked.scores, ranked.team[:routed]
    # Between the last ticket that is routed and the first that is not.
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
