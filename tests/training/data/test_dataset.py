"""The checked data set: faults between files, the split, what is dropped and what stops."""

import argparse

import pytest
from training_examples import ticket_rows, write_csv

from training.data.columns import add_column_flags
from training.data.dataset import Columns, DataError, default_valid_share, fingerprint, load_dataset


def kinds(dataset) -> dict[str, int]:
    return {fault.kind: len(fault.rows) for fault in dataset.faults}


def folder_with(tmp_path, train: list[dict], valid: list[dict]):
    write_csv(tmp_path / "train.csv", train)
    write_csv(tmp_path / "valid.csv", valid)
    return tmp_path


def test_one_file_is_split_the_same_way_each_time(tickets_csv):
    path = tickets_csv(600)
    dataset, again = load_dataset(path), load_dataset(path)
    assert set(dataset.valid.teams) == {"billing", "garden", "kitchen"}
    assert 60 <= len(dataset.valid) <= 180
    assert not set(dataset.train.ids) & set(dataset.valid.ids)
    assert len(dataset.train) + len(dataset.valid) == 600
    assert again.valid.ids == dataset.valid.ids
    assert dataset.teams == ("billing", "garden", "kitchen")


def test_equal_texts_fall_on_the_same_side(tmp_path):
    rows = [
        {**row, "ticket_id": f"{row['ticket_id']}-{copy}"} for row in ticket_rows(60) for copy in range(3)
    ]
    dataset = load_dataset(write_csv(tmp_path / "t.csv", rows))
    assert not set(dataset.train.texts) & set(dataset.valid.texts)
    assert len(dataset.train) + len(dataset.valid) == 180


def test_merged_teams_count_as_one_and_the_split_stays(tmp_path):
    path = write_csv(tmp_path / "t.csv", ticket_rows(60))
    apart = load_dataset(path)
    merged = load_dataset(path, columns=Columns(merged=(("garden", "kitchen"),)))
    assert merged.teams == ("billing", "kitchen")
    assert merged.train.teams.count("kitchen") == sum(
        apart.train.teams.count(team) for team in ("garden", "kitchen")
    )
    assert not list(merged.faults)


@pytest.mark.parametrize("text", ["refunds", "=payments", "refunds=", "refunds= refunds", "none=payments"])
def test_teams_to_merge_are_two_different_ones(text, capsys):
    options = argparse.ArgumentParser()
    add_column_flags(options)
    with pytest.raises(SystemExit):
        options.parse_args(["--merge-team", text])
    assert "two different teams" in capsys.readouterr().err


def test_a_folder_with_train_and_valid_files(tmp_path):
    folder = folder_with(tmp_path, ticket_rows(60), ticket_rows(12, seed=1))
    dataset = load_dataset(folder)
    assert (len(dataset.train), len(dataset.valid)) == (60, 12)
    assert not list(dataset.faults)


def test_a_folder_with_one_file_is_split(tmp_path):
    write_csv(tmp_path / "export.csv", ticket_rows(60))
    dataset = load_dataset(tmp_path)
    assert len(dataset.valid) >= 1
    assert len(dataset.train) + len(dataset.valid) == 60
    assert len(load_dataset(tmp_path, valid_share=0.5).valid) > len(dataset.valid)


@pytest.mark.parametrize(
    ("tickets", "share"), [(10, 0.2), (2_999, 0.2), (4_000, 0.15), (5_000, 0.1), (50_000, 0.1)]
)
def test_a_fifth_of_a_small_file_is_set_apart_and_a_tenth_of_a_large_one(tickets, share):
    assert default_valid_share(tickets) == pytest.approx(share)


def test_a_folder_with_several_unnamed_files_stops(tmp_path):
    write_csv(tmp_path / "a.csv", ticket_rows(6))
    write_csv(tmp_path / "b.csv", ticket_rows(6))
    with pytest.raises(DataError, match=r"a\.csv, b\.csv"):
        load_dataset(tmp_path)


