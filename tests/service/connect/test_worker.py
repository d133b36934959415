"""Each event is handled once and rightly, whatever fails and whenever."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from models.scope import Reason
from service.client import RouterError
from service.connect.desk import Conflict, Denied, DeskAway, Rejected, Ticket
from service.connect.notes import REASONS
from service.connect.worker import DAY_SECONDS
from tests.service.connect.conftest import REVIEW, Bench


def test_a_sure_answer_moves_the_ticket(bench: Bench) -> None:
    bench.add()
    bench.worker.step()
    assert bench.desk.written == [("7", "Payments", None)]
    assert bench.router.asked[0]["ticket_id"] == "7"
    assert bench.router.asked[0]["source"] == "desk"
    assert bench.count("handled_total", outcome="moved") == 1


def test_notes_mode_moves_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, mode="notes")
    bench.add()
    bench.worker.step()
    ((_, queue, note),) = bench.desk.written
    assert queue is None
    assert note == "Larkfield router: this ticket belongs to Payments (team payment, 97% sure)."


def test_review_writes_a_note_with_reasons_and_a_link(bench: Bench) -> None:
    bench.router.answer = REVIEW
    bench.add()
    bench.worker.step()
    ((_, queue, note),) = bench.desk.written
    assert queue is None
    assert note is not None
    assert "Suggestion: Payments (team payment, 41% sure)." in note
    assert "The confidence is too low to go without a look." in note
    assert "https://router.example.org/review?source=desk&ticket=7" in note


def test_an_urgent_ticket_is_called_so_in_its_note(bench: Bench) -> None:
    bench.router.answer = REVIEW | {"urgent": True}
    bench.add()
    bench.worker.step()
    assert "It may be urgent" in (bench.desk.written[0][2] or "")


def test_every_reason_has_words() -> None:
    assert set(REASONS) == set(get_args(Reason))


def test_a_team_without_a_queue_gets_a_note(bench: Bench) -> None:
    bench.router.answer = {**REVIEW, "team": "legal", "decision": "route", "reasons": []}
    bench.add()
    bench.worker.step()
    ((_, queue, note),) = bench.desk.written
    assert queue is None
    assert "names no queue for the team legal" in (note or "")


def test_later_events_of_the_same_ticket_are_not_routed_again(bench: Bench) -> None:
    bench.router.answer = REVIEW  # the ticket stays in the entry queue
    for version in ("1", "2", "3"):  # the second may be our own note
        assert bench.add(version=version) == 1
        bench.worker.step()
    assert len(bench.desk.written) == 1
    assert bench.count("handled_total", outcome="already_handled") == 2


def test_the_same_event_is_stored_once(bench: Bench) -> None:
    assert [bench.add(), bench.add()] == [1, 0]


@pytest.mark.parametrize("change", [{"queue": "Accounts"}, {"taken": True}, {"open": False}])
def test_an_agent_who_is_faster_wins(bench: Bench, change: dict[str, object]) -> None:
    bench.desk.before_write = replace(bench.desk.tickets["7"], **change)  # type: ignore[arg-type]
    bench.add()
    bench.worker.step()
    assert bench.desk.written == []
    assert bench.count("handled_total", outcome="left_to_agent") == 1


def test_a_change_during_the_write_is_looked_at_again(bench: Bench) -> None:
    bench.desk.fail["write"] = Conflict("412")
    bench.add()
    bench.worker.step()
    bench.desk.tickets["7"] = replace(bench.desk.tickets["7"], queue="Accounts")
    bench.clock.now += 10
    bench.worker.step()
    assert bench.desk.written == []
    assert bench.count("handled_total", outcome="left_to_agent") == 1


@pytest.mark.parametrize("answer", ["route", "review"])
def test_a_crash_after_the_write_does_not_write_twice(bench: Bench, answer: str) -> None:
    if answer == "review":
        bench.router.answer = REVIEW
    bench.desk.fail["after_write"] = KeyboardInterrupt()  # type: ignore[assignment]
    bench.add()
    with pytest.raises(KeyboardInterrupt):
        bench.worker.step()
    bench.new_worker().step()
    assert len(bench.desk.written) == 1
    assert bench.count("handled_total", outcome="moved" if answer == "route" else "noted") == 1


def test_a_solved_ticket_is_reported_once_and_again_for_another_team(bench: Bench) -> None:
    for version, queue in (("1", "Payments 2"), ("2", "Payments"), ("3", "Legal")):
        bench.desk.tickets["7"] = Ticket("7", queue, open=False, solved=True)
        bench.add(version=version)
        bench.worker.step()
    assert bench.router.feedbacks == [("payment", "7", "desk"), ("Legal", "7", "desk")]


def test_a_ticket_solved_in_the_entry_queue_names_no_team(bench: Bench) -> None:
    bench.desk.tickets["7"] = Ticket("7", "Inbox", open=False, solved=True)
    bench.add()
    bench.worker.step()
    assert bench.router.feedbacks == []
    assert bench.count("handled_total", outcome="not_sorted") == 1


def test_a_deleted_ticket_is_counted_and_done(bench: Bench) -> None:
    bench.add(ticket="8")
    bench.worker.step()
    assert bench.count("handled_total", outcome="gone") == 1


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (DeskAway("no answer"), "desk_away"),
        (Denied("401"), "denied"),
        (KeyError("Queue"), "error"),  # an answer of another shape
    ],
)
def test_a_failing_desk_postpones_the_event(bench: Bench, error: Exception, reason: str) -> None:
    bench.desk.fail["read"] = error
    bench.add()
    assert bench.worker.step() > 0
    assert bench.count("retries_total", reason=reason) == 1
    assert bench.store.next("desk") is None  # not due yet
    bench.clock.now += 10
    bench.worker.step()
    assert bench.count("handled_total", outcome="moved") == 1


def test_a_rate_limit_is_kept_to(bench: Bench) -> None:
    bench.desk.fail["read"] = DeskAway("429", retry_after_seconds=60)
    bench.add()
    assert bench.worker.step() == 60


@pytest.mark.parametrize("status", [None, 401, 429, 503])
def test_a_router_that_is_away_postpones_the_event(bench: Bench, status: int | None) -> None:
    bench.router.fail = RouterError("away", status)
    bench.add()
    bench.worker.step()
    assert bench.count("retries_total", reason="router_away") == 1
    bench.clock.now += 10
    bench.worker.step()
    assert bench.count("handled_total", outcome="moved") == 1


def test_pauses_grow_and_after_a_day_the_event_is_parked_and_can_be_replayed(bench: Bench) -> None:
    bench.add()
    due = []
    while bench.clock.now < 1_000_000 + DAY_SECONDS + 2000 and not bench.store.listed("parked"):
        bench.desk.fail["read"] = DeskAway("no answer")
        bench.worker.step()
        due.append(bench.clock.now)
        bench.clock.now += 60
    (parked,) = bench.store.listed("parked")
    assert parked.reason == "tried for a day: no answer"
    assert 90 < parked.tries < 150  # about every 15 minutes, not every minute
    bench.desk.fail.clear()
    assert bench.store.replay() == 1
    bench.worker.step()
    assert bench.count("handled_total", outcome="moved") == 1


@pytest.mark.parametrize("who", ["desk", "router"])
def test_what_no_other_try_can_help_is_parked_at_once(bench: Bench, who: str) -> None:
    if who == "desk":
        bench.desk.fail["write"] = Rejected("there is no queue 'Payments'")
    else:
        bench.router.fail = RouterError("422: the text is missing", 422)
    bench.add()
    bench.worker.step()
    (parked,) = bench.store.listed("parked")
    assert bench.count("handled_total", outcome="parked") == 1
    assert parked.reason
    assert "no queue" in parked.reason or "422" in parked.reason


def test_one_bad_event_does_not_hold_up_the_others(bench: Bench) -> None:
    bench.desk.tickets["9"] = replace(bench.desk.tickets["7"], id="9")
    bench.desk.fail["read"] = DeskAway("500")
    bench.add(), bench.add(ticket="9")
    bench.worker.step(), bench.worker.step()
    assert bench.desk.written == [("9", "Payments", None)]
