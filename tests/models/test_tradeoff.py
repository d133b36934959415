"""Choosing a precision from a trade-off."""

from __future__ import annotations

import pytest

from models.tradeoff import Choice, PrecisionError, Thresholds, Tradeoff


def choice(precision: float, coverage: float, score: float = 0.0) -> Choice:
    return Choice(
        precision=precision,
        score=score,
        coverage=coverage,
        at_least=precision - 0.05,
        team_routed=[int(100 * coverage), 0],
        team_at_least=[0.9, 0.0],
    )


def tradeoff(*choices: Choice, shifts: list[float] | None = None) -> Tradeoff:
    return Tradeoff(tickets=100, team_tickets=[60, 40], shifts=shifts or [], choices=list(choices))


NEVER = Choice(precision=0.99)
USUAL = tradeoff(choice(0.8, 0.7), choice(0.9, 0.4), choice(0.95, 0.2), choice(0.98, 0.05), NEVER)


def test_the_default_is_the_highest_that_routes_a_tenth() -> None:
    assert USUAL.default() == 0.95
    assert (
        tradeoff(choice(0.9, 0.1), choice(0.95, 0.0999), choice(0.98, 0.01), Choice(precision=0.99)).default()
        == 0.9
    )
    little = tradeoff(choice(0.8, 0.3), choice(0.9, 0.02), Choice(precision=0.95), Choice(precision=0.99))
    assert little.default() == 0.9  # and `caution` says what would route more
    assert "0.9 routes only 2.0%" in little.caution(0.9)
    assert "0.8 routes 30.0%" in little.caution(0.9)


def test_a_precision_between_two_is_the_higher_one() -> None:
    assert USUAL.choice(0.91).precision == 0.95
    assert USUAL.choice(0.9).precision == 0.9
    assert USUAL.choice(0.5).precision == 0.8
    assert USUAL.thresholds(0.91).precision == 0.91  # what was asked for


def test_beyond_the_highest_is_refused() -> None:
    with pytest.raises(PrecisionError, match=r"the highest to ask for is 0\.99"):
        USUAL.choice(0.995)


def test_what_cannot_be_shown_routes_nothing_and_says_what_can() -> None:
    thresholds = USUAL.thresholds(0.99)
    assert (thresholds.confidence, thresholds.of(0), thresholds.coverage) == (None, None, 0)
    sentence = USUAL.caution(0.99)
    assert "cannot show a precision of 0.99" in sentence
    assert "0.98 routes 5.0%; 0.95 routes 20.0%; 0.9 routes 40.0%; 0.8 routes 70.0%" in sentence
    assert USUAL.caution(0.95) == ""
    assert tradeoff(Choice(precision=0.9)).caution(0.9).endswith("they can: none")


def test_a_team_with_a_positive_shift_has_a_lower_threshold() -> None:
    held = tradeoff(choice(0.9, 0.4, score=1.0), shifts=[0.5, -2.0])
    thresholds = held.thresholds(0.9)
    assert thresholds.confidence == pytest.approx(0.7310586)
    assert thresholds.teams == pytest.approx([0.6224593, 0.9525741])
    assert [thresholds.of(0), thresholds.of(1)] == thresholds.teams


def test_without_shifts_all_teams_have_one_threshold() -> None:
    thresholds = tradeoff(choice(0.9, 0.4, score=-800.0)).thresholds(0.9)
    assert thresholds == Thresholds(confidence=0.0, precision=0.9, at_least=0.85, coverage=0.4)
    assert thresholds.of(1) == 0.0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"choices": [choice(0.9, 0.1), choice(0.8, 0.2)]}, "rising order"),
        ({"choices": [choice(0.9, 0.1), choice(0.9, 0.2)]}, "rising order"),
        ({"shifts": [0.1]}, "one number for each team"),
        ({"choices": [Choice(precision=0.9, score=1.0)]}, "figures for each team"),
        ({"choices": []}, "at least 1"),
    ],
)
def test_a_trade_off_that_does_not_fit_together(changes: dict[str, object], reason: str) -> None:
    values = {"tickets": 100, "team_tickets": [60, 40], "shifts": [], "choices": [choice(0.9, 0.4)]}
    with pytest.raises(ValueError, match=reason):
        Tradeoff(**(values | changes))
