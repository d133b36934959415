"""Invalid input to the training commands: exit code 2 and the reason."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from training_examples import ticket_rows, write_csv

from kernels import emulator
from training import bench as bench_command
from training import compare as compare_command
from training import evaluate as evaluate_command
from training import train as train_command
from training.command_line import INTERRUPTED, REFUSED, guarded
from training.data.corrections import read_corrections
from training.data.dataset import Columns, DataError, Faults, load_dataset, read_tickets
from training.recipe import FOLDER, RecipeError, load_recipe

synthetic_command = import_module("training.synthetic.__main__")
BASELINE = (FOLDER / "baseline.toml").read_text(encoding="utf-8")


def train(data: Path, out: Path, *more: str) -> int:
    """The training command on one short epoch; argparse's own way out gives its exit code, too."""
    arguments = ["--data", str(data), "--out", str(out), "--recipe", "baseline", "--epochs", "1"]
    try:
        return train_command.main([*arguments, "--report", "none", *more])
    except SystemExit as left:
        return int(left.code or 0)


def refused(capsys, *parts: str) -> str:
    """The message on stderr, which holds all `parts` and no traceback."""
    message = capsys.readouterr().err
    assert "Traceback" not in message
    for part in parts:
        assert part in message, message
    return message


# --------------------------------------------------------------------------------------- kinds of files


@pytest.mark.parametrize("name", ["t.txt", "t.csv.gz", "t.docx", "tickets"])
def test_a_file_of_another_kind_is_refused_with_those_that_are_read(tickets_csv, tmp_path, capsys, name):
    path = tmp_path / name
    path.write_bytes(tickets_csv().read_bytes())
    assert train(path, tmp_path / "o") == REFUSED
    refused(capsys, name, ".csv, .tsv, .jsonl")


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (b"PK\x03\x04", "ZIP"),
        (b"\x1f\x8b\x08", "gzip"),
        (b"PAR1", "Parquet"),
        (b"\n<!DOCTYPE html>", "web page"),
        (b"SQLite format 3\x00", "SQLite"),
    ],
)
def test_a_file_under_a_wrong_name_is_known_by_its_first_bytes(tmp_path, start, kind):
    (tmp_path / "t.csv").write_bytes(start + bytes(range(256)) * 20)
    with pytest.raises(DataError, match=rf"this is an? .*{kind}"):
        load_dataset(tmp_path / "t.csv")


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-32-le"])
def test_wide_characters_without_a_mark_are_named_and_read_when_named(tmp_path, encoding):
    path = write_csv(tmp_path / "t.csv", ticket_rows(12), encoding=encoding)
    with pytest.raises(DataError, match=r"zero bytes.*--encoding"):
        load_dataset(path)
    assert read_tickets(path, Columns(), Faults(), encoding).texts == [r["text"] for r in ticket_rows(12)]


def test_utf32_is_read_by_its_mark_which_begins_as_that_of_utf16(tmp_path):
    path = write_csv(tmp_path / "t.csv", ticket_rows(12), encoding="utf-32")
    assert len(read_tickets(path, Columns(), Faults())) == 12


@pytest.mark.parametrize("encoding", ["rot13", "base64", "idna", "utf-88", "undefined"])
def test_what_is_no_encoding_of_text_is_refused(tickets_csv, encoding):
    with pytest.raises(DataError, match=f"--encoding {encoding}"):
        load_dataset(tickets_csv(), encoding=encoding)


def test_an_encoding_that_the_file_does_not_have_is_refused(tickets_csv):
    with pytest.raises(DataError, match="cannot be read as utf-16"):
        load_dataset(tickets_csv(), encoding="utf-16")


