"""The trade-off between precision and coverage: its guarantee on drawn tickets, and cases by hand."""

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binom

from models.decision import calibrated
from training.assess.thresholds import (
    PRECISIONS,
    choose_penalty,
    cross_fitted_shifts,
    fit_shifts,
    fit_tradeoff,
    joint_bounds,
    log_odds,
    precision_bound,
    rank,
    routed_for,
)

TEAMS = 6


def tradeoff_of(confidence, correct, answered=None, teams=1):
    count = len(confidence)
    answered = np.zeros(count, int) if answered is None else answered
    return fit_tradeoff(confidence, correct, answered, np.ones(count, bool), teams)


class Desk:
    """Tickets whose probability to be right is known: it rises with the log-odds, and differs by team."""

    def __init__(self, spread: float, team_effect: float = 0.0) -> None:
        self.spread = spread
        self.effects = team_effect * np.linspace(-1, 1, TEAMS)

    def draw(self, count, generator):
        """(confidence, correct, answered, probability to be right), each (count,)."""
        answered = generator.integers(0, TEAMS, count)
        odds = generator.normal(1.0, self.spread, count)
        right = expit(0.8 * odds + self.effects[answered])
        return expit(odds), generator.random(count) < right, answered, right


def truth(desk, tradeoff, precision, generator):
    """The share right among those of very many tickets that would be routed; None where none would."""
    confidence, _, answered, right = desk.draw(100_000, generator)
    thresholds = tradeoff.thresholds(precision)
    if thresholds.confidence is None:
        return None
    needed = np.array([thresholds.of(team) for team in range(TEAMS)])
    routed = confidence >= needed[answered]
    return float(right[routed].mean())


@pytest.mark.parametrize("desk", [Desk(1.5), Desk(2.0, team_effect=1.5)], ids=["alike", "teams differ"])
def test_the_guarantee_holds_on_tickets_that_nobody_calibrated_on(desk):
    """Over many draws of 500 validation tickets.

    On average no more of the routed tickets are wrong than was asked for (none, where none is routed). The
    lower bounds of all precisions hold together in at least 95 % of the draws (less what chance takes).
    """
    generator = np.random.default_rng(0)
    draws, failed = 200, 0
    wrong = {0.8: np.zeros(draws), 0.9: np.zeros(draws), 0.95: np.zeros(draws)}
    for draw in range(draws):
        confidence, correct, answered, _ = desk.draw(500, generator)
        tradeoff = tradeoff_of(confidence, correct, answered, TEAMS)
        broken = False
        for precision, shares in wrong.items():
            reached = truth(desk, tradeoff, precision, generator)
            if reached is not None:
                shares[draw] = 1 - reached
                broken |= reached < tradeoff.choice(precision).at_least
        failed += broken
    for precision, shares in wrong.items():
        assert np.count_nonzero(shares) > draws / 2
        assert shares.mean() <= 1 - precision + 2 * shares.std() / draws**0.5
    assert failed <= binom.ppf(0.99, draws, 0.05)


def test_little_is_given_away():
    """What is routed is close to what the best threshold, chosen with full knowledge, would route."""
    desk, generator = Desk(2.0), np.random.default_rng(1)
    odds = np.sort(generator.normal(1.0, 2.0, 200_000))[::-1]
    right = np.cumsum(expit(0.8 * odds)) / np.arange(1, len(odds) + 1)
    for precision in (0.9, 0.95):
        best = np.flatnonzero(right >= precision)[-1] / len(odds)
        shares = []
        for _ in range(60):
            confidence, correct, answered, _ = desk.draw(600, generator)
            shares.append(tradeoff_of(confidence, correct, answered, TEAMS).choice(precision).coverage)
        assert np.mean(shares) >= best - 0.05


