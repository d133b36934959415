"""POST /feedback on the real server, the export that training reads, and a database that fails meanwhile."""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
import signal
import sqlite3
import threading
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from models.bundle import CONFIG, load_bundle, seal
from service.feedback.__main__ import main
from service.feedback.export import corrections, merged
from service.feedback.store import Store
from service.tools import processes
from service.tools.processes import Process, get, wait_for
from tests.service.feedback.database import row_counts

TEXT = "I was billed two times for one kettle, please pay one of them back."


def post(router: Process, path: str, body: Any) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, document and headers."""
    request = urllib.request.Request(
        router.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=240) as response:
            return response.status, json.load(response), dict(response.headers)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error), dict(error.headers)


def stored(router: Process, ticket_id: str) -> dict[str, Any] | None:
    """What POST /feedback stored, or None when it asked to come again."""
    status, taken, _ = post(router, "/feedback", {"ticket_id": ticket_id, "team": "payment"})
    return taken if status == 200 else None


def lines_of(router: Process) -> list[str]:
    """The lines of /metrics."""
    with urllib.request.urlopen(router.url + "/metrics", timeout=240) as response:
        return response.read().decode().splitlines()


def metric(router: Process, name: str) -> float:
    """A metric's value, labels summed unless the name has some; 0 where there is none."""
    named = [line.rpartition(" ") for line in lines_of(router) if not line.startswith("#")]
    return sum(float(value) for label, _, value in named if name in (label, label.partition("{")[0]))


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with processes.router(
        tmp_path_factory.mktemp("router"), feedback_store_text=True, drift_seconds=0.3, drift_least=2
    ) as running:
        yield running


def test_a_ticket_is_named_by_its_id_or_by_its_request(router: Process) -> None:
    status, answer, headers = post(router, "/route", {"ticket_id": "T-1", "text": TEXT})
    assert status == 200
    status, taken, _ = post(router, "/feedback", {"ticket_id": "T-1", "team": answer["team"]})
    assert status == 200
    assert taken == {
        "status": "created",
        "ticket_id": "T-1",
        "request_id": headers["x-request-id"],
        "source": None,
        "team": answer["team"],
        "known": True,
        "predicted": answer["team"],
        "correct": True,
    }
    status, taken, _ = post(
        router, "/feedback", {"request_id": headers["x-request-id"], "team": answer["team"]}
    )
    assert (status, taken["status"]) == (200, "unchanged")
    status, taken, _ = post(router, "/feedback", {"ticket_id": "T-1", "team": "warranty"})
    assert (status, taken["status"], taken["correct"]) == (200, "changed", False)


def test_tickets_of_a_batch_are_remembered_too(router: Process) -> None:
    tickets = [{"ticket_id": f"B-{n}", "text": TEXT} for n in range(3)]
    assert post(router, "/route/batch", {"tickets": tickets})[0] == 200
    _, taken, _ = post(router, "/feedback", {"ticket_id": "B-2", "team": "payment"})
    assert taken["predicted"] is not None


def test_feedback_on_an_unknown_ticket_is_kept(router: Process) -> None:
    _, taken, _ = post(router, "/feedback", {"ticket_id": "never-routed", "team": "returns"})
    assert (taken["status"], taken["predicted"], taken["correct"]) == ("created", None, None)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"ticket_id": "T-1", "team": " "}, "team"),
        ({"ticket_id": "T-1", "team": "NULL"}, "team"),
        ({"ticket_id": "T-1", "team": "#payment"}, "team"),
        ({"ticket_id": "T-1", "team": "payment", "outcome": "not_a_ticket"}, "one of the two"),
        ({"ticket_id": "T-1", "outcome": "no"}, "outcome"),
        ({"ticket_id": "T-1", "team": "payment", "source": "a b"}, "source"),
        ({"ticket_id": True, "team": "payment"}, "ticket_id"),
        ({"ticket_id": 1.5, "team": "payment"}, "ticket_id"),
        ({"ticket_id": "T-1"}, "team"),
        ({"team": "payment"}, "one of the two"),
        ({"ticket_id": "T-1", "request_id": "r", "team": "payment"}, "one of the two"),
        ({"ticket_id": "T-1", "team": "payment", "note": "x"}, "note"),
        ({"ticket_id": "", "team": "payment"}, "ticket_id"),
        ({"ticket_id": "x" * 201, "team": "payment"}, "ticket_id"),
    ],
)
def test_wrong_feedback_is_refused_and_says_why(router: Process, body: Any, field: str) -> None:
    status, problem, headers = post(router, "/feedback", body)
    assert status == 422
    assert headers["content-type"] == "application/problem+json"
    assert field in json.dumps(problem)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b"[" * 20_000, b'{"team": ' + b"9" * 5000 + b"}", b'{"team": "\\ud83d"}']
)
def test_feedback_that_is_no_json_is_refused(router: Process, body: bytes) -> None:
    request = urllib.request.Request(router.url + "/feedback", body, {"Content-Type": "application/json"})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=240)
    assert refused.value.code == 422
    assert refused.value.headers["content-type"] == "application/problem+json"


