"""Files with the faults of real exports, where they are at hand: each is read, or told what to do."""

from collections import Counter
from pathlib import Path

import pytest

from models.tickets.columns import Columns
from models.tickets.faults import DataError
from training.data.dataset import load_dataset

CASES = Path(__file__).resolve().parents[4] / "shared" / "cases"
TEAMS = {"Accounts", "Hardware", "Network", "Payroll", "Printing", "Software"}
JIRA = Columns(text=("fields.summary", "fields.description"), team="fields.components.name", id="key")

pytestmark = pytest.mark.skipif(
    not CASES.is_dir(), reason="the exported cases in ../shared/cases are not here"
)


@pytest.mark.parametrize(
    ("name", "tickets", "told"),
    [
        ("array.json", 200, None),
        ("backslash_quotes.csv", 400, "backslash_quotes"),
        ("bom_mojibake_header.csv", 300, "misread_mark"),
        ("float_ids.csv", 400, None),
        ("formula_text.csv", 300, None),
        ("invisible_teams.csv", 600, "team_spelling"),
        ("mac_cr.csv", 300, None),
        ("nested.jsonl", 300, None),
        ("null_teams.csv", 606, "empty_team"),
        ("sep_line.csv", 300, "separator_line"),
        ("unquoted_newlines.csv", 300, "rejoined_row"),
    ],
)
def test_is_read_whole(name: str, tickets: int, told: str | None) -> None:
    dataset = load_dataset(CASES / name, columns=JIRA if name == "nested.jsonl" else None)
    assert set(dataset.teams) == TEAMS
    assert len(dataset.train) + len(dataset.valid) == tickets
    if told:
        assert told in {fault.kind for fault in dataset.faults}


def test_composed_and_decomposed_names_are_one_team() -> None:
    assert len(load_dataset(CASES / "nfd_teams.csv").teams) == 6


def test_a_title_above_the_header_suggests_skip_rows() -> None:
    with pytest.raises(DataError, match=r"the header seems to be row 4.*--skip-rows 3"):
        load_dataset(CASES / "title_rows.csv")
    dataset = load_dataset(CASES / "title_rows.csv", skip_rows=3)
    assert len(dataset.train) + len(dataset.valid) == 300


def test_ids_made_to_numbers_with_a_point_are_whole_again() -> None:
    ids = load_dataset(CASES / "float_ids.csv").train.ids
    assert all(one.isdecimal() for one in ids)


def test_texts_that_begin_with_a_sign_of_equality_stay_as_they_are() -> None:
    texts = load_dataset(CASES / "formula_text.csv").train.texts
    assert Counter(text[0] for text in texts)["="] > 0