def test_a_path_that_does_not_exist_stops(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        load_dataset(tmp_path / "nothing.csv")


def test_texts_that_validation_also_holds_leave_training(tmp_path):
    valid = ticket_rows(12, seed=1)
    leaked = [{**row, "ticket_id": f"L-{row['ticket_id']}", "text": row["text"].upper()} for row in valid[:3]]
    dataset = load_dataset(folder_with(tmp_path, ticket_rows(60) + leaked, valid))
    assert len(dataset.train) == 60
    assert len(dataset.valid) == 12
    assert [fault.rows for fault in dataset.faults if fault.kind == "leaked_text"] == [[62, 63, 64]]


def test_shared_ids_are_reported(tmp_path):
    valid = [{**row, "text": row["text"] + " again"} for row in ticket_rows(6)]
    dataset = load_dataset(folder_with(tmp_path, ticket_rows(60), valid))
    assert [fault.rows for fault in dataset.faults] == [[2, 3, 4, 5, 6, 7]]
    assert kinds(dataset) == {"shared_id": 6}


def test_a_team_that_training_does_not_know_stops_and_the_nearest_is_named(tmp_path):
    valid = [*ticket_rows(6, seed=1), {"ticket_id": "V", "text": "a new one", "team": "gardens"}]
    with pytest.raises(DataError, match=r"valid\.csv: 1 row .*'gardens'; did you mean 'garden'\? \(row 8\)"):
        load_dataset(folder_with(tmp_path, ticket_rows(60), valid))


def test_a_team_with_too_few_tickets_is_dropped_from_both_files(tmp_path):
    rare = [{"ticket_id": f"R-{n}", "text": f"odd request {n}", "team": "odd"} for n in range(6)]
    folder = folder_with(tmp_path, ticket_rows(120) + rare[:4], ticket_rows(60, seed=1) + rare[4:])
    dataset = load_dataset(folder)
    assert dataset.teams == ("billing", "garden", "kitchen")
    assert [fault.rows for fault in dataset.faults if fault.kind == "rare_team"] == [
        [122, 123, 124, 125],
        [62, 63],
    ]
    assert load_dataset(folder, min_tickets=4).teams == ("billing", "garden", "kitchen", "odd")


def test_one_team_alone_stops(tmp_path):
    rows = [{**row, "team": "only"} for row in ticket_rows(30)]
    with pytest.raises(DataError, match="at least 2"):
        load_dataset(write_csv(tmp_path / "t.csv", rows))


def test_too_many_dropped_rows_stop_unless_allowed(tmp_path):
    rows = ticket_rows(30)
    for row in rows[:3]:
        row["text"] = ""
    path = write_csv(tmp_path / "t.csv", rows)
    with pytest.raises(DataError, match=r"10% of its rows.*\n.*rows 2, 3, 4"):
        load_dataset(path)
    assert kinds(load_dataset(path, max_dropped=0.1)) == {"empty_text": 3}


def test_conflicting_labels_and_look_alike_teams_are_reported(tmp_path):
    rows = ticket_rows(60)
    rows += [{"ticket_id": "C", "text": rows[0]["text"], "team": "kitchen"}]
    rows += [
        {**row, "ticket_id": f"K{row['ticket_id']}", "team": "Kitchen"} for row in ticket_rows(6, seed=2)
    ]
    found = kinds(load_dataset(write_csv(tmp_path / "t.csv", rows)))
    assert found == {"conflicting_teams": 1, "look_alike_teams": 0}


def test_all_faults_are_reported_at_once(tmp_path):
    train = [*ticket_rows(60), {"ticket_id": "X", "text": "", "team": "garden"}]
    valid = [*ticket_rows(60, seed=1), {"ticket_id": "V", "text": "new", "team": "unheard"}]
    valid += [{"ticket_id": "W", "text": "", "team": "garden"}]
    with pytest.raises(DataError) as error:
        load_dataset(folder_with(tmp_path, train, valid))
    lines = str(error.value).splitlines()
    assert len(lines) == 4  # the headline, the unknown team, and an empty text in each file
    assert "cannot be used: a team without training tickets: 'unheard'" in lines[1]


def test_every_row_is_kept_or_counted(shared_data):
    dataset = load_dataset(shared_data / "clinc150", columns=Columns(team="intent"))
    dropped = sum(len(fault.rows) for fault in dataset.faults if fault.effect == "drops")
    assert (len(dataset.train) + dropped, len(dataset.valid)) == (15_000, 3_000)
    assert kinds(dataset) == {"leaked_text": 4, "label_leak": 0}


def test_the_larkfield_tickets_have_no_faults(shared_data):
    dataset = load_dataset(shared_data / "larkfield")
    assert (len(dataset.train), len(dataset.valid), list(dataset.faults)) == (4_696, 600, [])


def test_the_fingerprint_tells_data_apart(tickets_csv):
    one = load_dataset(tickets_csv(60)).train
    assert fingerprint(one) == fingerprint(load_dataset(tickets_csv(60, name="copy.csv")).train)
    one.teams[0] = "another"
    assert fingerprint(one) != fingerprint(load_dataset(tickets_csv(60)).train)
