"""A person's corrections: all read or none, applied to the ticket they show, never overwritten."""

import csv
from pathlib import Path

import pytest
from training_examples import ticket_rows, write_csv

from models.tickets.faults import DataError, Faults
from models.tickets.formulas import quoted, unquoted
from training.data.corrections import apply_corrections, key_of, read_corrections, to_csv
from training.data.corrections import write_csv as write_table
from training.data.dataset import load_dataset
from training.data.tickets import Tickets

CASES = Path(__file__).resolve().parents[4] / "shared" / "cases"


def tickets(*rows: tuple[str, str, str]) -> Tickets:
    ids, texts, teams = map(list, zip(*rows, strict=True))
    return Tickets("t.csv", ids=ids, texts=texts, teams=teams, rows=list(range(2, 2 + len(ids))))


def corrected(path: Path, *parts: Tickets) -> tuple[list[list[str]], Faults]:
    faults = Faults()
    return [part.teams for part in apply_corrections(parts, path, faults)], faults


def table(path: Path, **columns: str) -> Path:
    return write_csv(path, [{"corrected_team": "new", **columns}])


TWO = tickets(("1", "the lamp is dark", "old"), ("1", "the door is loud", "old"))


def test_an_id_that_repeats_corrects_the_ticket_whose_text_is_shown(tmp_path) -> None:
    path = table(tmp_path / "c.csv", ticket_id="1", text="The door  is loud")
    assert corrected(path, TWO)[0] == [["old", "new"]]
    path = table(tmp_path / "c.csv", ticket_id="1.0", text_key=key_of("the lamp is dark"))
    assert corrected(path, TWO)[0] == [["new", "old"]]


@pytest.mark.parametrize("shown", [{}, {"text": ""}, {"text": "another text"}, {"text_key": "t12"}])
def test_an_ambiguous_correction_is_refused(tmp_path, shown: dict) -> None:
    teams, faults = corrected(table(tmp_path / "c.csv", ticket_id="1", **shown), TWO)
    assert teams == [["old", "old"]]
    assert [(fault.kind, fault.effect, fault.rows) for fault in faults] == [
        ("refused_correction", "stops", [2])
    ]


def test_a_row_number_names_a_ticket_by_its_text_alone(tmp_path) -> None:
    again = tickets(("row 2", "a new one", "old"), ("row 3", "the lamp is dark", "old"))
    path = table(tmp_path / "c.csv", ticket_id="row 2", text="the lamp is dark")
    assert corrected(path, again)[0] == [["old", "new"]]
    for shown in ({"text": "gone"}, {}):
        _, faults = corrected(table(tmp_path / "c.csv", ticket_id="row 2", **shown), again)
        assert faults.fatal


def test_one_id_without_a_text_is_enough_where_one_ticket_has_it(tmp_path) -> None:
    one = tickets(("1", "the lamp is dark", "old"), ("2", "the door is loud", "old"))
    assert corrected(table(tmp_path / "c.csv", ticket_id="2"), one)[0] == [["old", "new"]]


def test_tickets_of_validation_are_corrected_too(tmp_path) -> None:
    valid = tickets(("9", "the roof leaks", "old"))
    assert corrected(table(tmp_path / "c.csv", ticket_id="9", text="the roof leaks"), TWO, valid)[0][1] == [
        "new"
    ]


def test_two_corrections_of_one_ticket_are_refused(tmp_path) -> None:
    lines = [{"ticket_id": "1", "corrected_team": team, "text": "the door is loud"} for team in ("a", "b")]
    _, faults = corrected(write_csv(tmp_path / "c.csv", lines), TWO)
    assert [fault.rows for fault in faults if fault.effect == "stops"] == [[3]]


def test_what_excel_makes_of_a_text_is_the_same_text(tmp_path) -> None:
    long = "palabra " * 5_000
    given = tickets(("1", "é 漢字 is dark", "old"), ("2", long, "old"), ("3", "=A1 is dark", "old"))
    lines = [
        {"ticket_id": "1", "corrected_team": "Störung", "text": "é ?? is dark"},
        {"ticket_id": "2", "corrected_team": "Störung", "text": long[:32_767]},
        {"ticket_id": "3", "corrected_team": "Störung", "text": "'=A1 is dark"},
    ]
    path = write_csv(tmp_path / "c.csv", lines, delimiter=";", encoding="cp1252")
    assert corrected(path, given)[0] == [["Störung"] * 3]


def test_a_table_comes_back_from_excel_as_it_was_written(tmp_path) -> None:
    line = {"ticket_id": "-7", "row": "2", "part": "training", "team": "@home", "suggested_team": "x"}
    line |= {
        "probability_wrong": "0.1",
        "corrected_team": "=Büro",
        "text": "+49 is no number\n'=x",
        "text_key": "",
    }
    path = tmp_path / "o.label_errors.csv"
    write_table(path, to_csv([line], [line]))
    assert path.read_bytes().startswith(b"\xef\xbb\xbf")
    with path.open(encoding="utf-8-sig", newline="") as file:
        (written,) = csv.DictReader(file)
    assert [written[name][:2] for name in ("ticket_id", "team", "corrected_team", "text")] == [
        "'-",
        "'@",
        "'=",
        "'+",
    ]
    assert read_corrections(path) == [{**line, "text_key": key_of(line["text"])}]


def test_a_table_without_texts_still_names_them(tmp_path) -> None:
    line = dict.fromkeys(("row", "part", "team", "suggested_team", "probability_wrong", "corrected_team"), "")
    written = to_csv([{**line, "ticket_id": "1", "text_key": "", "text": "the door is loud"}], texts=False)
    assert "loud" not in written
    assert key_of("the door is loud") in written


@pytest.mark.parametrize("cell", ["=1", "'=1", "''@x", "plain", "'plain", "", "'", "a=b"])
def test_quoting_has_a_way_back(cell: str) -> None:
    assert unquoted(quoted(cell)) == cell
    assert not quoted(cell).startswith(("=", "+", "-", "@"))


@pytest.mark.parametrize("content", ["something else\n", "ticket_id,corrected_team\n1,a,b\n", ""])
def test_a_table_with_unreadable_rows_stops(tmp_path, content: str) -> None:
    (tmp_path / "c.csv").write_text(content)
    with pytest.raises(DataError, match="has rows that cannot be read"):
        read_corrections(tmp_path / "c.csv")


def test_a_correction_leaves_every_other_ticket_on_its_side(tmp_path) -> None:
    rows = ticket_rows(240)
    path = write_csv(tmp_path / "t.csv", rows)
    before = load_dataset(path)
    lines = [
        {"ticket_id": row["ticket_id"], "corrected_team": "kitchen", "text": row["text"]} for row in rows[:20]
    ]
    after = load_dataset(path, corrections=write_csv(tmp_path / "c.csv", lines))
    assert after.valid.ids == before.valid.ids
    assert after.train.ids == before.train.ids


@pytest.mark.skipif(not CASES.is_dir(), reason="the exported cases in ../shared/cases are not here")
def test_reported_cases() -> None:
    folder = CASES / "corrections"
    filled = folder / "filled_in_by_excel.label_errors.csv"
    dataset = load_dataset(CASES / "noisy_umlaut_teams.csv", corrections=filled)
    assert dataset.faults.count("corrected_team") == 13
    with pytest.raises(DataError, match="its text differs"):
        load_dataset(CASES / "date_ids.csv", corrections=folder / "reused_id.csv")
    with pytest.raises(DataError, match="its text differs"):
        load_dataset(folder / "noid_exported_again.csv", corrections=folder / "row_id.csv")