def test_an_unknown_team_is_stored_counted_wrong_and_named(router: Process) -> None:
    for number in range(3):
        post(router, "/route", {"ticket_id": f"U-{number}", "text": TEXT})
        body = {"ticket_id": f"U-{number}", "team": " Legal  affairs "}
        status, taken, _ = post(router, "/feedback", body)
        assert (status, taken["status"]) == (200, "created")
        assert (taken["team"], taken["known"], taken["correct"]) == ("Legal affairs", False, False)
    name = 'larkfield_feedback_unknown_team{team="Legal affairs"}'
    wait_for("the gauge", lambda: metric(router, name) == 3)
    assert metric(router, "larkfield_feedback_wrong_total") >= 3
    counted = [line for line in lines_of(router) if "larkfield_feedback_total" in line]
    assert not [line for line in counted if "Legal" in line], "labels of counters do not come from callers"
    assert [line for line in counted if 'actual="unknown_team"' in line]
    for number in range(3):
        post(router, "/feedback", {"ticket_id": f"U-{number}", "team": "returns"})
    wait_for("its end", lambda: metric(router, name) == 0)


def test_ids_may_be_numbers_and_sources_keep_them_apart(router: Process) -> None:
    for source in ("rt", "zammad"):
        status, answer, _ = post(router, "/route", {"ticket_id": 4711, "source": source, "text": TEXT})
        assert (status, answer["ticket_id"]) == (200, "4711")
    _, one, _ = post(router, "/feedback", {"ticket_id": 4711, "source": "rt", "team": "payment"})
    _, two, _ = post(router, "/feedback", {"ticket_id": "4711", "source": "zammad", "team": "returns"})
    assert (one["source"], one["team"], two["source"], two["team"]) == ("rt", "payment", "zammad", "returns")
    assert one["request_id"] != two["request_id"]
    _, three, _ = post(router, "/feedback", {"ticket_id": 4711, "team": "payment"})
    assert three["predicted"] is None
    status, again, _ = post(router, "/feedback", {"ticket_id": 4711.0, "source": "rt", "team": "payment"})
    assert (status, again["status"]) == (200, "unchanged")
    for source in ({"source": "rt"}, {"source": "zammad"}, {}):
        assert post(router, "/feedback/remove", {"ticket_id": 4711} | source)[1] == {"status": "removed"}


def test_a_subject_alone_is_a_ticket(router: Process) -> None:
    status, answer, _ = post(router, "/route", {"subject": "My card was charged twice, refund", "text": None})
    assert (status, answer["tokens"]["count"] > 3) == (200, True)
    for body in ({"text": None}, {"text": None, "subject": " "}, {"subject": "a card"}):
        status, problem, _ = post(router, "/route", body)
        assert (status, problem["errors"][0]["field"]) == (422, "text")
    batch = {"tickets": [{"ticket_id": 5, "subject": "A card was charged", "text": None}, {"ticket_id": 6}]}
    _, answer, _ = post(router, "/route/batch", batch)
    assert [result["ticket_id"] for result in answer["results"]] == ["5", "6"]
    assert (answer["routed"], answer["failed"]) == (1, 1)


