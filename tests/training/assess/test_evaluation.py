"""A bundle's figures, by hand and through the commands; training run end to end on a small file."""

import json
import subprocess
import sys

import numpy as np
import pytest
from sklearn.metrics import f1_score
from training_examples import ticket_rows, write_csv

from models.bundle import load_bundle, verify_bundle
from models.decision import decide
from models.text import join
from training import evaluate as evaluation_command
from training import train as train_command
from training.assess.evaluation import Answer, Answers, Group, answer, assess
from training.data.dataset import Columns, Faults, Tickets, read_tickets


def decided(team: str, confidence: float = 0.9, decision: str = "route") -> Answer:
    return Answer(team, confidence, decision, (), tokens=1, unknown=0, truncated=False)


@pytest.fixture
def assessed():
    actual = ["a", "a", "a", "b", "b", "c"]
    predicted = ["a", "a", "b", "b", "a", "c"]
    tickets = Tickets("f", list("123456"), ["t"] * 6, actual, ["plain", "plain", "odd"] * 2, list(range(6)))
    decisions = [
        decided(team, 0.9 if i < 4 else 0.5, "route" if i < 4 else "review")
        for i, team in enumerate(predicted)
    ]
    return (
        assess(Answers(np.zeros((6, 4)), decisions), tickets, ["a", "b", "c", "never"]),
        actual,
        predicted,
    )


def test_figures_by_hand(assessed):
    figures, actual, predicted = assessed
    assert (figures.tickets, figures.correct, figures.accuracy) == (6, 4, pytest.approx(4 / 6))
    assert figures.macro_f1 == pytest.approx(f1_score(actual, predicted, average="macro"))
    assert (figures.per_team["a"].precision, figures.per_team["a"].recall) == (pytest.approx(2 / 3),) * 2
    assert figures.per_team["never"].tickets == 0
    assert figures.per_style["odd"] == {"tickets": 2, "accuracy": 0.5}
    assert (figures.coverage, figures.routed_precision) == (pytest.approx(4 / 6), 0.75)
    assert figures.unknown_teams == {}


def test_a_team_that_the_bundle_does_not_know_is_wrong_and_named():
    tickets = Tickets("f", ["1", "2"], ["t"] * 2, ["a", "new"], [], [1, 2])
    figures = assess(
        Answers(np.zeros((2, 2)), [decided("a"), decided("b", decision="review")]), tickets, ["a", "b"]
    )
    assert figures.unknown_teams == {"new": {"tickets": 1, "review": 1}}
    assert figures.accuracy == 0.5


def test_figures_by_language_and_length():
    english, german = "where is my parcel, please", "wo ist meine Bestellung " + "und warum " * 20
    texts = [english] * 6 + [german] * 5 + ["12345", "hola, gracias", "где моя посылка"]
    teams = ["a"] * 14
    decisions = [decided("b" if i < 3 else "a", decision="review" if i < 2 else "route") for i in range(14)]
    tickets = Tickets("f", list(map(str, range(14))), texts, teams, [], list(range(14)))
    figures = assess(Answers(np.zeros((14, 2)), decisions), tickets, ["a", "b"])
    assert {name: one.tickets for name, one in figures.per_language.items()} == {
        "English": 6,
        "German": 5,
        "other or unclear": 3,
    }
    assert list(figures.per_language) == ["English", "German", "other or unclear"]
    assert figures.per_language["English"] == Group(6, 0.5, pytest.approx(4 / 6), 0.75)
    assert {name: one.tickets for name, one in figures.per_length.items()} == {
        "1 to 5 words": 9,
        "41 to 120 words": 5,
    }
    printed = evaluation_command.to_text(figures)
    assert "German                               5    1.0000  1.0000  1.0000" in printed
    assert "41 to 120 words                      5" in printed


def test_a_group_of_which_nothing_is_routed():
    decisions = [decided("a", decision="review")] * 5
    tickets = Tickets("f", list("12345"), ["where is my parcel"] * 5, ["a"] * 5, [], list(range(5)))
    figures = assess(Answers(np.zeros((5, 1)), decisions), tickets, ["a"])
    assert figures.per_language["English"] == Group(5, 1.0, 0.0, None)


# ---------------------------------------------------------------------------------------- end to end


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    data = write_csv(folder / "t.csv", ticket_rows(300))
    valid = write_csv(folder / "v.csv", ticket_rows(60, seed=1))
    arguments = ["--data", str(data), "--valid", str(valid), "--recipe", "baseline", "--epochs", "5"]
    assert train_command.main([*arguments, "--report", "none", "--out", str(folder / "bundle")]) == 0
    return folder