def test_a_header_in_another_encoding_is_read(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes("téxt,team\nsome words,a\n".encode("cp1252"))
    assert read_tickets(path, Columns(text=("téxt",)), Faults()).texts == ["some words"]


def test_control_characters_of_a_file_do_not_reach_the_terminal(tmp_path):
    (tmp_path / "t.csv").write_text("a\x1b[31mred,b\x07\nx,y\n", encoding="utf-8")
    with pytest.raises(DataError) as error:
        load_dataset(tmp_path / "t.csv")
    assert "\x1b" not in str(error.value)
    assert "\x07" not in str(error.value)


def test_numbers_no_one_can_mean_are_one_bad_row(tmp_path):
    good = json.dumps({"text": "some words", "team": "a"})
    path = tmp_path / "t.jsonl"
    path.write_text(f'{good}\n{{"text": "x", "team": {"9" * 5_000}}}\n{good}\n')
    faults = Faults()
    assert len(read_tickets(path, Columns(), faults)) == 2
    assert [(fault.kind, fault.rows) for fault in faults] == [("malformed_row", [2])]


def test_missing_values_are_empty_in_every_format(tmp_path):
    """A missing number is NaN in Parquet and in some programs' JSON; it is no team of that name."""
    (tmp_path / "t.jsonl").write_text('{"text": "some words", "team": NaN}\n{"text": "x y", "team": "a"}\n')
    table = pyarrow.table({"text": ["some words", "x y"], "team": [float("nan"), 7.0]})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    for name, team in (("t.jsonl", "a"), ("t.parquet", "7.0")):
        faults = Faults()
        assert read_tickets(tmp_path / name, Columns(), faults).teams == [team]
        assert [(fault.kind, fault.rows) for fault in faults] == [("empty_team", [1])]


def test_bytes_in_parquet_are_text(tmp_path):
    texts = ["café au lait".encode(), b"caf\xe9"]
    pyarrow.parquet.write_table(pyarrow.table({"text": texts, "team": ["a", "b"]}), tmp_path / "t.parquet")
    faults = Faults()
    assert read_tickets(tmp_path / "t.parquet", Columns(), faults).texts == ["café au lait"]
    assert [(fault.kind, fault.rows) for fault in faults] == [("broken_encoding", [2])]


def test_a_damaged_parquet_file_stops(tmp_path):
    rows = ticket_rows(2_000)
    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    data = bytearray(path.read_bytes())
    data[200:2_000] = bytes(byte ^ 0x55 for byte in data[200:2_000])
    path.write_bytes(data)
    with pytest.raises(DataError, match="damaged"):
        load_dataset(path)


# -------------------------------------------------------------------------------- columns, teams, split


@pytest.mark.parametrize("name", ["text", "team"])
def test_a_column_that_is_there_twice_stops(tmp_path, name):
    columns = ["text", "team", name]
    lines = [",".join(columns), *(f"words {n},a{n % 2},b" for n in range(20))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    with pytest.raises(DataError, match=f"2 columns are named '{name}'"):
        load_dataset(tmp_path / "t.csv")


@pytest.mark.parametrize(
    "flags",
    [
        ["--text-column", "text", "--text-column", "text"],
        ["--text-column", "team"],
        ["--id-column", "text"],
        ["--text-column", ""],
        ["--team-column", " "],
    ],
)
def test_columns_have_a_name_and_one_meaning(tickets_csv, tmp_path, capsys, flags):
    assert train(tickets_csv(), tmp_path / "o", *flags) == REFUSED
    refused(capsys, "column")


def test_a_file_that_cannot_be_read_is_not_also_said_to_lack_teams(tmp_path):
    (tmp_path / "t.csv").write_text("message,queue\nx,y\n")
    with pytest.raises(DataError) as error:
        load_dataset(tmp_path / "t.csv")
    assert "no column 'text'" in str(error.value)
    assert "teams are needed" not in str(error.value)


def test_one_team_is_named_and_so_is_what_may_be_wrong(tmp_path):
    rows = [{**row, "team": "only"} for row in ticket_rows(30)]
    with pytest.raises(DataError, match=r"'only', and at least 2 .*--team-column"):
        load_dataset(write_csv(tmp_path / "t.csv", rows))
    rows += [{"ticket_id": "x", "text": "something else", "team": "rare"}]
    with pytest.raises(DataError, match=r"only 'only' has at least 5 tickets \(--min-tickets\)"):
        load_dataset(write_csv(tmp_path / "t.csv", rows))


@pytest.mark.parametrize("same", [str, "the same text for {}".format])
def test_equal_texts_leave_no_ticket_to_validate_on(tmp_path, same):
    rows = [{**row, "text": same(row["team"] if same is not str else "one text")} for row in ticket_rows(30)]
    with pytest.raises(DataError, match="each team needs two different texts"):
        load_dataset(write_csv(tmp_path / "t.csv", rows))


def test_a_large_share_leaves_each_team_a_ticket_to_train_on(tickets_csv):
    dataset = load_dataset(tickets_csv(30), valid_share=0.99)
    assert set(dataset.train.teams) == set(dataset.teams)
    assert len(dataset.train) == 3


def test_validation_on_the_training_tickets_stops(tickets_csv, tmp_path, capsys):
    data = tickets_csv()
    assert train(data, tmp_path / "o", "--valid", str(data)) == REFUSED
    refused(capsys, "omit --valid")
    copy = tickets_csv(name="copy.csv")
    assert train(data, tmp_path / "o", "--valid", str(copy)) == REFUSED
    refused(capsys, "no training ticket left")
    assert train(data, tmp_path / "o", "--valid", str(tmp_path)) == REFUSED
    refused(capsys, "is a folder")


def test_data_without_a_repeated_word_is_refused(tmp_path, capsys):
    rows = [{"text": f"a{n:03}z{n:03}".translate(LETTERS), "team": "xy"[n % 2]} for n in range(40)]
    assert train(write_csv(tmp_path / "t.csv", rows), tmp_path / "o") == REFUSED
    refused(capsys, "no word occurs 2 times")


LETTERS = str.maketrans("0123456789", "bcdfghjklm")


def test_a_new_team_in_a_correction_is_reported(tickets_csv, tmp_path):
    data = tickets_csv()
    wrong = [{"ticket_id": ticket_rows(1)[0]["ticket_id"], "corrected_team": "gardn"}]
    told = load_dataset(data, corrections=write_csv(tmp_path / "c.csv", wrong)).faults
    (fault,) = [fault for fault in told if fault.kind == "new_team"]
    assert "'gardn'; did you mean 'garden'?" in str(fault)


# ------------------------------------------------------------------------------------- numbers and names


@pytest.mark.parametrize(
    "flags",
    [
        ["--epochs", "0"],
        ["--epochs", "1.5"],
        ["--seed", "-1"],
        ["--seed", "99999999999"],
        ["--synthetic", "-1"],
        ["--valid-share", "0"],
        ["--valid-share", "1"],
        ["--valid-share", "nan"],
        ["--min-tickets", "0"],
        ["--max-dropped", "1.01"],
        ["--max-dropped", "nan"],
    ],
)
def test_numbers_out_of_range_are_refused_with_the_range(tickets_csv, tmp_path, capsys, flags):
    assert train(tickets_csv(), tmp_path / "o", *flags) == REFUSED
    refused(capsys, flags[0], flags[1], "is not a ")
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("d = 64", "d = 64.5"), "d = 64.5: expected a whole number"),
        (("epochs = 20", 'epochs = "20"'), "epochs = '20': expected a whole number"),
        (("epochs = 20", "epochs = true"), "epochs = True: expected a whole number"),
        (("epochs = 20", ""), "the setting 'epochs' is missing"),
        (("epochs = 20", "epochs = 20\nepoch = 1"), "no setting 'epoch' (did you mean 'epochs'?)"),
        (("epochs = 20", 'epochs = 20\nschedule = "linear"'), "one of 'constant', 'cosine'"),
        (("heads = 4", "heads = 5"), "d = 64 must be a multiple of it"),
        (("seed = 0", "seed = 0\naverage = 0.9"), "'average' is now called 'ema_decay'"),
        (("batch_size = 64", "batch_size = 0"), "batch_size = 0"),
        (("learning_rate = 1e-3", "learning_rate = nan"), "learning_rate = nan"),
        (("attention_dropout = 0.1", "attention_dropout = 1"), "attention_dropout = 1: expected"),
        (("d = 64", "d = = 64"), "not a TOML file"),
    ],
)
def test_a_recipe_that_cannot_be_names_the_setting(tmp_path, change, expected):
    assert change[0] in BASELINE
    path = tmp_path / "mine.toml"
    path.write_text(BASELINE.replace(*change))
    with pytest.raises(RecipeError) as error:
        load_recipe(str(path))
    assert expected in str(error.value)
    assert "mine.toml" in str(error.value)