def test_an_outcome_stands_for_no_team_and_can_be_taken_back(router: Process) -> None:
    post(router, "/route", {"ticket_id": "O-1", "text": TEXT})
    status, taken, _ = post(router, "/feedback", {"ticket_id": "O-1", "outcome": "not_a_ticket"})
    assert (status, taken["team"], taken["correct"]) == (200, None, False)
    status, answer, _ = post(router, "/feedback/remove", {"ticket_id": "O-1"})
    assert (status, answer) == (200, {"status": "removed"})
    _, answer, _ = post(router, "/feedback/remove", {"ticket_id": "O-1"})
    assert answer == {"status": "unchanged"}
    assert (stored(router, "O-1") or {})["status"] == "created"


def test_counters_and_gauges_follow(router: Process) -> None:
    before = metric(router, "larkfield_feedback_total")
    for number in range(4):
        post(router, "/route", {"ticket_id": f"G-{number}", "text": TEXT})
        _, answer, _ = post(router, "/route", {"ticket_id": f"G-{number}", "text": TEXT})
        team = answer["team"] if number else "account"
        post(router, "/feedback", {"ticket_id": f"G-{number}", "team": team})
        post(router, "/feedback", {"ticket_id": f"G-{number}", "team": team})
    assert metric(router, "larkfield_feedback_total") == before + 4, "the second report counts no more"
    wait_for("accuracy", lambda: 0 < metric(router, 'larkfield_feedback_accuracy{decision="all"}') < 1)
    wait_for("drift", lambda: metric(router, "larkfield_drift_psi") > 0)
    assert metric(router, "larkfield_bundle_precision") > 0.5


def test_export_writes_what_training_reads(router: Process, tmp_path: Path, capsys: Any) -> None:
    post(router, "/route", {"ticket_id": "E-1", "subject": "Kettle", "text": TEXT})
    post(router, "/feedback", {"ticket_id": "E-1", "team": "warranty"})
    earlier = tmp_path / "earlier.csv"
    earlier.write_text("ticket_id,text,team,style\nE-1,old text,payment,plain\nE-0,a lamp,returns,plain\n")
    out = tmp_path / "all.csv"
    arguments = ["export", "--url", router.environment["LARKFIELD_FEEDBACK_URL"], "--out", str(out)]
    assert main([*arguments, "--add-to", str(earlier)]) == 0
    assert "corrected the router" in capsys.readouterr().out
    with out.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    by_id = {row["ticket_id"]: row for row in rows}
    assert by_id["E-1"] == {"ticket_id": "E-1", "text": f"Kettle\n{TEXT}", "team": "warranty"}
    assert by_id["E-0"]["team"] == "returns"
    assert "never-routed" not in by_id, "there is no text to train on"
    from models.tickets.faults import Faults
    from training.data.dataset import read_tickets

    faults = Faults()
    from training.data.dataset import Columns

    tickets = read_tickets(out, Columns(), faults)
    assert len(tickets) == len(rows)


def test_export_takes_texts_from_the_helpdesk(router: Process, tmp_path: Path, capsys: Any) -> None:
    post(router, "/feedback", {"ticket_id": "never-routed", "team": "returns"})
    helpdesk = tmp_path / "helpdesk.csv"
    helpdesk.write_text("number,body\nnever-routed,Where is my parcel?\n")
    out = tmp_path / "all.csv"
    arguments = [
        "export",
        "--url",
        router.environment["LARKFIELD_FEEDBACK_URL"],
        "--out",
        str(out),
        "--tickets",
    ]
    assert main([*arguments, str(helpdesk), "--id-column", "number", "--text-column", "body"]) == 0
    rows = list(csv.DictReader(out.open(newline="", encoding="utf-8")))
    assert {"ticket_id": "never-routed", "text": "Where is my parcel?", "team": "returns"} in rows
    assert main([*arguments, str(helpdesk)]) == 2
    assert "no column 'ticket_id'" in capsys.readouterr().err


def test_export_reads_earlier_tickets_as_training_does(router: Process, tmp_path: Path, capsys: Any) -> None:
    earlier = tmp_path / "desk.csv"
    earlier.write_text("subject;body;queue\nLamp;It flickers;warranty\n;Where is it?;delivery\n", "utf-8-sig")
    out = tmp_path / "all.csv"
    arguments = [
        "export",
        "--url",
        router.environment["LARKFIELD_FEEDBACK_URL"],
        "--out",
        str(out),
        "--add-to",
        str(earlier),
    ]
    columns = ["--text-column", "subject", "--text-column", "body", "--team-column", "queue"]
    assert main([*arguments, *columns]) == 0
    rows = list(csv.DictReader(out.open(newline="", encoding="utf-8")))
    assert rows[:2] == [
        {"ticket_id": "desk-2", "text": "Lamp\nIt flickers", "team": "warranty"},
        {"ticket_id": "desk-3", "text": "Where is it?", "team": "delivery"},
    ]
    out.unlink()
    assert main(arguments) == 2
    assert "no column 'text'; its columns are: subject, body, queue" in capsys.readouterr().err
    assert not out.exists(), "nothing half-made is left"


