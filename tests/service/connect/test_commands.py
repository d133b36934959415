"""`check` changes nothing and says what would be done; `backfill` routes what waits; `replay` tries again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from service.client import RouterError
from service.connect import commands
from service.connect.config import Config
from service.connect.desk import Denied, DeskAway, Event, Ticket
from service.connect.events import EventStore
from service.connect.running import Parts
from tests.service.connect.conftest import REVIEW, Bench


@pytest.fixture
def parts(bench: Bench) -> Parts:
    config = Config.model_validate({"desks": {"desk": bench.config.model_dump(exclude_none=True)}})
    desks, workers = {"desk": bench.desk}, {"desk": bench.worker}
    return Parts(config, bench.store, bench.metrics, bench.router, desks, workers)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "review", "said"),
    [
        ({}, False, "ticket 7 in Inbox: move it to Payments (payment, 97%, route)"),
        ({}, True, "ticket 7 in Inbox: write a note that suggests Payments (payment, 41%, review)"),
        ({"taken": True}, False, "leave it, it does not wait in an entry queue or a person has it"),
        ({"queue": "Payments"}, False, "leave it, it does not wait in an entry queue or a person has it"),
        ({"queue": "", "taken": True}, False, "ticket 7 in no group: leave it"),
        ({"noted": True}, False, "leave it, it has a note already"),
        ({"solved": True, "queue": "Payments 2"}, False, "report that payment solved it"),
        ({"solved": True}, False, "leave it, it was solved in an entry queue"),
    ],
)
def test_check_says_what_it_would_do_and_changes_nothing(
    bench: Bench,
    parts: Parts,
    capsys: pytest.CaptureFixture[str],
    change: dict[str, object],
    review: bool,
    said: str,
) -> None:
    bench.desk.tickets["7"] = replace(bench.desk.tickets["7"], **change)  # type: ignore[arg-type]
    if review:
        bench.router.answer = REVIEW
    assert commands.check(parts) == 0
    printed = capsys.readouterr().out
    assert said in printed
    assert "may do everything" in printed
    assert printed.endswith("all right\n")
    assert bench.desk.written == []
    assert bench.router.feedbacks == []
    assert bench.store.counts() == {}


def test_check_shows_ten_tickets_at_most(
    bench: Bench, parts: Parts, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.desk.tickets = {str(number): Ticket(str(number), "Inbox") for number in range(30)}
    commands.check(parts)
    assert capsys.readouterr().out.count("ticket ") == commands.CHECKED_TICKETS == 10


@pytest.mark.parametrize("what", ["credentials", "ticket", "router"])
def test_check_says_what_is_wrong(
    bench: Bench, parts: Parts, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    if what == "credentials":
        bench.desk.fail["check"] = Denied("GET /me: 401 Unauthorized")
    elif what == "ticket":
        bench.desk.fail["read"] = Denied("GET /tickets/7: 403 no right")
    else:
        bench.router.fail = RouterError("no answer")
    assert commands.check(parts) == 1
    printed = capsys.readouterr().out
    assert "WRONG: " in printed
    assert printed.endswith("1 wrong\n")


def test_backfill_routes_what_waits_now(
    bench: Bench, parts: Parts, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.desk.tickets["8"] = replace(bench.desk.tickets["7"], id="8", taken=True)
    assert commands.backfill(parts) == 0
    assert bench.desk.written == [("7", "Payments", None)]
    assert "desk: 2 tickets wait" in capsys.readouterr().out


def test_backfill_beside_a_running_connector_leaves_the_work_to_it(
    bench: Bench, parts: Parts, capsys: pytest.CaptureFixture[str]
) -> None:
    running = EventStore(bench.store.path)
    running.own()
    assert commands.backfill(parts) == 0
    running.close()
    assert bench.desk.written == []
    assert bench.store.counts() == {("desk", "waiting"): 1}
    assert "the running connector handles them" in capsys.readouterr().out


def test_backfill_without_the_desk_says_so(
    bench: Bench, parts: Parts, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.desk.fail["changed"] = DeskAway("GET /search: no answer")
    assert commands.backfill(parts) == 1
    assert "desk: GET /search: no answer" in capsys.readouterr().out


def test_status_names_why_and_replay_of_one_desk_leaves_the_others(
    bench: Bench, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for desk in ("desk", "other"):
        bench.store.add(desk, [Event("7", "1")], "webhook")
        stored = bench.store.next(desk)
        assert stored is not None
        bench.store.park(stored, "there is no queue 'Payments'")
    commands.status(bench.store, ["desk", "other"])
    printed = capsys.readouterr().out
    assert "desk: 0 waiting (0 s behind), 0 done, 1 parked" in printed
    assert "parked desk ticket 7" in printed
    assert printed.count("1 tries: there is no queue 'Payments'") == 2
    commands.replay(bench.store, "desk")
    assert "1 parked events wait again" in capsys.readouterr().out
    assert bench.store.counts() == {("desk", "waiting"): 1, ("other", "parked"): 1}
