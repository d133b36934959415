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
        (b"PK\x03\x04\xff\xfe", "a ZIP file without a spreadsheet"),
        (b"ticket_id,text,text\nA-1,one,two\n", "2 columns are named 'text'"),
        (b"number,text\n1,one\n", "no column 'ticket_id'"),
        (b"", "the file is empty"),
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
        ("nonsense", "is not valid"),
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


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_what_training_reads_is_read(export: Any, tmp_path: Path) -> None:
    """A semicolon, another encoding, JSON lines: the reader of training."""
    content = "ticket_id;text\nA-1;Mein Gerät ist kaputt und gefällt mir nicht\n".encode("cp1252")
    assert export("--tickets", desk(tmp_path, content)) == 0
    assert rows_of(tmp_path / "out.csv")[0]["text"] == "Mein Gerät ist kaputt und gefällt mir nicht"
    lines = tmp_path / "desk.jsonl"
    lines.write_text('{"key": "A-2", "fields": {"summary": "The oven", "text": "is cold"}}\n')
    columns = ("--id-column", "key", "--text-column", "fields.summary", "--text-column", "fields.text")
    assert export("--tickets", lines, *columns) == 0
    assert rows_of(tmp_path / "out.csv") == [
        {"ticket_id": "A-2", "text": "The oven\nis cold", "team": "kitchen"}
    ]


def test_numbers_match_however_they_are_written(tmp_path: Path, capsys: Any) -> None:
    url = f"sqlite:///{tmp_path / 'feedback.db'}"
    store = Store(url)
    for name in ("1", "2.0", "INC-3"):
        store.add_feedback("garden", ticket_id=name)
    store.close()
    tickets = desk(tmp_path, b"ticket_id,text\n1.0,one two\n2,three four\n3,five six\n")
    out = tmp_path / "out.csv"
    assert main(["export", "--url", url, "--out", str(out), "--tickets", str(tickets)]) == 0
    assert {row["text"] for row in rows_of(out)} == {"one two", "three four"}
    told = capsys.readouterr().out
    assert "1 of 3 ticket ids are not in desk.csv: feedback has 'INC-3'; the file has '1', '2', '3'" in told


def test_one_text_never_gets_two_teams(tmp_path: Path, capsys: Any) -> None:
    url = f"sqlite:///{tmp_path / 'feedback.db'}"
    store = Store(url)
    for name, team in (("A-1", "garden"), ("A-2", "kitchen")):
        store.add_feedback(team, ticket_id=name)
    store.close()
    tickets = desk(tmp_path, b"ticket_id,text\nA-1,The lamp flickers\nA-2,the  lamp flickers\n")
    earlier = tmp_path / "earlier.csv"
    earlier.write_text("ticket_id,text,team\nB-1,The lamp flickers,returns\nB-2,other words,returns\n")
    out = tmp_path / "out.csv"
    given = ["--tickets", str(tickets), "--add-to", str(earlier)]
    assert main(["export", "--url", url, "--out", str(out), *given]) == 0
    assert [(row["ticket_id"], row["team"]) for row in rows_of(out)] == [
        ("B-1", "kitchen"),
        ("B-2", "returns"),
        ("A-1", "kitchen"),
        ("A-2", "kitchen"),
    ]
    told = capsys.readouterr().out
    assert "2 tickets got the team of the newest feedback on the same text" in told
    assert "teams that the earlier tickets do not have: 'garden' (1), 'kitchen' (1)" in told


def test_one_correction_replaces_one_of_the_tickets_that_share_an_id(export: Any, tmp_path: Path) -> None:
    earlier = tmp_path / "earlier.csv"
    earlier.write_text("ticket_id,text,team\nA-1,first words,x\nA-1,second words,x\nA-1,third words,x\n")
    tickets = desk(tmp_path, b"ticket_id,text\nA-1,second words\n")
    assert export("--add-to", earlier, "--tickets", tickets) == 0
    assert [row["team"] for row in rows_of(tmp_path / "out.csv")] == ["x", "garden", "x"]


def test_several_helpdesks_need_a_name(tmp_path: Path, capsys: Any) -> None:
    url = f"sqlite:///{tmp_path / 'feedback.db'}"
    store = Store(url)
    for source, team in (("rt", "garden"), ("zammad", "kitchen")):
        store.add_feedback(team, ticket_id="7", source=source)
    store.add_feedback("#not_a_ticket", ticket_id="8", source="rt")
    store.close()
    tickets = desk(tmp_path, b"ticket_id,text\n7,one two\n8,three four\n")
    out = tmp_path / "out.csv"
    command = ["export", "--url", url, "--out", str(out), "--tickets", str(tickets)]
    assert main(command) == 2
    assert "several helpdesks (rt, zammad)" in capsys.readouterr().err
    assert main([*command, "--source", "otrs"]) == 2
    assert "sources: rt, zammad" in capsys.readouterr().err
    assert main([*command, "--source", "rt"]) == 0
    assert rows_of(out) == [{"ticket_id": "rt:7", "text": "one two", "team": "garden"}]
    assert "1 left out: no team fits, or it is not a ticket" in capsys.readouterr().out


def test_migrate_goes_back_and_forth(tmp_path: Path, capsys: Any) -> None:
    url = f"sqlite:///{tmp_path / 'feedback.db'}"
    store = Store(url)
    store.add_feedback("garden", ticket_id="7", source="rt")
    store.close()
    for target, told in (("1", "2 -> 1"), ("1", "1: nothing to do"), ("2", "1 -> 2")):
        assert main(["migrate", "--url", url, "--to", target]) == 0
        assert told in capsys.readouterr().out
    assert main(["migrate", "--url", f"sqlite:///{tmp_path / 'mistyped.db'}"]) == 2
    assert "there is no such database" in capsys.readouterr().err
