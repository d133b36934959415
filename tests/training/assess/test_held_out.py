"""Figures on held out tickets: lost teams, the binomial error of a precision, recall of foreign texts."""

import numpy as np
import pytest

from training.assess.held_out import Routed, accuracy, macro_f1, recall, teams_lost
from training.data.tickets import Tickets


def tickets(teams: list[str]) -> Tickets:
    return Tickets(texts=[f"text {row}" for row in range(len(teams))], teams=teams)


def test_macro_f1_counts_the_teams_with_tickets():
    actual = tickets(["a", "a", "b"])
    predicted = np.array(["a", "a", "c"])
    assert accuracy(predicted, actual) == pytest.approx(2 / 3)
    assert macro_f1(predicted, actual) == pytest.approx(0.5)  # a: 1, b: 0


def test_a_lost_team_is_one_that_only_the_other_router_recalls():
    actual = tickets(["a", "b", "c", "d"])
    train = tickets(["a"] * 20 + ["b"] * 20 + ["c"] * 20 + ["d"] * 19)
    ours = np.array(["a", "a", "a", "a"])
    other = np.array(["a", "b", "a", "d"])
    assert teams_lost(ours, other, actual, train) == ["b"]  # neither recalls c; d has too few tickets


def test_a_precision_is_kept_within_the_binomial_error():
    many = Routed(0.95, tickets=400, routed=100, right=91, possible=0.3)
    assert many.least_right == 91  # P(at most 90 of 100) = .028, P(at most 91) = .063
    assert many.coverage == 0.25
    assert Routed(0.95, 400, 2, 2, 0.3).least_right == 1  # P(0 of 2) = .0025, P(at most 1) = .0975


def test_recall_keeps_96_percent_of_what_is_known():
    known = np.arange(100.0)
    assert recall(known, np.array([0.0, 3.0, 50.0, 99.0])) == 0.5
    assert recall(known, known) == pytest.approx(0.04)