def test_merging_keeps_each_ticket_once() -> None:
    base = [{"ticket_id": "1", "team": "a"}, {"ticket_id": "", "team": "b"}, {"ticket_id": "", "team": "c"}]
    fresh = [{"ticket_id": "1", "team": "z"}, {"ticket_id": "2", "team": "y"}]
    assert merged(base, fresh) == [fresh[0], base[1], base[2], fresh[1]]
    assert list(corrections([], {})) == []


def test_a_restart_remembers_the_answer_and_no_text(tmp_path: Path) -> None:
    with processes.router(tmp_path / "router") as router:
        post(router, "/route", {"ticket_id": "T-1", "text": "a very secret sentence"})
    with processes.router(tmp_path / "router") as router:
        _, taken, _ = post(router, "/feedback", {"ticket_id": "T-1", "team": "payment"})
        assert taken["predicted"] is not None
    files = list((tmp_path / "router").glob("feedback.db*"))
    assert files
    for path in [*files, tmp_path / "router" / "log"]:
        assert b"secret" not in path.read_bytes()


def test_a_locked_database_stops_feedback_and_nothing_else(tmp_path: Path) -> None:
    with processes.router(tmp_path / "router") as router:
        post(router, "/route", {"ticket_id": "T-1", "text": TEXT})
        assert post(router, "/feedback", {"ticket_id": "T-1", "team": "payment"})[0] == 200
        other = sqlite3.connect(tmp_path / "router" / "feedback.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        answers: list[Any] = []

        def report() -> None:
            answers.append(post(router, "/feedback", {"ticket_id": "T-2", "team": "payment"}))

        waiting = [threading.Thread(target=report) for _ in range(60)]
        for thread in waiting:
            thread.start()
        routed = 0
        while any(thread.is_alive() for thread in waiting):
            assert post(router, "/route", {"ticket_id": "T-2", "text": TEXT})[0] == 200
            routed += 1
        assert len(answers) == 60, "none hangs, however many wait"
        for status, problem, headers in answers:
            assert status == 503
            assert "database" in problem["detail"]
            assert str(tmp_path) not in json.dumps(problem)
            assert int(headers["retry-after"]) >= 1
        assert any("locked by another process" in problem["detail"] for _, problem, _ in answers)
        assert routed > 5, "tickets were routed while feedback waited"
        assert metric(router, "larkfield_store_failures_total") >= 1
        other.execute("ROLLBACK")
        other.close()
        taken = wait_for("the gate", lambda: stored(router, "T-2"))
        assert taken["predicted"] is not None


def test_no_database_means_no_feedback_and_routing(tmp_path: Path) -> None:
    with processes.router(tmp_path / "router", feedback_url="off") as router:
        assert post(router, "/route", {"text": TEXT})[0] == 200
        assert post(router, "/feedback", {"ticket_id": "T-1", "team": "payment"})[0] == 404


def with_config(bundle: Path, target: Path, **changes: Any) -> Path:
    """A sound copy of a bundle with another configuration."""
    shutil.copytree(bundle, target)
    config = load_bundle(bundle).config.model_copy(update=changes)
    (target / CONFIG).write_bytes(seal(config)[0])
    return target


def shadowed(router: Process, tickets: int) -> None:
    """Route some tickets beside a shadow and wait until all are accounted for."""
    wait_for("the shadow", lambda: metric(router, "larkfield_shadow_bundle_info") == 1, 240)
    for _ in range(tickets):
        assert post(router, "/route", {"text": TEXT})[0] == 200

    def compared() -> bool:
        done = metric(router, "larkfield_shadow_tickets_total")
        return done + metric(router, "larkfield_shadow_skipped_total") == tickets

    wait_for(f"{tickets} tickets in the shadow", compared, 240)


def test_a_shadow_is_compared_and_answers_nobody(tmp_path: Path, shipped_bundle: Path) -> None:
    psutil = pytest.importorskip("psutil")
    with processes.router(tmp_path / "router", shadow_bundle=shipped_bundle) as router:
        shadowed(router, 5)
        assert metric(router, 'larkfield_shadow_tickets_total{outcome="same"}') == 5
        assert metric(router, "larkfield_shadow_changes_total") == 0, "the same bundle agrees with itself"
        assert metric(router, "larkfield_predictions_total") == 5
        assert metric(router, "larkfield_shadow_seconds_count") == 5
        log = tmp_path / "router" / "log"
        assert "error" not in log.read_text()
        assert router.process is not None
        [child] = [
            each
            for each in psutil.Process(router.process.pid).children(recursive=True)
            if "service.feedback.shadow" in each.cmdline()
        ]
        child.kill()
        wait_for("the log", lambda: "the shadow's process ended" in log.read_text())
        assert post(router, "/route", {"text": TEXT})[0] == 200, "without its shadow it goes on"


def test_a_shadow_that_differs_is_told_apart(tmp_path: Path, shipped_bundle: Path) -> None:
    teams = load_bundle(shipped_bundle).config.teams
    turned = with_config(shipped_bundle, tmp_path / "turned", teams=[*teams[1:], teams[0]], version="turned")
    with processes.router(tmp_path / "router", shadow_bundle=turned) as router:
        shadowed(router, 4)
        assert metric(router, 'larkfield_shadow_tickets_total{outcome="other_team"}') == 4
        assert metric(router, "larkfield_shadow_changes_total") == 4
        assert metric(router, "larkfield_predictions_total") == 4


def test_a_broken_shadow_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    with processes.router(tmp_path / "router", shadow_bundle=tmp_path / "broken") as router:
        log = tmp_path / "router" / "log"
        wait_for("the log", lambda: "the shadow bundle cannot be loaded" in log.read_text())
        assert post(router, "/route", {"text": TEXT})[0] == 200
        assert get(router.url + "/readyz")["status"] == "ready"


@pytest.mark.slow
def test_kill_9_of_the_server_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """Eight servers, each killed while four clients report; what was answered with 200 is in the database."""
    acknowledged: list[str] = []
    chance = random.Random(11)
    for round_ in range(8):
        router = processes.router(tmp_path / "router", drain_seconds=0)
        with router:
            stop = threading.Event()

            def report(client: int, round_: int = round_, router: Process = router, stop: Any = stop) -> None:
                number = 0
                while not stop.is_set():
                    ticket_id = f"{round_}-{client}-{number}"
                    try:
                        post(router, "/route", {"ticket_id": ticket_id, "text": TEXT})
                        status, _, _ = post(router, "/feedback", {"ticket_id": ticket_id, "team": "payment"})
                    except (OSError, HTTPException):
                        return
                    if status == 200:
                        acknowledged.append(ticket_id)
                    number += 1

            threads = [threading.Thread(target=report, args=(client,)) for client in range(4)]
            for thread in threads:
                thread.start()
            enough = len(acknowledged) + chance.randrange(3, 60)
            wait_for("acknowledged feedback", lambda enough=enough: len(acknowledged) >= enough, 240)
            assert router.process is not None
            os.kill(router.process.pid, signal.SIGKILL)
            stop.set()
            for thread in threads:
                thread.join()
    store = Store(router.environment["LARKFIELD_FEEDBACK_URL"])
    kept = {row.ticket_id for row in store.feedback_with_text()}
    assert len(acknowledged) >= 8 * 3
    assert set(acknowledged) <= kept
    assert row_counts(store)["feedback"] == len(kept)
    store.close()


@pytest.mark.parametrize("odd", ["\0", "'; DROP TABLE feedback; --", "\u202e\U0001f600", " ", "\n"])
def test_odd_ids_are_ids(router: Process, odd: str) -> None:
    given = {"ticket_id": f"odd{odd}", "team": "payment"}
    post(router, "/route", {"ticket_id": given["ticket_id"], "text": TEXT})
    status, receipt, _ = post(router, "/feedback", given)
    assert status == 200
    assert receipt["predicted"] is not None
    assert post(router, "/feedback", given)[1]["status"] == "unchanged"
