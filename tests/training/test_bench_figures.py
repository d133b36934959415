"""The table of targets: whether a target is met, the out-of-scope recall, and the speed."""

import numpy as np
import pytest
from training_examples import ticket_rows, write_csv

from models.bundle import load_bundle
from training import train as train_command
from training.bench import Figure, is_held_out, recall_out_of_scope, speed, to_markdown


def test_targets_are_met_from_the_right_side():
    assert Figure("d", "accuracy", 0.93, 0.93, True, {}).met
    assert not Figure("d", "accuracy", 0.92, 0.93, True, {}).met
    assert Figure("d", "seconds", 299, 300, False, {}).met
    assert not Figure("d", "seconds", 301, 300, False, {}).met


def test_the_table_shows_ratios_to_the_baselines_that_have_the_figure():
    figures = [
        Figure("L", "right", 600, 598, True, {"TF-IDF + SVM": 500.0}),
        Figure("L", "size", 9, 8, False, {}),
    ]
    lines = to_markdown(figures).splitlines()
    assert lines[2] == "| L | right | ≥ 598 | 600 | yes | - | 1.200 (500) |"
    assert lines[3] == "| L | size | ≤ 8 | 9 | no | - | - |"


def test_recall_keeps_95_percent_of_what_is_known():
    known = np.arange(100.0)
    assert recall_out_of_scope(known, np.array([0.0, 4.0, 50.0, 99.0])) == 0.5
    assert recall_out_of_scope(known, known) == pytest.approx(0.05)


def test_a_fifth_is_held_out_regardless_of_case_and_spaces():
    texts = [f"ticket {number}" for number in range(2_000)]
    held_out = [is_held_out(text) for text in texts]
    assert 0.17 < np.mean(held_out) < 0.23
    assert [is_held_out(text.upper().replace(" ", "  ")) for text in texts] == held_out


def test_the_speed_of_a_bundle_is_measured(tmp_path):
    data = write_csv(tmp_path / "t.csv", ticket_rows(240))
    arguments = ["--data", str(data), "--recipe", "baseline", "--epochs", "4", "--report", "none"]
    assert train_command.main([*arguments, "--out", str(tmp_path / "o")]) == 0
    assert all(figure.measured > 0 for figure in speed(load_bundle(tmp_path / "o")))
