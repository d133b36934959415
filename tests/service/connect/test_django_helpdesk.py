"""django-helpdesk's adapter against answers shaped as those of the real one of test_real_helpdesks.py."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("httpx", reason="the extra `client` (httpx) is not installed")

from service.connect.config import ConfigError
from service.connect.desk import DeskError, Event, NotUnderstood, Rejected
from tests.service.connect.server import Server

OPENED = {"id": 71, "ticket": 17, "public": True, "comment": "Twice", "date": "2026-11-03T12:00:00.5Z"}
NOTE = {**OPENED, "id": 72, "public": False, "comment": "Larkfield router: look"}
TICKET: dict[str, Any] = {
    "id": 17,
    "queue": 1,
    "title": "Charged twice",
    "description": "My card was charged twice.",
    "assigned_to": None,
    "status": 1,
    "on_hold": False,
    "followup_set": [OPENED],
}
NOON = 1793707200.0  # 2026-11-03, 12:00 UTC


@pytest.fixture
def desk(server: Server) -> Any:
    server.answer("/api/tickets/17/", TICKET)
    return server.desk(kind="django-helpdesk", user="larkfield", queue_ids={"Inbox": 1, "Payments": 2})


def page(results: list[Any], count: int | None = None, **links: str | None) -> dict[str, Any]:
    return {"count": count or len(results), "next": None, "previous": None, **links, "results": results}


def test_both_webhooks_name_the_ticket_and_the_newest_follow_up(desk: Any) -> None:
    new = {"ticket": TICKET, "queue_slug": "inbox"}
    assert desk.read_event(new) == Event("17", "follow-up 71")
    assert desk.read_event(new | {"followup_id": 72}) == Event("17", "follow-up 72")
    for wrong in ({}, [], {"ticket": 17}, {"ticket": {"id": "x"}}):
        with pytest.raises(NotUnderstood):
            desk.read_event(wrong)


def test_a_ticket_is_read(server: Server, desk: Any) -> None:
    ticket = desk.read_ticket(Event("17", ""))
    assert (ticket.queue, ticket.subject, ticket.text) == ("Inbox", TICKET["title"], TICKET["description"])
    assert (ticket.open, ticket.solved, ticket.taken, ticket.noted) == (True, False, False, False)
    changed = {"status": 3, "on_hold": True, "queue": 9, "followup_set": [OPENED, NOTE]}
    server.answer("/api/tickets/17/", TICKET | changed)
    ticket = desk.read_ticket(Event("17", ""))
    assert (ticket.open, ticket.solved, ticket.taken, ticket.noted) == (False, True, True, True)
    assert ticket.queue == "queue 9"


def test_a_decision_is_written(server: Server, desk: Any) -> None:
    ticket = desk.read_ticket(Event("17", ""))
    server.answer("/api/followups/", {"id": 72}, 201)
    desk.write(ticket, note="Larkfield router: look")
    body = {"ticket": 17, "comment": "Larkfield router: look", "public": False}
    assert server.sent[-1][:3] == ("POST", "/api/followups/", body)
    with pytest.raises(Rejected, match="did not move"):  # the answer says that it is where it was
        desk.write(ticket, queue="Payments")
    server.answer("/api/tickets/17/", TICKET | {"queue": 2})
    desk.write(ticket, queue="Payments")
    assert server.sent[-1][:3] == ("PATCH", "/api/tickets/17/", {"queue": 2})
    server.answer("/api/tickets/17/", {"queue": ['Invalid pk "2" - object does not exist.']}, 400)
    with pytest.raises(Rejected, match="object does not exist"):
        desk.write(ticket, queue="Payments")


def test_changes_are_read_from_the_newest_follow_up_back(server: Server, desk: Any) -> None:
    old = {**OPENED, "id": 1, "ticket": 3, "date": "2026-11-03T11:00:00Z"}
    newer = {**OPENED, "id": 73, "ticket": 18, "date": "2026-11-03T14:00:00+01:00"}
    server.answer("/api/followups/?page_size=100&page=last", page([newer], count=201))
    server.answer("/api/followups/?page_size=100&page=2", page([old, OPENED], count=201))
    assert list(desk.changed(NOON)) == [Event("18", "follow-up 73"), Event("17", "follow-up 71")]
    assert len(server.sent) == 2  # page 1 is older


def test_times_without_a_zone_are_refused(server: Server, desk: Any) -> None:
    server.answer("/api/followups/", page([{**OPENED, "date": "2026-11-03T12:00:00"}]))
    with pytest.raises(DeskError, match="USE_TZ"):
        list(desk.changed(NOON))


def test_no_follow_up_at_all(server: Server, desk: Any) -> None:
    server.answer("/api/followups/", page([]))
    assert list(desk.changed(NOON)) == []


def test_waiting_tickets_are_free_and_in_an_entry_queue(server: Server, desk: Any) -> None:
    others = [TICKET | {"id": 18, "queue": 2}, TICKET | {"id": 19, "assigned_to": 4}]
    server.answer("/api/tickets/?status=1%2C2&page_size=100&page=1", page([TICKET], next="there"))
    server.answer("/api/tickets/?status=1%2C2&page_size=100&page=2", page([*others, TICKET | {"id": 20}]))
    assert [event.ticket for event in desk.waiting()] == ["17", "20"]


def test_the_latest_are_on_the_last_two_pages(server: Server, desk: Any) -> None:
    tickets = [TICKET | {"id": number} for number in range(1, 6)]
    server.answer("/api/tickets/?page_size=3&page=last", page(tickets[3:], 5, previous="there"))
    server.answer("/api/tickets/?page_size=3&page=1", page(tickets[:3], 5))
    assert [event.ticket for event in desk.latest(3)] == ["5", "4", "3"]


def test_without_a_user_it_is_not_opened(server: Server) -> None:
    with pytest.raises(ConfigError, match="user"):
        server.desk(kind="django-helpdesk", queue_ids={"Inbox": 1, "Payments": 2})