def test_the_bundle_verifies_and_says_what_it_is(trained):
    config = verify_bundle(trained / "bundle")
    assert config.name == "bundle"
    assert config.version.startswith("baseline-")
    assert config.teams == ["billing", "garden", "kitchen"]
    assert config.recipe["epochs"] == 5
    assert config.metrics["tickets"] == 60
    assert config.metrics["accuracy"] > 0.9
    assert config.reference["tickets"] == 60
    assert len(config.fingerprint) == 64
    assert "torch" in config.libraries
    assert str(trained) not in (trained / "bundle" / "config.json").read_text()
    card = (trained / "bundle" / "MODEL_CARD.md").read_text()
    assert "300 tickets of t.csv" in card


def test_nothing_is_left_beside_the_bundle(trained):
    assert sorted(path.name for path in trained.iterdir()) == ["bundle", "t.csv", "v.csv"]


def test_the_command_prints_what_training_measured(trained, capsys):
    arguments = ["--bundle", str(trained / "bundle"), "--data", str(trained / "v.csv")]
    assert evaluation_command.main([*arguments, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    measured = verify_bundle(trained / "bundle").metrics
    # While training, the error was cross-fitted; the bundle's own temperature saw these very tickets.
    assert printed["calibration_error"] != measured["calibration_error"]
    assert printed == measured | {"calibration_error": printed["calibration_error"]}
    assert evaluation_command.main(arguments) == 0
    assert f"accuracy  {printed['accuracy']:.4f}" in capsys.readouterr().out


def test_another_precision_is_chosen_without_training_anew(trained, capsys):
    arguments = ["--bundle", str(trained / "bundle"), "--data", str(trained / "v.csv"), "--json"]
    shares = []
    for precision in ("0.9", "0.5"):
        assert evaluation_command.main([*arguments, "--precision", precision]) == 0
        shares.append(json.loads(capsys.readouterr().out)["coverage"])
    tradeoff = verify_bundle(trained / "bundle").tradeoff
    assert shares == [pytest.approx(tradeoff.choice(precision).coverage) for precision in (0.9, 0.5)]
    assert evaluation_command.main([*arguments, "--precision", "0.999"]) == 2
    assert "60 validation tickets cannot show a precision of 0.999" in capsys.readouterr().err


def test_batches_change_no_answer(trained):
    """The whole file at once gives what serving gives ticket by ticket."""
    bundle = load_bundle(trained / "bundle")
    tickets = read_tickets(trained / "v.csv", Columns(), Faults())
    together = answer(bundle, tickets.texts)
    for row, ticket in enumerate(ticket_rows(60, seed=1)):
        encoding = bundle.tokenizer.encode(join(None, ticket["text"]).text)
        (logits,) = bundle.session.run(["logits"], {"input_ids": np.array([encoding.ids])})
        alone = decide(logits[0], encoding, bundle.config)
        assert (alone.team, alone.decision) == (
            together.tickets[row].team,
            together.tickets[row].decision,
        )
        assert alone.confidence == pytest.approx(together.tickets[row].confidence, abs=1e-6)


def test_mistakes_end_with_a_message_and_not_with_a_traceback(tmp_path, capsys):
    bad = tmp_path / "bad.csv"
    bad.write_text("message,queue\nx,y\n")
    assert train_command.main(["--data", str(bad), "--out", str(tmp_path / "o")]) == 2
    message = capsys.readouterr().err
    assert "no column 'text'; its columns are: message, queue" in message
    assert "no column 'team'" in message
    assert train_command.main(["--data", str(bad), "--out", str(tmp_path / "o"), "--recipe", "no"]) == 2
    assert "one of baseline, default" in capsys.readouterr().err
    assert evaluation_command.main(["--bundle", str(tmp_path), "--data", str(bad)]) == 2
    assert "config.json" in capsys.readouterr().err


def test_the_help_names_every_flag():
    shown = subprocess.run(
        [sys.executable, "-m", "training.train", "--help"], capture_output=True, text=True, check=True
    ).stdout
    flags = "--data --valid --out --recipe --name --text-column --team-column --id-column --encoding"
    assert all(flag in shown for flag in flags.split())


def test_each_template_is_counted_once() -> None:
    answers = Answers(np.zeros((5, 2)), [decided(team) for team in "aaabb"])
    texts = ["job 1 down", "job 2 down", "job 3 down", "the door", "the roof"]
    tickets = Tickets(texts=texts, teams=list("aaaab"))
    found = assess(answers, tickets, ("a", "b"))
    assert found.accuracy == pytest.approx(4 / 5)
    assert found.template_accuracy == pytest.approx(2 / 3)
