"""Everyday tickets of 2 to 12 words, and short texts that belong to no team, against the shipped bundle.

`short/tickets.txt` (team, tab, text) and `short/no_team.txt` were written for this test. Every other line,
from the first on, was read while the recipe was made; the rest was kept aside.
"""

from pathlib import Path

import pytest

from models.bundle import Bundle, load_bundle
from models.text import join
from training.assess.evaluation import Answer, answer

FOLDER = Path(__file__).parent / "short"
BUNDLE = Path(__file__).parents[2] / "models" / "larkfield"


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return load_bundle(BUNDLE)


def lines(name: str) -> list[str]:
    return (FOLDER / name).read_text(encoding="utf-8").splitlines()


def answers(bundle: Bundle, texts: list[str]) -> list[Answer]:
    return answer(bundle, [join(None, text).text for text in texts]).tickets


def test_the_sets_are_short_and_even() -> None:
    teams = [line.split("\t")[0] for line in lines("tickets.txt")]
    assert {team: teams.count(team) for team in set(teams)} == dict.fromkeys(
        ("delivery", "returns", "payment", "warranty", "account"), 60
    )
    assert len(lines("no_team.txt")) >= 300
    assert all(1 < len(line.split("\t")[1].split()) <= 12 for line in lines("tickets.txt"))


@pytest.mark.parametrize(("first", "right"), [(0, 0.97), (1, 0.92)])
def test_everyday_tickets_are_routed(bundle: Bundle, first: int, right: float) -> None:
    teams, texts = zip(*(line.split("\t") for line in lines("tickets.txt")[first::2]), strict=True)
    found = answers(bundle, list(texts))
    routed = [one for one in found if one.decision == "route"]
    wrong = sum(one.decision == "route" and one.team != team for one, team in zip(found, teams, strict=True))
    assert sum(one.team == team for one, team in zip(found, teams, strict=True)) / len(teams) >= right
    assert len(routed) / len(teams) >= 0.85
    assert wrong / len(routed) <= 0.02


@pytest.mark.parametrize("first", [0, 1])
def test_short_texts_of_no_team_go_to_review(bundle: Bundle, first: int) -> None:
    found = answers(bundle, lines("no_team.txt")[first::2])
    assert sum(one.decision == "review" for one in found) / len(found) >= 0.95
