"""`service.feedback export` with files and databases as they should not be: exit code 2 and the reason."""

from __future__ import annotations

import codecs
import csv
from pathlib import Path
from typing import Any

import pytest

from service.feedback.__main__ import main
from service.feedback.store import Store


@pytest.fixture
def export(tmp_path: Path) -> Any:
    """export(*flags) with a database that knows who solved A-1 and A-2, and no text."""
    url = f"sqlite:///{tmp_path / 'feedback.db'}"
    store = Store(url)
    store.add_feedback("garden", ticket_id="A-1", request_id=None)
    store.add_feedback("kitchen", ticket_id="A-2", request_id=None)
    store.close()
    out = tmp_path / "out.csv"

    def run(*flags: object) -> int:
        return main(["export", "--url", url, "--out", str(out), *map(str, flags)])

    return run


def desk(folder: Path, content: bytes) -> Path:
    path = folder / "desk.csv"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("ticket_id,text\nA-1,café\n".encode("latin-1"), "desk.csv is no CSV in UTF-8"),
        (b"PK\x03\x04\xff\xfe", "desk.csv is no CSV in UTF-8"),
        (b'ticket_id,text\nA-1,"never closed\nA-2,x\n', "desk.csv is no sound CSV"),
        (b"ticket_id,text,text\nA-1,one,two\n", "2 columns 'text'"),
        (b"", "it has: nothing"),
    ],
)
def test_a_file_of_tickets_that_cannot_be_read_is_named(
    export: Any, tmp_path: Path, capsys: Any, content: bytes, reason: str
) -> None:
    assert export("--tickets", desk(tmp_path, content)) == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "out.csv").exists()


def test_long_texts_and_utf16_are_read(export: Any, tmp_path: Path) -> None:
    long = "word " * 60_000
    content = codecs.BOM_UTF16_LE + f"ticket_id,text\nA-1,{long}\nA-2,café\n".encode("utf-16-le")
    assert export("--tickets", desk(tmp_path, content)) == 0
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        csv.field_size_limit(10_000_000)
        assert [row["text"] for row in csv.DictReader(file)] == [long, "café"]


def test_nothing_to_train_on_writes_no_file(export: Any, tmp_path: Path, capsys: Any) -> None:
    assert export() == 2
    assert "2 feedbacks, none of them with a text" in capsys.readouterr().err
    assert export("--tickets", desk(tmp_path, b"ticket_id,text\nA-1,x y\n"), "--since", "2099-01-01") == 2
    assert "0 feedbacks" in capsys.readouterr().err
    assert not (tmp_path / "out.csv").exists()


def test_a_mistyped_database_is_not_made(tmp_path: Path, capsys: Any) -> None:
    missing = tmp_path / "mistyped.db"
    for url, reason in (
        (f"sqlite:///{missing}", "there is no such database"),
        ("nonsense", "cannot be read"),
        ("mysql://somewhere/else", "sqlite or postgresql"),
    ):
        assert main(["export", "--url", url, "--out", str(tmp_path / "out.csv")]) == 2
        assert reason in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_day_that_is_none_is_named(export: Any, capsys: Any) -> None:
    with pytest.raises(SystemExit) as left:
        export("--since", "yesterday")
    assert left.value.code == 2
    assert "'yesterday' is not a date such as" in capsys.readouterr().err


def test_the_earlier_tickets_may_be_written_over(export: Any, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out.csv"
    out.write_text("ticket_id,text,team\nA-1,one two,kitchen\nB-7,three four,garden\n")
    assert export("--add-to", out, "--tickets", desk(tmp_path, b"ticket_id,text\nA-1,one two\n")) == 0
    with out.open(newline="", encoding="utf-8") as file:
        assert [(row["ticket_id"], row["team"]) for row in csv.DictReader(file)] == [
            ("A-1", "garden"),
            ("B-7", "garden"),
        ]
    assert not list(tmp_path.glob(".*")), "nothing half-made is left"


def test_a_place_that_cannot_be_written_leaves_what_was_there(
    export: Any, tmp_path: Path, capsys: Any
) -> None:
    tickets = desk(tmp_path, b"ticket_id,text\nA-1,one two\n")
    (tmp_path / "out.csv").mkdir()
    assert export("--tickets", tickets) == 2
    assert "out.csv" in capsys.readouterr().err
    assert not list(tmp_path.glob(".*"))
