"""Archives: cut without splitting a record, routed with every id, resumed, refused where they are wrong."""

from __future__ import annotations

import csv
import importlib
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

pyarrow_parquet = pytest.importorskip("pyarrow.parquet", reason="the extra `ray` (pyarrow) is not installed")
sys.path.insert(0, str(Path(__file__).parents[2] / "deploy" / "ray"))
archive = importlib.import_module("archive")
chunks = importlib.import_module("chunks")
ArchiveError, cut, read = chunks.ArchiveError, chunks.cut, chunks.read

AWKWARD = [
    "plain",
    "two\nlines",
    'a "quoted" word, and a comma',
    'a 5" pipe',
    "",
    "ends with a break\r\n",
    "élan — naïve 🙂",
    '"\n"',
]


def tickets(number: int, seed: int = 0) -> list[dict[str, str]]:
    chance = random.Random(seed)
    return [
        {"ticket_id": f"A-{n}", "text": chance.choice(AWKWARD) + f" {n}", "team": "x"} for n in range(number)
    ]


def write(path: Path, rows: list[dict[str, Any]], delimiter: str = ",", mark: bool = False) -> Path:
    if path.suffix == ".parquet":
        import pyarrow

        pyarrow_parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=37)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        with path.open("w", newline="", encoding="utf-8-sig" if mark else "utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
            writer.writeheader()
            writer.writerows(rows)
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet"])
@pytest.mark.parametrize("size", [1, 7, 100, 1000])
def test_chunks_hold_every_record_once_and_in_order(tmp_path: Path, name: str, size: int) -> None:
    rows = tickets(230)
    made = cut(write(tmp_path / name, rows), size)
    assert [chunk.number for chunk in made] == list(range(len(made)))
    assert all(chunk.rows <= size for chunk in made)
    at = 0
    for chunk in made:
        found = read(chunk)
        assert len(found) == chunk.rows
        assert chunk.first_row == at
        assert found == rows[at : at + chunk.rows]
        at += chunk.rows
    assert at == 230


def test_semicolons_and_a_byte_order_mark(tmp_path: Path) -> None:
    rows = tickets(50)
    made = cut(write(tmp_path / "a.csv", rows, delimiter=";", mark=True), 8)
    assert [record for chunk in made for record in read(chunk)] == rows


def test_a_folder_is_one_archive(tmp_path: Path) -> None:
    rows = tickets(90)
    write(tmp_path / "b.jsonl", rows[40:])
    write(tmp_path / "a.csv", rows[:40])
    (tmp_path / "notes.md").write_text("no tickets")
    made = cut(tmp_path, 16)
    assert [record for chunk in made for record in read(chunk)] == rows


def test_lines_that_are_not_tickets_keep_their_place(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\nnot json\n[1]\n\n{"text": "b"}')
    [chunk] = cut(path, 10)
    assert read(chunk) == [{"text": "a"}, {}, {}, {"text": "b"}]


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="no such file"):
        cut(tmp_path / "nothing.csv", 10)
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(ArchiveError, match=r"\.csv"):
        cut(tmp_path / "a.txt", 10)
    (tmp_path / "twice.csv").write_text("text,text\na,b\n")
    with pytest.raises(ArchiveError, match="each once"):
        cut(tmp_path / "twice.csv", 10)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The job without a cluster: chunks are routed in this process; their numbers, as they are routed."""
    routed: list[int] = []

    def run(waiting: list[Any], arguments: dict[str, Any], workers: int | None) -> dict[str, int]:
        router = archive.Router(**arguments)
        totals = dict.fromkeys(("records", "routed", "review", "failed"), 0)
        for chunk in waiting:
            routed.append(chunk.number)
            counts = router.route(chunk)
            for name in totals:
                totals[name] += counts[name]
        return totals

    monkeypatch.setattr(archive, "run_ray", run)
    monkeypatch.setattr(archive, "ROWS", 20)
    return routed


def test_every_record_comes_out_with_its_id(tmp_path: Path, here: list[int], capsys: Any) -> None:
    rows: list[dict[str, Any]] = [*tickets(95), {"ticket_id": "A-95", "text": "  ", "team": "x"}]
    data = write(tmp_path / "a.csv", rows)
    assert archive.main([str(data), "--compare", "0"]) == 0
    assert "96 tickets in, 96 out" in capsys.readouterr().out
    out = pyarrow_parquet.read_table(tmp_path / "a-routed").to_pylist()
    assert [row["ticket_id"] for row in sorted(out, key=lambda row: row["row"])] == [
        row["ticket_id"] for row in rows
    ]
    [faulty] = [row for row in out if row["error"]]
    assert (faulty["ticket_id"], faulty["error"], faulty["team"]) == ("A-95", "no text", None)
    assert all(0 < row["confidence"] <= 1 for row in out if row["error"] is None)


def test_the_archive_is_decided_as_the_service_decides(tmp_path: Path, here: list[int]) -> None:
    from models.decision import decide
    from models.text import join
    from service.inference.runtime import Runtime, pad
    from service.settings import Settings

    rows = [
        {"id": 7, "subject": "Lamp", "body": "My lamp arrived broken"},
        {"id": 8, "subject": "", "body": "x" * 3000},
    ]
    data = write(tmp_path / "a.jsonl", rows)
    assert archive.main([str(data), "--compare", "0", "--text-column", "subject,body"]) == 0
    out = {row["ticket_id"]: row for row in pyarrow_parquet.read_table(tmp_path / "a-routed").to_pylist()}
    settings = Settings()
    runtime = Runtime.load(settings.bundle, settings)
    for row in rows:
        encoding = runtime.tokenizer.encode(join(str(row["subject"]), str(row["body"])).text)
        decision = decide(runtime.run(pad([encoding.ids]))[0], encoding, runtime.config)
        mine = out[str(row["id"])]
        assert (mine["team"], mine["decision"]) == (decision.team, decision.decision)
        assert mine["confidence"] == pytest.approx(decision.confidence, abs=1e-5)
        assert mine["version"] == runtime.version


def test_a_job_goes_on_where_it_stopped(tmp_path: Path, here: list[int], capsys: Any) -> None:
    data = write(tmp_path / "a.csv", tickets(100))
    assert archive.main([str(data), "--compare", "0"]) == 0
    assert here == [0, 1, 2, 3, 4]
    out = tmp_path / "a-routed"
    archive.part(out, 3).unlink()
    (out / ".part-000001.99.tmp").write_bytes(b"half a part")
    here.clear()
    assert archive.main([str(data), "--compare", "0"]) == 0
    assert here == [3]
    assert "80 tickets were routed by an earlier start" in capsys.readouterr().out
    assert not list(out.glob("*.tmp"))
    here.clear()
    assert archive.main([str(data), "--compare", "0"]) == 0
    assert here == []


def test_another_jobs_output_is_left_alone(tmp_path: Path, here: list[int], capsys: Any) -> None:
    data = write(tmp_path / "a.csv", tickets(40))
    assert archive.main([str(data), "--compare", "0"]) == 0
    write(data, tickets(41))
    assert archive.main([str(data), "--compare", "0"]) == 2
    assert "another job (archive)" in capsys.readouterr().err
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "letter.txt").write_text("mine")
    assert archive.main([str(data), "--out", str(foreign), "--compare", "0"]) == 2
    assert "has other files" in capsys.readouterr().err
    assert archive.main([str(data), "--out", str(tmp_path / "c"), "--text-column", "body"]) == 2
    assert "no column body" in capsys.readouterr().err


def test_a_part_that_lost_a_record_is_noticed(tmp_path: Path, here: list[int]) -> None:
    data = write(tmp_path / "a.csv", tickets(40))
    assert archive.main([str(data), "--compare", "0"]) == 0
    path = archive.part(tmp_path / "a-routed", 1)
    pyarrow_parquet.write_table(pyarrow_parquet.read_table(path).slice(1), path)
    with pytest.raises(AssertionError, match="does not hold its 20 records"):
        archive.main([str(data), "--compare", "0"])