@pytest.mark.parametrize("precision", [0.8, 0.9])
def test_without_the_extra_ticket_too_many_would_be_wrong(precision):
    """The count that the guarantee rests on: the same draws break the promise without it."""
    desk, generator, draws = Desk(1.0), np.random.default_rng(2), 300
    with_it, without = np.zeros(draws), np.zeros(draws)
    for draw in range(draws):
        confidence, correct, answered, probability = desk.draw(100, generator)
        ranked = rank(log_odds(confidence), correct.astype(float), answered)
        wrong = np.cumsum(1 - probability[np.argsort(-confidence, kind="stable")]) / np.arange(1, 101)
        if routed := routed_for(precision, ranked):
            with_it[draw] = wrong[routed - 1]
        enough = np.flatnonzero(ranked.right >= precision * np.arange(1, 101))
        if len(enough):
            without[draw] = wrong[enough[-1]]
    assert with_it.mean() <= 1 - precision < without.mean()


# -------------------------------------------------------------------------------------------- teams


def two_teams(count, generator):
    """Equally sure of both teams; one is right 99 times of 100, the other every second time."""
    answered = generator.integers(0, 2, count)
    confidence = generator.uniform(0.6, 0.95, count)
    return confidence, generator.random(count) < np.where(answered == 0, 0.99, 0.5), answered


def test_a_team_that_is_always_right_does_not_wait_for_one_that_never_is():
    confidence, correct, answered = two_teams(600, np.random.default_rng(0))
    tradeoff = tradeoff_of(confidence, correct, answered, 2)
    right, wrong = tradeoff.thresholds(0.95).teams
    assert right < 0.65
    assert wrong > 0.9
    choice = tradeoff.choice(0.95)
    assert choice.team_routed[0] > 0.9 * tradeoff.team_tickets[0]
    assert choice.team_routed[1] < 0.1 * tradeoff.team_tickets[1]
    assert choice.team_at_least[0] > 0.9


def test_teams_that_are_alike_share_one_threshold():
    confidence, correct, answered, _ = Desk(1.5).draw(500, np.random.default_rng(3))
    odds = log_odds(confidence) * 0.8
    assert choose_penalty(odds, correct.astype(float), answered, TEAMS) is None
    assert tradeoff_of(expit(odds), correct, answered, TEAMS).thresholds(0.9).teams == []


def test_a_team_with_few_tickets_stays_near_the_others():
    odds, correct = np.zeros(103), np.ones(103)
    team = np.array([0] * 100 + [1] * 3)
    many, few = fit_shifts(odds, correct, team, 2, penalty=3.0)
    assert 0.3 < few < 0.6
    assert many > 2
    assert fit_shifts(odds, correct, team, 3, penalty=3.0)[2] == 0  # without tickets


def test_shifts_are_cross_fitted():
    """A ticket's own outcome changes the shift of the other folds only."""
    odds, team = np.zeros(50), np.zeros(50, int)
    correct = np.ones(50)
    before = cross_fitted_shifts(odds, correct, team, 1, penalty=1.0)
    correct[7] = 0
    after = cross_fitted_shifts(odds, correct, team, 1, penalty=1.0)
    changed = before != after
    assert not changed[7]
    assert changed.sum() == 40


# ------------------------------------------------------------------------------------- cases by hand


@pytest.mark.parametrize(("right", "routed"), [(299, 299), (95, 100), (1, 2), (3, 50)])
def test_the_bound_is_where_such_luck_has_five_percent(right, routed):
    bound = float(precision_bound(np.array([right]), np.array([routed]))[0])
    assert binom.sf(right - 1, routed, bound) == pytest.approx(0.05, abs=1e-9)


def test_the_bound_of_no_right_ticket_is_zero():
    assert precision_bound(np.array([0]), np.array([10]))[0] == 0


