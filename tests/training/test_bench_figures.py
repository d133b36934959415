"""The table of targets: which targets are met, what is held out, means over seeds, speed, a whole run."""

import json

import numpy as np
import pytest
from training_examples import ticket_rows, write_csv

from models.bundle import load_bundle
from training import bench
from training import train as train_command
from training.bench import DataSet, Figure, averaged, is_held_out, speed, to_markdown
from training.data.dataset import Columns


def test_targets_are_met_from_the_right_side():
    assert Figure("d", "accuracy", 0.93, 0.93, True, {}).met
    assert not Figure("d", "accuracy", 0.92, 0.93, True, {}).met
    assert Figure("d", "minutes", 4.9, 5, False, {}).met
    assert not Figure("d", "minutes", 5.1, 5, False, {}).met


def test_the_table_shows_the_routers_that_have_the_figure():
    figures = [
        Figure("L", "accuracy", 0.9, 0.8, True, {"words SVM": 0.75}),
        Figure("L", "size", 9, 8, False, {}),
    ]
    lines = to_markdown(figures).splitlines()
    assert lines[2] == "| L | accuracy | 0.9 | ≥ 0.8 | yes | 0.75 | - | - |"
    assert lines[3] == "| L | size | 9 | ≤ 8 | no | - | - | - |"


def test_figures_are_averaged_over_the_seeds_that_have_them():
    one = [Figure("L", "accuracy on 99 tickets", 0.8, 0.7, True, {"words SVM": 0.6})]
    two = [
        Figure("L", "accuracy on 101 tickets", 0.6, 0.9, True, {"words SVM": 0.8}),
        Figure("L", "minutes", 3, 5, False, {}),
    ]
    accuracy, minutes = averaged([one, two])
    assert (accuracy.measured, accuracy.target) == pytest.approx((0.7, 0.8))
    assert accuracy.others == pytest.approx({"words SVM": 0.7})
    assert minutes.measured == 3


@pytest.mark.parametrize("share", [0.1, 0.2])
def test_the_share_is_held_out_regardless_of_case_and_spaces(share):
    texts = [f"ticket {number}" for number in range(2_000)]
    held_out = [is_held_out(text, share) for text in texts]
    assert abs(np.mean(held_out) - share) < 0.03
    assert [is_held_out(text.upper().replace(" ", "  "), share) for text in texts] == held_out
    assert [is_held_out(text, share, seed=1) for text in texts] != held_out


def test_the_speed_of_a_bundle_is_measured(tmp_path):
    data = write_csv(tmp_path / "t.csv", ticket_rows(240))
    arguments = ["--data", str(data), "--recipe", "baseline", "--epochs", "4", "--report", "none"]
    assert train_command.main([*arguments, "--out", str(tmp_path / "o")]) == 0
    assert all(figure.measured > 0 for figure in speed(load_bundle(tmp_path / "o")))


def test_a_set_is_measured_whole(tmp_path, monkeypatch, capsys):
    write_csv(tmp_path / "small.csv", ticket_rows(300))
    monkeypatch.setattr(bench, "DATA", tmp_path)
    monkeypatch.setitem(bench.SETS, "small", DataSet("small.csv", Columns()))
    out = tmp_path / "figures.json"
    arguments = ["--sets", "small", "--recipe", "baseline", "--device", "cpu", "--out", str(out)]
    assert bench.main(arguments) in (0, 1)
    figures = {one["measure"].split(" on ")[0]: one for one in json.loads(out.read_text(encoding="utf-8"))}
    assert figures["accuracy"]["measured"] > 0.9
    assert {"words SVM", "words and characters SVM"} <= set(figures["accuracy"]["others"])
    assert figures["teams with recall 0 that the SVM recalls"]["measured"] == 0
    assert {"macro-F1", "routed at 0.99", "routed at 0.95", "routed at 0.90", "calibration error"} <= set(
        figures
    )
    assert figures["minutes of the training command"]["measured"] > 0
    assert "| small | macro-F1 |" in capsys.readouterr().out
