"""`training.recalibrate`: thresholds of an existing bundle, fitted anew on solved tickets."""

import csv
import json
import shutil

import pytest
from training_examples import ticket_rows, write_csv

from models.bundle import load_bundle
from training import recalibrate as recalibrate_command
from training import train as train_command
from training.command_line import REFUSED
from training.evaluate import main as evaluate_main


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    data = write_csv(folder / "t.csv", ticket_rows(300))
    arguments = ["--data", str(data), "--recipe", "baseline", "--epochs", "12", "--report", "none"]
    assert train_command.main([*arguments, "--precision", "0.9", "--out", str(folder / "bundle")]) == 0
    return folder / "bundle"


def feedback_rows(count: int, wrong_of_ten: int = 2) -> list[dict[str, str]]:
    """Solved tickets; the kitchen's are often solved by the garden team, whatever they say."""
    rows = ticket_rows(count, seed=7)
    kitchen = [row for row in rows if row["team"] == "kitchen"]
    for number, row in enumerate(kitchen):
        if number % 10 < wrong_of_ten:
            row["team"] = "garden"
    return rows


def recalibrate(bundle, feedback, *more: str) -> int:
    return recalibrate_command.main(["--bundle", str(bundle), "--feedback", str(feedback), *more])


def contents(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def evaluated(bundle, data, capsys) -> dict:
    capsys.readouterr()
    assert evaluate_main(["--bundle", str(bundle), "--data", str(data), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_new_bundle_routes_with_the_precision_that_feedback_shows(bundle, tmp_path, capsys):
    feedback = write_csv(tmp_path / "feedback.csv", feedback_rows(900))
    later = write_csv(
        tmp_path / "later.csv",
        [row | {"ticket_id": "L" + row["ticket_id"]} for row in feedback_rows(1800)[900:]],
    )
    old = contents(bundle)
    assert recalibrate(bundle, feedback, "--out", str(tmp_path / "new")) == 0
    said = capsys.readouterr().out
    assert "900 tickets with different texts" in said
    assert f"python -m service.reload --bundle {tmp_path / 'new'}" in said
    assert contents(bundle) == old, "the old bundle is not changed"
    before, after = (evaluated(one, later, capsys) for one in (bundle, tmp_path / "new"))
    assert before["accuracy"] == after["accuracy"], "the network is the same"
    assert before["calibration_error"] > after["calibration_error"]
    new, trained = load_bundle(tmp_path / "new").config, load_bundle(bundle).config
    assert new.thresholds.precision == trained.thresholds.precision == 0.9
    assert new.version.startswith(trained.version + "-r")
    assert new.teams == trained.teams
    assert new.reference["tickets"] == new.tradeoff.tickets == 900
    assert new.fingerprint == trained.fingerprint


def test_a_bundle_is_recalibrated_twice(bundle, tmp_path):
    for number, count in enumerate((900, 600)):
        write_csv(tmp_path / f"f{number}.csv", feedback_rows(count))
    assert recalibrate(bundle, tmp_path / "f0.csv", "--out", str(tmp_path / "one")) == 0
    assert recalibrate(tmp_path / "one", tmp_path / "f1.csv", "--out", str(tmp_path / "two")) == 0
    one, two = (load_bundle(tmp_path / name).config.version for name in ("one", "two"))
    assert one != two
    assert len(one) == len(two), "the version has one suffix"
    card = (tmp_path / "two" / "MODEL_CARD.md").read_text(encoding="utf-8")
    assert card.startswith(f"# bundle, version {two}\n")
    assert card.count("## Recalibrated") == 1
    assert "600 tickets of f1.csv" in card
    trained = (bundle / "MODEL_CARD.md").read_text(encoding="utf-8").split("\n", 1)[1]
    for paragraph in trained.split("\n\n"):
        assert paragraph.strip() in card, "nothing of the training run's card is lost"


def test_without_out_the_name_is_a_new_one(bundle, tmp_path):
    feedback = write_csv(tmp_path / "feedback.csv", feedback_rows(600))
    shutil.copytree(bundle, tmp_path / "mine")
    for _ in range(2):
        assert recalibrate(tmp_path / "mine", feedback) == 0
    made = {path.name for path in tmp_path.iterdir() if path.is_dir()}
    assert made == {"mine", "mine-recalibrated", "mine-recalibrated-2"}


def test_teams_that_the_bundle_does_not_know_are_named_and_count_as_wrong(bundle, tmp_path, capsys):
    rows = feedback_rows(600, 0)
    for row in rows[:60]:
        row["team"] = "legal"
    feedback = write_csv(tmp_path / "feedback.csv", rows)
    assert recalibrate(bundle, feedback, "--out", str(tmp_path / "new"), "--precision", "0.6") == 0
    said = capsys.readouterr().out
    assert "60 tickets were solved by 'legal', which this bundle does not know" in said
    correct = load_bundle(tmp_path / "new").config.metrics["correct"]
    assert correct <= 540
    assert f"{correct} of them predicted right" in said


def test_the_same_text_counts_once(bundle, tmp_path, capsys):
    rows = feedback_rows(250)
    copies = [row | {"ticket_id": f"again-{number}"} for number, row in enumerate(rows)]
    feedback = write_csv(tmp_path / "feedback.csv", rows + copies)
    assert recalibrate(bundle, feedback, "--out", str(tmp_path / "new"), "--precision", "0.6") == 0
    assert "250 tickets with different texts" in capsys.readouterr().out


def refused(capsys, *parts: str) -> None:
    message = capsys.readouterr().err
    assert "Traceback" not in message
    for part in parts:
        assert part in message, message


@pytest.mark.parametrize("count", [1, 199])
def test_too_little_feedback_is_refused(bundle, tmp_path, capsys, count):
    feedback = write_csv(tmp_path / "feedback.csv", feedback_rows(count))
    assert recalibrate(bundle, feedback, "--out", str(tmp_path / "new")) == REFUSED
    refused(capsys, f"feedback.csv: {count} tickets", "too few", "at least 200")
    assert not (tmp_path / "new").exists()


def test_copies_do_not_make_enough_feedback(bundle, tmp_path, capsys):
    rows = [
        row | {"ticket_id": f"{row['ticket_id']}-{time}"} for time in range(9) for row in feedback_rows(50)
    ]
    assert recalibrate(bundle, write_csv(tmp_path / "f.csv", rows), "--out", str(tmp_path / "new")) == REFUSED
    refused(capsys, "50 tickets with different texts", "too few")


def test_corrections_alone_are_refused_with_what_they_can_show(bundle, tmp_path, capsys):
    others = {"garden": "billing", "billing": "kitchen", "kitchen": "garden"}
    rows = [row | {"team": others[row["team"]]} for row in feedback_rows(300, 0)]
    feedback = write_csv(tmp_path / "feedback.csv", rows)
    assert recalibrate(bundle, feedback, "--out", str(tmp_path / "new")) == REFUSED
    refused(capsys, "cannot show a precision of 0.9", "they can: none", "not only corrections", "--precision")
    assert not (tmp_path / "new").exists()


def test_a_file_of_other_teams_is_refused(bundle, tmp_path, capsys):
    rows = [row | {"team": f"team {row['team']}"} for row in feedback_rows(300)]
    assert recalibrate(bundle, write_csv(tmp_path / "f.csv", rows), "--out", str(tmp_path / "new")) == REFUSED
    refused(
        capsys, "no ticket has a team that the bundle knows", "team garden", "'billing', 'garden', 'kitchen'"
    )


def test_an_existing_folder_is_never_overwritten(bundle, tmp_path, capsys):
    feedback = write_csv(tmp_path / "feedback.csv", feedback_rows(600))
    old = contents(bundle)
    assert recalibrate(bundle, feedback, "--out", str(bundle)) == REFUSED
    refused(capsys, str(bundle), "is not overwritten", "--out")
    (tmp_path / "empty").mkdir()
    assert recalibrate(bundle, feedback, "--out", str(tmp_path / "empty")) == REFUSED
    assert contents(bundle) == old


@pytest.mark.parametrize(
    ("bundle_name", "file", "parts"),
    [
        ("bundle", "missing.csv", ["missing.csv"]),
        ("bundle", "no_team.csv", ["no_team.csv", "team"]),
        ("no_bundle", "good.csv", ["no_bundle", "does not exist"]),
    ],
)
def test_files_that_cannot_be_used_are_named(bundle, tmp_path, capsys, bundle_name, file, parts):
    write_csv(tmp_path / "good.csv", feedback_rows(300))
    with (tmp_path / "no_team.csv").open("w", newline="") as made:
        csv.writer(made).writerows([["ticket_id", "text"], ["1", "the lamp is broken"]])
    given = bundle.with_name(bundle_name)
    assert recalibrate(given, tmp_path / file, "--out", str(tmp_path / "new")) == REFUSED
    refused(capsys, *parts)
