"""McNemar's test and the comparison of two bundles."""

import json
import shutil

import pytest
from scipy.stats import binom
from training_examples import ticket_rows, write_csv

from training import compare as compare_command
from training import train as train_command
from training.compare import mcnemar


@pytest.mark.parametrize(("old", "new"), [(0, 10), (3, 12), (7, 7), (20, 4)])
def test_mcnemar_is_twice_the_tail_of_a_fair_coin(old, new):
    assert mcnemar(old, new) == pytest.approx(min(1, 2 * binom.cdf(min(old, new), old + new, 0.5)))
    assert mcnemar(old, new) == mcnemar(new, old)


def test_without_a_distinguishing_ticket_no_precision_is_shown():
    assert mcnemar(0, 0) == 1


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    """A bundle that hardly learned, one that did, and tickets for both."""
    folder = tmp_path_factory.mktemp("compared")
    data = write_csv(folder / "t.csv", ticket_rows(240))
    for name, epochs in (("weak", "1"), ("strong", "12")):
        arguments = ["--data", str(data), "--recipe", "baseline", "--epochs", epochs, "--report", "none"]
        assert train_command.main([*arguments, "--out", str(folder / name)]) == 0
    write_csv(folder / "new.csv", ticket_rows(90, seed=3))
    return folder


def compared(folder, old: str, new: str, capsys) -> dict:
    arguments = [str(folder / old), str(folder / new), "--data", str(folder / "new.csv")]
    assert compare_command.main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_better_bundle_is_named_whichever_comes_first(bundles, capsys):
    there, back = compared(bundles, "weak", "strong", capsys), compared(bundles, "strong", "weak", capsys)
    assert (there["verdict"], back["verdict"]) == ("the new bundle is better", "the new bundle is worse")
    assert there["p_value"] == back["p_value"] < 0.05
    assert there["new"]["accuracy"] == back["old"]["accuracy"] > 0.9


def test_the_counts_add_up(bundles, capsys):
    result = compared(bundles, "weak", "strong", capsys)
    gained = sum(team["gained"] for team in result["per_team"].values())
    lost = sum(team["lost"] for team in result["per_team"].values())
    assert (gained, lost) == (result["only_new_right"], result["only_old_right"])
    assert gained - lost == round(90 * (result["new"]["accuracy"] - result["old"]["accuracy"]))
    assert sum(move[2] for move in result["moves"]) == round(90 * (1 - result["agreement"]))
    assert sum(team["tickets"] for team in result["per_team"].values()) == result["tickets"] == 90


def test_a_bundle_equals_itself(bundles, capsys):
    shutil.copytree(bundles / "weak", bundles / "copy")
    result = compared(bundles, "weak", "copy", capsys)
    assert (result["p_value"], result["agreement"], result["moves"]) == (1, 1, [])
    assert result["verdict"] == "no significant difference"
    arguments = [str(bundles / "weak"), str(bundles / "copy"), "--data", str(bundles / "new.csv")]
    assert compare_command.main(arguments) == 0
    assert "same team for 100.0%" in capsys.readouterr().out