@pytest.mark.parametrize("name", ["nonsense", "", "../recipes/baseline", "no.toml"])
def test_a_recipe_that_is_not_there_is_named_with_those_that_are(name):
    with pytest.raises(RecipeError, match=r"one of baseline, default"):
        load_recipe(name)
    with pytest.raises(RecipeError, match="did you mean 'default'"):
        load_recipe("defualt")


def test_a_learning_rate_that_makes_the_loss_infinite_is_reported(tickets_csv, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        "training.fit.loop.F.cross_entropy", lambda logits, *_, **__: logits.sum() * float("nan")
    )
    assert train(tickets_csv(), tmp_path / "o") == REFUSED
    refused(capsys, "lower the learning rate, which is 0.001")
    assert not (tmp_path / "o").exists()


def test_an_unavailable_device_is_reported(tickets_csv, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert train(tickets_csv(), tmp_path / "o", "--device", "cuda") == REFUSED
    refused(capsys, "--device cuda", "finds no GPU here", "--device cpu")
    assert not (tmp_path / "o").exists()


@pytest.mark.slow
@pytest.mark.skipif(emulator.compiler() is None, reason="the emulator needs a C++ compiler (g++)")
def test_a_router_is_trained_by_the_kernel_itself(tickets_csv, tmp_path, capsys):
    assert train(tickets_csv(60), tmp_path / "o", "--device", "emulator") == 0
    said = capsys.readouterr().out
    counted = re.search(
        r"attention\.cu was launched ([\d,]+) times forward and ([\d,]+) times backward", said
    )
    assert counted
    assert all(int(times.replace(",", "")) > 0 for times in counted.groups())
    assert (tmp_path / "o" / "model.onnx").exists()


# ------------------------------------------------------------------------------------- where it is written


def test_an_unwritable_folder_is_reported_before_training(tickets_csv, tmp_path, capsys):
    data = tickets_csv()
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thing.txt").write_text("x")
    for out, reason in (
        (tmp_path / "file", "is a file"),
        (tmp_path / "file" / "below", "cannot be written"),
        (tmp_path / "full", "contains 'thing.txt'"),
        (Path("/"), "1 to 200 characters"),
        (Path("/proc/bundle"), "cannot be written"),
        (tmp_path / ("n" * 300), "n" * 300),
    ):
        assert train(data, out) == REFUSED
        captured = capsys.readouterr()
        assert reason in captured.err
        assert "tickets to train on" not in captured.out, "it was reported too late"
    assert (tmp_path / "full" / "thing.txt").exists()


@pytest.mark.parametrize("name", ["", "n" * 201])
def test_a_bundle_has_a_name(tickets_csv, tmp_path, capsys, name):
    assert train(tickets_csv(), tmp_path / "o", "--name", name) == REFUSED
    refused(capsys, "1 to 200 characters")


def test_a_run_replaces_no_bundle_and_keeps_all_corrections(tmp_path, capsys):
    rows = ticket_rows(240)
    rows[0]["team"], rows[1]["team"] = rows[1]["team"], rows[0]["team"]
    data = write_csv(tmp_path / "t.csv", rows)
    corrections = tmp_path / "o.label_errors.csv"
    write_csv(corrections, [{"ticket_id": rows[0]["ticket_id"], "corrected_team": rows[1]["team"]}])
    before = corrections.read_bytes()
    arguments = ["--data", str(data), "--out", str(tmp_path / "o"), "--recipe", "baseline", "--epochs", "1"]
    for out in ("o", "o-2"):
        if out == "o-2":
            before = corrections.read_bytes()
        assert train_command.main([*arguments, "--corrections", str(corrections)]) == 0
        kept = read_corrections(tmp_path / f"{out}.label_errors.csv")
        assert [line["corrected_team"] for line in kept] == [rows[1]["team"]]
        faults = json.loads((tmp_path / out / "report.json").read_text())["data"]["faults"]
        assert [fault["count"] for fault in faults if fault["kind"] == "corrected_team"] == [1]
    assert corrections.read_bytes() == before, "the second run has a file of its own"
    printed = capsys.readouterr().out
    (command,) = [line for line in printed.splitlines() if line.startswith("compare: ")]
    given = shlex.split(command.removeprefix("compare: python -m training.compare "))
    assert given[:2] == [str(tmp_path / "o"), str(tmp_path / "o-2")]
    assert compare_command.main(given) == 0
    validated = json.loads((tmp_path / "o" / "report.json").read_text())["validation"]["tickets"]
    assert f"{validated} tickets" in capsys.readouterr().out


def test_corrections_that_cannot_be_read_stop_before_training_and_stay(tickets_csv, tmp_path, capsys):
    path = tmp_path / "o.label_errors.csv"
    path.write_text("ticket_id,team,corrected_team\nE-1,a,b\nE-2,only two\n")
    before = path.read_bytes()
    assert train(tickets_csv(), tmp_path / "o", "--corrections", str(path)) == REFUSED
    refused(capsys, "has rows that cannot be read", "row 3", "the file is unchanged")
    assert path.read_bytes() == before
    assert not (tmp_path / "o").exists()


# ------------------------------------------------------------------------------------ what a run says


def test_a_small_file_is_told_which_precision_it_cannot_show(tickets_csv, tmp_path, capsys):
    """A handful of validation tickets cannot show any usual precision, so none is routed."""
    out = tmp_path / "o"
    arguments = ["--data", str(tickets_csv(30)), "--out", str(out), "--recipe", "baseline", "--epochs", "12"]
    assert train_command.main(arguments) == 0
    printed = capsys.readouterr().out
    told = "validation tickets cannot show a precision of 0.9; they can: "
    assert told in printed
    assert "recipe baseline: 12 epochs, then" in printed
    assert "no suspected label errors in the training tickets" in printed
    report = json.loads((out / "report.json").read_text())
    assert report["thresholds"]["confidence"] is None
    assert report["validation"]["coverage"] == 0
    assert told in (out / "report.html").read_text()
    assert told in (out / "MODEL_CARD.md").read_text()
    assert "No training ticket is probably labelled" in (out / "MODEL_CARD.md").read_text()


@pytest.mark.skipif(sys.platform == "win32", reason="signals as Unix knows them")
def test_ctrl_c_ends_with_a_word_and_not_with_a_traceback(tickets_csv, tmp_path):
    """Also where the parent ignores SIGINT, as nohup and some CI systems do."""
    command = [
        sys.executable,
        "-m",
        "training.train",
        "--data",
        str(tickets_csv(600)),
        "--recipe",
        "baseline",
    ]
    command += ["--epochs", "10000", "--report", "none", "--out", str(tmp_path / "o")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    checkpoint = tmp_path / ".o.training" / "checkpoint.pt"
    try:
        for _ in range(600):
            if checkpoint.exists() or process.poll() is not None:
                break
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == INTERRUPTED
    assert "continues it after the last complete epoch" in errors
    assert "Traceback" not in errors


# ------------------------------------------------------------------------------------ the other commands


def test_evaluating_tickets_of_other_teams_alone_is_refused(larkfield_like, tmp_path, capsys):
    foreign = write_csv(tmp_path / "foreign.csv", ticket_rows(9))
    for command in (
        lambda: evaluate_command.main(["--bundle", str(larkfield_like), "--data", str(foreign)]),
        lambda: compare_command.main([str(larkfield_like), str(larkfield_like), "--data", str(foreign)]),
    ):
        assert command() == REFUSED
        refused(capsys, "no ticket has a team that the bundle knows", "'garden'", "'a'")


@pytest.fixture(scope="module")
def larkfield_like(tmp_path_factory) -> Path:
    """A bundle of other teams than those of the examples."""
    folder = tmp_path_factory.mktemp("others")
    rows = [{**row, "team": {"garden": "a"}.get(row["team"], "b")} for row in ticket_rows(60)]
    assert train(write_csv(folder / "t.csv", rows), folder / "bundle") == 0
    return folder / "bundle"


@pytest.mark.parametrize("content", ["", "ticket_id,text,team\n"])
def test_evaluating_nothing_is_refused(larkfield_like, tmp_path, capsys, content):
    (tmp_path / "t.csv").write_text(content)
    assert evaluate_command.main(["--bundle", str(larkfield_like), "--data", str(tmp_path / "t.csv")]) == 2
    refused(capsys, "t.csv")
    for bundle in (tmp_path, tmp_path / "none", tmp_path / "t.csv"):
        assert evaluate_command.main(["--bundle", str(bundle), "--data", str(tmp_path / "t.csv")]) == 2
        refused(capsys, "training.evaluate")


@pytest.mark.parametrize("count", ["-1", "0", "1000001", "many"])
def test_synthetic_tickets_have_a_number(tmp_path, capsys, count):
    with pytest.raises(SystemExit) as left:
        synthetic_command.main(["--count", count, "--out", str(tmp_path / "t.csv")])
    assert left.value.code == REFUSED
    refused(capsys, "--count", "1 to 1,000,000")


def test_synthetic_tickets_have_a_place(tmp_path, capsys):
    (tmp_path / "file").write_text("x")
    for out in (tmp_path, tmp_path / "file" / "t.csv"):
        assert synthetic_command.main(["--count", "1", "--out", str(out)]) == REFUSED
        refused(capsys, str(tmp_path))


def test_the_table_of_targets_is_not_begun_with_what_is_not_there(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(bench_command, "DATA", tmp_path)
    with pytest.raises(SystemExit) as left:
        bench_command.main(["--sets", "nonsense"])
    assert left.value.code == REFUSED
    refused(capsys, "larkfield", "clinc150")
    assert bench_command.main(["--sets", "larkfield", "--recipe", "nonsense"]) == REFUSED
    refused(capsys, "no recipe 'nonsense'")
    assert bench_command.main(["--sets", "larkfield", "--out", str(tmp_path / "no" / "f.json")]) == REFUSED
    refused(capsys, "f.json")
    assert bench_command.main(["--sets", "larkfield", "--recipe", "baseline"]) == REFUSED
    refused(capsys, "train.csv")


def test_a_fault_of_the_program_keeps_its_traceback():
    def broken() -> int:
        raise ValueError("nobody's input")

    with pytest.raises(ValueError, match="nobody"):
        guarded("program", broken, DataError)
