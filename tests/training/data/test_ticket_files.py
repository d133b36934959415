"""Reading ticket files: formats, and every fault found and named by its row before training."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from training_examples import ticket_rows, write_csv

from models.tickets.faults import ROWS_SHOWN
from training.data.dataset import Columns, DataError, Faults, load_dataset, read_tickets


def read(path: Path, **columns) -> tuple:
    faults = Faults()
    return read_tickets(path, Columns(**columns), faults), faults


def fault(faults: Faults, kind: str):
    found = [one for one in faults if one.kind == kind]
    assert len(found) == 1, f"{kind}: {[str(one) for one in faults]}"
    return found[0]


def csv_with(path: Path, lines: list[bytes]) -> Path:
    path.write_bytes(b"\n".join([b"ticket_id,text,team", *lines]) + b"\n")
    return path


GOOD = [b"A-1,the first ticket,garden", b"A-2,the second ticket,kitchen"]


# ---------------------------------------------------------------------------------------------- formats


def write_jsonl(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_parquet(path: Path, rows: list[dict]) -> Path:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize(
    ("name", "write"),
    [("t.csv", write_csv), ("t.jsonl", write_jsonl), ("t.parquet", write_parquet)],
)
def test_every_format_gives_the_same_tickets(tmp_path, name, write):
    rows = [{**row, "style": "plain"} for row in ticket_rows(30)]
    tickets, faults = read(write(tmp_path / name, rows))
    assert tickets.ids == [row["ticket_id"] for row in rows]
    assert tickets.texts == [row["text"] for row in rows]
    assert tickets.teams == [row["team"] for row in rows]
    assert tickets.styles == ["plain"] * 30
    assert not list(faults)


def test_rows_are_numbered_as_a_spreadsheet_shows_them(tmp_path):
    tickets, _ = read(csv_with(tmp_path / "t.csv", [b'A-1,"two\nlines",garden', GOOD[1]]))
    assert tickets.rows == [2, 3]
    assert tickets.texts[0] == "two\nlines"


def test_subject_and_body_are_joined_as_serving_joins_them(tmp_path):
    from models.text import join

    rows = [
        {"subject": "Late", "body": "Where is “it”?", "queue": "a"},
        {"subject": "", "body": "Hi", "queue": "b"},
    ]
    tickets, _ = read(write_csv(tmp_path / "t.csv", rows), text=("subject", "body"), team="queue")
    assert tickets.texts == [join("Late", "Where is “it”?").text, join(None, "Hi").text]


def test_numbers_and_nulls_in_json(tmp_path):
    path = write_jsonl(
        tmp_path / "t.jsonl", [{"id": 7, "text": "some words", "team": 3}, {"text": None, "team": "x"}]
    )
    tickets, faults = read(path)
    assert (tickets.ids, tickets.teams) == (["7"], ["3"])
    assert fault(faults, "empty_text").rows == [2]


# ------------------------------------------------------------------------------------- faults of a file


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf"])
def test_an_empty_file_stops(tmp_path, content):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match="empty"):
        load_dataset(path)


def test_a_header_alone_stops(tmp_path):
    with pytest.raises(DataError, match="no usable ticket"):
        load_dataset(csv_with(tmp_path / "t.csv", []))


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl", "t.parquet"])
def test_all_missing_columns_are_named_with_those_that_exist(tmp_path, name):
    rows = [{"message": "x y", "queue": "a"}]
    {"csv": write_csv, "jsonl": write_jsonl, "parquet": write_parquet}[name[2:]](tmp_path / name, rows)
    with pytest.raises(DataError) as error:
        load_dataset(tmp_path / name)
    assert "no column 'text'" in str(error.value)
    assert "no column 'team'" in str(error.value)
    assert "message, queue" in str(error.value)


def test_semicolons_and_byte_order_mark_are_read_and_reported(tmp_path):
    path = write_csv(tmp_path / "t.csv", ticket_rows(6), delimiter=";", encoding="utf-8-sig")
    tickets, faults = read(path)
    assert len(tickets) == 6
    assert fault(faults, "delimiter").effect == fault(faults, "byte_order_mark").effect == "keeps"


def test_utf16_as_excel_saves_unicode_text(tmp_path):
    tickets, _ = read(write_csv(tmp_path / "t.csv", ticket_rows(6), delimiter="\t", encoding="utf-16"))
    assert tickets.texts == [row["text"] for row in ticket_rows(6)]


def test_a_few_broken_bytes_are_dropped_and_named(tmp_path):
    others = ["A-3,my café,garden".encode(), "A-4,crème brûlée,kitchen".encode()]
    lines = [GOOD[0], b"A-9,caf\xe9 order,garden", *others]
    tickets, faults = read(csv_with(tmp_path / "t.csv", lines))
    assert tickets.ids == ["A-1", "A-3", "A-4"]
    assert fault(faults, "broken_encoding").rows == [3]


def test_a_windows_file_is_read_and_its_encoding_is_reported(tmp_path):
    rows = [{**row, "text": row["text"] + " café"} for row in ticket_rows(30)]
    path = write_csv(tmp_path / "t.csv", rows, encoding="cp1252")
    tickets, faults = read(path)
    assert all(text.endswith("café") for text in tickets.texts)
    assert "cp1252" in str(fault(faults, "encoding"))


def test_an_encoding_that_is_named_is_taken(tmp_path):
    rows = [{**row, "text": row["text"] + " café"} for row in ticket_rows(30)]
    path = write_csv(tmp_path / "t.csv", rows, encoding="cp1252")
    dataset = load_dataset(path, encoding="cp1250")
    assert all(text.endswith("café") for text in dataset.train.texts)
    assert not [one for one in dataset.faults if one.kind == "encoding"]


@pytest.mark.parametrize("line", [b"A-9,only two", b"A-9,one,two,three", b"A-9,"])
def test_ragged_rows_are_dropped_and_named(tmp_path, line):
    tickets, faults = read(csv_with(tmp_path / "t.csv", [GOOD[0], line, GOOD[1]]))
    assert len(tickets) == 2
    assert fault(faults, "ragged_row").rows == [3]


def test_a_quote_that_never_closes_stops(tmp_path):
    path = csv_with(tmp_path / "t.csv", [GOOD[0], b'A-9,"never closed,garden', *GOOD * 20])
    with pytest.raises(DataError, match=r"never closed.*row 3"):
        load_dataset(path)


def test_a_header_that_cannot_be_read_stops(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b'ticket_id,"text,team\nA-1,some text,garden\n')
    with pytest.raises(DataError, match="header cannot be read"):
        load_dataset(path)


def test_an_encoding_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(DataError, match="--encoding utf-88"):
        load_dataset(csv_with(tmp_path / "t.csv", GOOD), encoding="utf-88")


def test_empty_lines_are_no_tickets(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes(b"\nticket_id,text,team\n\n" + GOOD[0] + b"\n\n")
    tickets, faults = read(path)
    assert (tickets.ids, list(faults)) == (["A-1"], [])


def test_a_huge_field_is_cut_and_reported(tmp_path):
    tickets, faults = read(csv_with(tmp_path / "t.csv", [b"A-9," + b"word " * 100_000 + b",garden", *GOOD]))
    assert [len(text) for text in tickets.texts] == [100_000, 16, 17]
    assert fault(faults, "huge_text").rows == [2]


def test_a_field_beyond_the_limit_stops_instead_of_filling_the_memory(tmp_path):
    path = csv_with(tmp_path / "t.csv", [GOOD[0], b'A-9,"' + b"x" * 10_000_100 + b'",garden'])
    with pytest.raises(DataError, match="row 3"):
        load_dataset(path)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[1, 2]",
        '"text"',
        "{'text': 1}",
        '{"text": [["a"]], "team": "b"}',
        '{"text": {"de": "a"}, "team": "b"}',
    ],
)
def test_lines_that_are_no_plain_json_object_are_dropped_and_named(tmp_path, line):
    path = write_jsonl(tmp_path / "t.jsonl", ticket_rows(3))
    path.write_text(path.read_text() + line + "\n")
    tickets, faults = read(path)
    assert len(tickets) == 3
    assert fault(faults, "malformed_row").rows == [4]


def test_a_file_that_is_not_parquet_stops(tmp_path):
    (tmp_path / "t.parquet").write_bytes(b"text,team\n")
    with pytest.raises(DataError, match="not a Parquet file"):
        load_dataset(tmp_path / "t.parquet")


def test_null_bytes_do_not_stop_the_reading(tmp_path):
    tickets, _ = read(csv_with(tmp_path / "t.csv", [b"A-9,a \x00 byte,garden", *GOOD]))
    assert len(tickets) == 3


# ----------------------------------------------------------------------------------- faults of the rows


def test_rows_without_text_or_team_are_dropped_and_named(tmp_path):
    lines = [GOOD[0], b"A-3, ,garden", b"A-4,some text,", "A-5,\u200b\u200b,garden".encode(), GOOD[1]]
    tickets, faults = read(csv_with(tmp_path / "t.csv", lines))
    assert tickets.rows == [2, 6]
    assert fault(faults, "empty_text").rows == [3, 5]
    assert fault(faults, "empty_team").rows == [4]


def test_white_space_around_team_names_makes_no_new_team(tmp_path):
    tickets, _ = read(csv_with(tmp_path / "t.csv", [b"A-1,one,garden", b"A-2,two, garden "]))
    assert set(tickets.teams) == {"garden"}


def test_a_repeated_row_is_dropped_and_a_reused_id_is_reported(tmp_path):
    lines = [*GOOD, b"A-1,The First  ticket,garden", b"A-2,another text,kitchen"]
    tickets, faults = read(csv_with(tmp_path / "t.csv", lines))
    assert tickets.rows == [2, 3, 5]
    assert fault(faults, "duplicate_id").rows == [4]
    assert fault(faults, "reused_id").rows == [5]


def test_the_message_shows_some_rows_and_counts_all(tmp_path):
    _, faults = read(csv_with(tmp_path / "t.csv", [*GOOD, *[b"A-9,,garden"] * 20]))
    message = str(fault(faults, "empty_text"))
    assert message.startswith("t.csv: 20 rows dropped: no text (rows 4, 5")
    assert message.count(",") == ROWS_SHOWN
    assert faults.to_json()[0]["count"] == 20


def test_brackets_without_end_are_one_bad_row(tmp_path):
    path = tmp_path / "t.jsonl"
    good = json.dumps({"text": "some words", "team": "x"})
    path.write_text(good + "\n" + '{"text":' + "[" * 100_000 + "\n" + good + "\n")
    faults = Faults()
    assert len(read_tickets(path, Columns(), faults)) == 2
    assert [(fault.kind, list(fault.rows)) for fault in faults] == [("malformed_row", [2])], "row 2 alone"
