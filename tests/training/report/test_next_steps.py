"""The steps that a report opens with: which, why, in what order, and commands that can be copied."""

import shlex
from typing import Any

import pytest

from training import train
from training.report.next_steps import MOST_STEPS, next_steps
from training.report.page import _steps

COMMAND = ["python", "-m", "training.train", "--data", "my tickets.csv", "--out", "runs/mine"]


def report(**changes: Any) -> dict[str, Any]:
    """The parts of a report that steps are made from, with nothing to do."""
    plain: dict[str, Any] = {
        "suspected_label_errors": {"count": 0, "expected": 0.0, "costs": 0.0},
        "confusions": [],
        "validation": {
            "tickets": 200,
            "coverage": 0.9,
            "per_team": {team: {"tickets": 100, "recall": 0.95} for team in ("refunds", "payments")},
        },
        "data": {
            "train": {
                "tickets": 800,
                "teams": {"refunds": 300, "payments": 500},
                "repetition": {"tickets": 800, "same_template": 3},
            },
            "valid": {"tickets": 200},
        },
        "routers": [{"router": "transformer", "correct": 190}],
        "thresholds": {"precision": 0.95},
        "tradeoff": {"choices": []},
    }
    return {**plain, **changes}


def steps(**changes: Any) -> list[tuple[str, list[str]]]:
    found = next_steps(report(**changes), "runs/mine", COMMAND)
    return [(step.reason, shlex.split(step.command)) for step in found]


def test_a_run_with_nothing_to_mend_is_served() -> None:
    assert [command for _, command in steps()] == [["make", "serve", "BUNDLE=runs/mine"]]


def test_suspected_labels_come_with_their_file_and_what_they_cost() -> None:
    (reason, command), _ = steps(suspected_label_errors={"count": 11, "expected": 8.6, "costs": 0.012})
    assert "11 labels" in reason
    assert "about 9 are wrong" in reason
    assert "1.2 points" in reason
    assert command == [*COMMAND, "--corrections", "runs/mine.label_errors.csv"]


def test_teams_confused_in_both_directions_are_merged_into_the_larger() -> None:
    confusions = [["refunds", "payments", 7], ["payments", "refunds", 4]]
    (reason, command), _ = steps(confusions=confusions)
    assert "'payments' and 'refunds'" in reason
    assert command == [*COMMAND, "--merge-team", "refunds=payments"]
    options = train.parser().parse_args(command[3:])
    assert options.merge_team == [("refunds", "payments")]


def test_one_direction_is_no_reason_to_merge() -> None:
    assert len(steps(confusions=[["refunds", "payments", 7], ["payments", "refunds", 1]])) == 1


def test_a_small_team_that_is_not_found_wants_tickets() -> None:
    validation = {
        "tickets": 200,
        "coverage": 0.9,
        "per_team": {"legal": {"tickets": 4, "recall": 0.25}, "refunds": {"tickets": 196, "recall": 0.9}},
    }
    data = report()["data"]
    data["train"]["teams"] = {"legal": 12, "refunds": 788}
    (reason, command), _ = steps(validation=validation, data=data)
    assert "'legal' has 12 training tickets" in reason
    assert command == [*COMMAND, "--min-tickets", "50"]


@pytest.mark.parametrize(
    ("only_right", "verdict"), [([5, 2], "not significant"), ([25, 4], "more than chance")]
)
def test_a_better_baseline_is_judged_by_the_tickets_that_only_one_has_right(
    only_right: list[int], verdict: str
) -> None:
    more = only_right[0] - only_right[1]
    routers = [
        {"router": "transformer", "correct": 170},
        {"router": "TF-IDF + SVM", "correct": 170 + more, "only_right": only_right},
    ]
    (reason, command), _ = steps(routers=routers)
    assert f"right on {more} validation tickets more" in reason
    assert verdict in reason
    assert command == ["python", "-m", "training.evaluate", "--bundle", "runs/mine", "--data", "NEWER.csv"]


def test_a_precision_that_routes_little_names_one_that_routes_more() -> None:
    validation = {**report()["validation"], "coverage": 0.04}
    choices = [
        {"precision": 0.8, "score": 1.0, "coverage": 0.7},
        {"precision": 0.9, "score": 2.0, "coverage": 0.55},
        {"precision": 0.95, "score": 3.0, "coverage": 0.04},
        {"precision": 0.99, "score": None, "coverage": 0.0},
    ]
    (reason, command), _ = steps(validation=validation, tradeoff={"choices": choices})
    assert "4% of the tickets are routed; with 0.9 it is 55%" in reason
    assert command == ["LARKFIELD_PRECISION=0.9", "make", "serve", "BUNDLE=runs/mine"]


def test_repeated_templates_ask_for_validation_by_time() -> None:
    data = report()["data"]
    data["train"]["repetition"] = {"tickets": 800, "same_template": 400}
    (reason, command), _ = steps(data=data)
    assert reason.startswith("50% of the training tickets")
    assert command == [*COMMAND, "--time-column", "COLUMN"]


def test_there_are_at_most_five_and_the_largest_gain_is_first() -> None:
    data = report()["data"]
    data["train"]["repetition"] = {"tickets": 800, "same_template": 400}
    data["train"]["teams"] = {"refunds": 30, "payments": 20, "legal": 750}
    validation = {
        "tickets": 200,
        "coverage": 0.04,
        "per_team": {"refunds": {"tickets": 20, "recall": 0.4}, "payments": {"tickets": 10, "recall": 0.4}},
    }
    found = steps(
        data=data,
        validation=validation,
        suspected_label_errors={"count": 60, "expected": 50.0, "costs": 0.2},
        confusions=[["refunds", "payments", 7], ["payments", "refunds", 4]],
        routers=[
            {"router": "transformer", "correct": 100},
            {"router": "SVM", "correct": 130, "only_right": [40, 10]},
        ],
        tradeoff={"choices": [{"precision": 0.8, "score": 1.0, "coverage": 0.7}]},
    )
    assert len(found) == MOST_STEPS
    assert "Correct the 60 labels" in found[0][0]
    assert found[-1][1][0] == "make"


def test_the_page_shows_reasons_and_commands_as_text() -> None:
    html = _steps({"next_steps": [{"reason": "'<b>' is confused", "command": "python -m x '<b>'"}]})
    assert "<b>" not in html
    assert "<pre><code>python -m x" in html
    assert _steps({"next_steps": []}) == ""
