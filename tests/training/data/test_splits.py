"""A ticket's side depends on its own text or time; templates stay together; repetition is counted."""

import random

import numpy as np
import pytest
from training_examples import write_csv

from models.tickets.faults import DataError, Faults
from training.data.dataset import Columns, load_dataset
from training.data.leaks import find_leaks, warn_leaks
from training.data.splits import stratified_folds
from training.data.templates import each_group_once, first_of_each, template_key, text_key
from training.data.tickets import Tickets
from training.data.times import seconds

WORDS = [
    f"{a}{b}" for a in ("bla", "fru", "kno", "spi", "tra", "wex") for b in ("dor", "mik", "nal", "pes", "ruf")
]


def rows(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Tickets of two teams in words that nobody uses, each in a template of its own."""
    generator = random.Random(seed)
    return [
        {
            "ticket_id": f"{seed}-{n}",
            "text": " ".join(generator.choices(WORDS, k=8)),
            "team": ("left", "right")[n % 2],
            "closed": f"2026-{n // 28 % 12 + 1:02d}-{n % 28 + 1:02d}",
        }
        for n in range(count)
    ]


def sides(dataset) -> dict[str, str]:
    return {
        text: side
        for side, part in (("train", dataset.train), ("valid", dataset.valid))
        for text in part.texts
    }


# ------------------------------------------------------------------------------------------- templates


@pytest.mark.parametrize(
    "other",
    [
        "Backup of SRV-0231 failed on 4 March 2026 at 22:15 with code 0x80",
        "backup of db17.corp.example failed  on Monday at 9:01, with code 7",
        "Backup of https://node/x failed on 2026-11-30 at 22:15 with code E-17.",
    ],
)
def test_tickets_of_one_template_differ_in_numbers_ids_addresses_and_dates(other: str) -> None:
    first = "Backup of web-1 failed on 2026-03-01 at 10:00 with code 12"
    assert template_key(first) == template_key(other)
    assert text_key(first) != text_key(other)


def test_other_words_are_another_template() -> None:
    assert template_key("the 3 lamps are dark") != template_key("the 3 lamps are bright")
    assert template_key("4711") != template_key("4712")


def test_weights_count_each_group_once() -> None:
    tickets = Tickets(texts=["job 1 failed", "JOB 1  failed", "job 2 failed", "other"], teams=list("aaab"))
    assert tickets.text_groups.tolist() == [0, 0, 1, 2]
    assert tickets.template_groups.tolist() == [0, 0, 0, 1]
    assert each_group_once(tickets.text_groups).tolist() == [0.5, 0.5, 1, 1]
    assert first_of_each(tickets.text_groups).tolist() == [0, 2, 3]
    found = tickets.repetition
    assert (found.tickets, found.same_text, found.same_template, found.largest_template) == (4, 1, 2, 3)


# -------------------------------------------------------------------------------------- split by text


def test_correcting_adding_and_dropping_others_moves_no_ticket(tmp_path) -> None:
    given = rows(400)
    before = sides(load_dataset(write_csv(tmp_path / "a.csv", given)))
    changed = [{**row, "team": "right"} if n % 7 == 0 else row for n, row in enumerate(given) if n % 5]
    more = [{**row, "team": "third"} for row in rows(200, seed=1)]
    after = sides(load_dataset(write_csv(tmp_path / "b.csv", [*more, *reversed(changed)])))
    common = before.keys() & after.keys()
    assert len(common) == 320
    assert {text: before[text] for text in common} == {text: after[text] for text in common}
    assert 0.1 < list(before.values()).count("valid") / 400 < 0.3


def test_a_larger_share_holds_out_more_of_the_same(tmp_path) -> None:
    path = write_csv(tmp_path / "a.csv", rows(400))
    small, large = (load_dataset(path, valid_share=share).valid.texts for share in (0.1, 0.3))
    assert set(small) < set(large)


def test_near_duplicates_stay_on_one_side(tmp_path) -> None:
    alerts = [
        {**row, "ticket_id": f"{row['ticket_id']}/{n}", "text": f"{row['text']} node{n} at 10:{n}"}
        for row in rows(60)
        for n in range(5)
    ]
    dataset = load_dataset(write_csv(tmp_path / "a.csv", alerts))
    assert not {template_key(text) for text in dataset.train.texts} & {
        template_key(text) for text in dataset.valid.texts
    }
    assert len(dataset.train) + len(dataset.valid) == 300
    assert dataset.train.repetition.same_template == 4 * len(dataset.train) // 5


def test_each_team_keeps_a_template_to_train_on(tmp_path) -> None:
    alert = [
        {"ticket_id": f"alert-{n}", "text": f"{word} is down {n}", "team": word}
        for word in WORDS
        for n in range(6)
    ]
    dataset = load_dataset(
        write_csv(tmp_path / "a.csv", [{**row, "closed": ""} for row in alert] + rows(100))
    )
    assert set(dataset.train.teams) == {*WORDS, "left", "right"}


def test_folds_keep_groups_together_and_spread_teams() -> None:
    groups = np.repeat(np.arange(60), [1] * 50 + [7] * 10)
    targets = np.repeat(np.arange(60) % 3, [1] * 50 + [7] * 10)
    fold = stratified_folds(targets, groups, 4, seed=0)
    assert all(len(set(fold[groups == group])) == 1 for group in range(60))
    first = first_of_each(groups)
    for team in range(3):
        assert np.bincount(fold[first][targets[first] == team], minlength=4).tolist() == [5] * 4
    few = stratified_folds(np.array([0, 0, 1]), np.array([0, 1, 2]), 4, seed=0)
    assert set(few.tolist()) == {0, 1}


def test_copies_of_a_ticket_are_evidence_once(tmp_path) -> None:
    given = [{**row, "ticket_id": f"{row['ticket_id']}/{n}"} for row in rows(60) for n in range(6)]
    dataset = load_dataset(write_csv(tmp_path / "a.csv", given))
    distinct = dataset.with_distinct_valid()
    assert len(dataset.valid) == 6 * len(distinct.valid)
    assert set(distinct.valid.texts) == set(dataset.valid.texts)
    assert len(distinct.train) == len(dataset.train)


# -------------------------------------------------------------------------------------- split by time


def test_the_newest_tickets_are_validated_on(tmp_path) -> None:
    given = rows(300)
    random.Random(1).shuffle(given)
    dataset = load_dataset(
        write_csv(tmp_path / "a.csv", given), columns=Columns(time="closed"), valid_share=0.1
    )
    assert len(dataset.valid) == 30
    assert max(dataset.train.times) <= min(dataset.valid.times)
    assert "newest 10%" in dataset.valid.file


def test_a_template_is_as_old_as_its_first_ticket(tmp_path) -> None:
    given = rows(300)
    given += [{**given[5], "ticket_id": "again", "text": given[5]["text"] + " 77", "closed": "2026-12-31"}]
    given += [{**row, "ticket_id": "no time", "closed": "soon"} for row in rows(1, seed=9)]
    dataset = load_dataset(write_csv(tmp_path / "a.csv", given), columns=Columns(time="closed"))
    assert {"again", "no time"} <= set(dataset.train.ids)
    assert [fault.rows for fault in dataset.faults if fault.kind == "no_time"] == [[303]]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2026-12-31", 1798675200),
        ("2026-12-31T14:05:00Z", 1798725900),
        ("2026-12-31 15:05:00+01:00", 1798725900),
        ("31.12.2026 14:05", 1798725900),
        ("31/12/26 14:05", 1798725900),
        ("12/31/2026 2:05 PM", 1798725900),
        ("31-Dec-2026 14:05", 1798725900),
        ("Dec 31, 2026", 1798675200),
        ("Thu, 31 Dec 2026 14:05:00 +0000", 1798725900),
        ("1798725900", 1798725900),
        ("1798725900000", 1798725900),
    ],
)
def test_times_as_programs_write_them(value: str, expected: int) -> None:
    assert seconds([value], "closed") == [expected]


def test_what_is_no_time_is_no_number() -> None:
    assert np.isnan(seconds(["", "soon", "99.99.2026", "1" * 500], "closed")).all()


def test_ambiguous_days_and_months_stop() -> None:
    with pytest.raises(DataError, match="day or the month"):
        seconds(["03/04/2026", "05/06/2026"], "closed")
    assert seconds(["03/04/2026", "25/06/2026"], "c")[0] == seconds(["2026-04-03"], "c")[0]
    assert seconds(["03/04/2026", "06/25/2026"], "c")[0] == seconds(["2026-03-04"], "c")[0]


def test_a_column_without_times_stops(tmp_path) -> None:
    with pytest.raises(DataError, match="no value of 'team' is a time"):
        load_dataset(write_csv(tmp_path / "a.csv", rows(30)), columns=Columns(time="team"))


# ---------------------------------------------------------------------------------------------- leaks


def test_label_leaks_are_reported(tmp_path) -> None:
    given = rows(100)
    assert not list(
        find_leaks(Tickets(texts=[row["text"] for row in given], teams=[row["team"] for row in given]))
    )
    texts = [f"{row['text']} {'routed: left' if row['team'] == 'left' else 'q77'}" for row in given]
    found = list(find_leaks(Tickets(texts=texts, teams=[row["team"] for row in given])))
    assert found == [("left", "left", 1.0, True), ("right", "q77", 1.0, True)]
    faults = Faults()
    warn_leaks(Tickets(texts=texts, teams=[row["team"] for row in given]), faults)
    (fault,) = faults
    assert "'q77' (100% of 'right', no other)" in str(fault)


def test_a_word_of_several_teams_is_not_a_leak() -> None:
    given = rows(100)
    texts = [
        row["text"] + (" please" if row["team"] == "left" or n < 2 else "") for n, row in enumerate(given)
    ]
    assert not list(find_leaks(Tickets(texts=texts, teams=[row["team"] for row in given])))