def test_99_right_tickets_are_the_fewest_that_route_at_99_percent():
    """99 / (99 + 1)."""
    confidence = np.linspace(0.6, 0.9, 99)
    assert tradeoff_of(confidence, np.ones(99, bool)).choice(0.99).coverage == 1
    fewer = tradeoff_of(confidence[:98], np.ones(98, bool))
    assert fewer.choice(0.99).score is None
    assert fewer.choice(0.98).coverage == 1


def test_the_threshold_leaves_the_mistakes_out():
    confidence = np.linspace(0.001, 0.999, 1_000)
    correct = confidence > 0.3
    tradeoff = tradeoff_of(confidence, correct)
    threshold = tradeoff.thresholds(0.99).confidence
    kept = confidence >= threshold
    assert tradeoff.choice(0.99).coverage == pytest.approx(kept.mean())
    assert correct[kept].sum() >= 0.99 * (kept.sum() + 1)
    one_more = confidence >= confidence[confidence < threshold].max()
    assert correct[one_more].sum() < 0.99 * (one_more.sum() + 1)


def test_equal_confidences_are_routed_together():
    confidence = np.array([0.9] * 300 + [0.5] * 200)
    correct = np.array([True] * 300 + [True] * 20 + [False] * 180)
    tradeoff = tradeoff_of(confidence, correct)
    assert tradeoff.choice(0.95).coverage == 0.6
    assert 0.5 < tradeoff.thresholds(0.95).confidence < 0.9


def test_a_higher_precision_never_routes_more():
    generator = np.random.default_rng(4)
    for _ in range(20):
        confidence, correct, answered, _ = Desk(1.5, 1.0).draw(int(generator.integers(1, 400)), generator)
        tradeoff = tradeoff_of(confidence, correct, answered, TEAMS)
        coverage = [choice.coverage for choice in tradeoff.choices]
        assert coverage == sorted(coverage, reverse=True)
        shown = [choice.score is not None for choice in tradeoff.choices]
        assert shown == sorted(shown, reverse=True)
        assert [choice.precision for choice in tradeoff.choices] == list(PRECISIONS)
        for choice in tradeoff.choices:
            assert sum(choice.team_routed) == pytest.approx(choice.coverage * tradeoff.tickets)


def test_unusual_tickets_are_never_counted_as_routed():
    confidence, correct = np.full(200, 0.9), np.ones(200, bool)
    usual = np.arange(200) < 120
    tradeoff = fit_tradeoff(confidence, correct, np.zeros(200, int), usual, 1)
    assert tradeoff.choice(0.95).coverage == 0.6
    assert tradeoff.team_tickets == [200]
    nothing = fit_tradeoff(confidence, correct, np.zeros(200, int), np.zeros(200, bool), 1)
    assert nothing.shown == []
    assert nothing.thresholds(nothing.default()).confidence is None


@pytest.mark.parametrize("tickets", [1, 2, 5, 18])
def test_a_handful_of_tickets_routes_none(tickets):
    tradeoff = tradeoff_of(np.full(tickets, 0.8), np.ones(tickets, bool))
    assert tradeoff.choice(0.95).score is None
    assert "cannot show a precision of 0.95" in tradeoff.caution(0.95)


def test_a_confidence_of_one_is_no_infinity():
    confidence = calibrated(np.array([[900.0, 0.0]] * 200), 1.0).max(axis=1)
    tradeoff = tradeoff_of(confidence, np.ones(200, bool))
    assert tradeoff.choice(0.99).coverage == 1
    assert tradeoff.thresholds(0.99).confidence <= 1


def test_joint_bounds_are_below_the_bounds_of_one():
    right = np.cumsum(np.random.default_rng(5).random(400) < np.linspace(1, 0.6, 400))
    counts = np.arange(1, 401)
    assert (joint_bounds(right) <= precision_bound(right, counts).max() + 1e-12).all()
    assert (np.diff(joint_bounds(right)) <= 1e-12).all()
    assert joint_bounds(right)[-1] < precision_bound(right, counts)[-1]
    assert len(joint_bounds(np.zeros(0))) == 0
