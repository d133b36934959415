"""Zendesk's adapter against requests and answers of the documented shape, written here."""

from __future__ import annotations

import base64
from typing import Any

import pytest

pytest.importorskip("httpx", reason="the extra `client` (httpx) is not installed")

from service.connect.desk import Conflict, Event, NotUnderstood, Rejected
from tests.service.connect.server import Server

LAST = {"meta": {"has_more": False, "after_cursor": "b"}}
TICKET = {
    "id": 35436,
    "subject": "Charged twice",
    "description": "My card was charged twice.",
    "status": "new",
    "group_id": 98738,
    "assignee_id": None,
    "updated_at": "2026-11-03T11:51:13Z",
}
NOTE = {"id": 2, "public": False, "body": "Larkfield router: please look"}
EVENT = {
    "id": "2b24ef10-19b7-4aa5-8a5b-000000000001",
    "type": "zen:event-type:ticket.created",
    "subject": "zen:ticket:35436",
    "time": "2026-11-03T11:51:13.809Z",
    "zendesk_event_version": "2022-11-06",
    "detail": {"id": "35436", "status": "NEW", "updated_at": "2026-11-03T11:51:13Z"},
    "event": {},
}


@pytest.fixture
def zendesk(server: Server) -> Any:
    groups = [{"id": 98738, "name": "Inbox"}, {"id": 98739, "name": "Payments"}]
    server.answer("/api/v2/groups", {"groups": groups, **LAST})
    server.answer("/api/v2/tickets/35436", {"ticket": TICKET})
    server.answer("/api/v2/tickets/35436/comments", {"comments": [], **LAST})
    return server.desk(kind="zendesk", user="larkfield@example.org")


def test_a_webhook_names_the_ticket_and_the_event(zendesk: Any) -> None:
    assert zendesk.read_event(EVENT) == Event("35436", EVENT["id"])
    assert zendesk.read_event(EVENT | {"type": "zen:event-type:user.created"}) is None
    for wrong in ({}, [], {"detail": EVENT["detail"]}, EVENT | {"detail": {}}, EVENT | {"id": ""}):
        with pytest.raises(NotUnderstood):
            zendesk.read_event(wrong)


def test_a_ticket_is_read_with_the_name_of_its_group(server: Server, zendesk: Any) -> None:
    ticket = zendesk.read_ticket(Event("35436", ""))
    assert (ticket.queue, ticket.subject, ticket.text) == ("Inbox", TICKET["subject"], TICKET["description"])
    assert (ticket.open, ticket.solved, ticket.taken, ticket.noted) == (True, False, False, False)
    credentials = base64.b64encode(b"larkfield@example.org/token:abc").decode()
    assert server.sent[-1][3] == f"Basic {credentials}"
    server.answer("/api/v2/tickets/35436/comments", {"comments": [NOTE], **LAST})
    server.answer("/api/v2/tickets/35436", {"ticket": TICKET | {"status": "solved", "assignee_id": 5}})
    ticket = zendesk.read_ticket(Event("35436", ""))
    assert (ticket.open, ticket.solved, ticket.taken, ticket.noted) == (False, True, True, True)


@pytest.mark.parametrize(("group", "queue"), [(None, ""), (1, "group 1")])
def test_no_group_and_a_group_that_is_gone(server: Server, zendesk: Any, group: Any, queue: str) -> None:
    server.answer("/api/v2/tickets/35436", {"ticket": TICKET | {"group_id": group}})
    assert zendesk.read_ticket(Event("35436", "")).queue == queue


def test_a_public_comment_with_the_words_of_a_note_is_none(server: Server, zendesk: Any) -> None:
    comments = {"comments": [NOTE | {"public": True}], **LAST}
    server.answer("/api/v2/tickets/35436/comments", comments)
    assert not zendesk.read_ticket(Event("35436", "")).noted


def test_a_write_is_refused_if_the_ticket_changed(server: Server, zendesk: Any) -> None:
    ticket = zendesk.read_ticket(Event("35436", ""), text=False)
    zendesk.write(ticket, queue="Payments")
    safe = {"safe_update": True, "updated_stamp": TICKET["updated_at"]}
    assert server.sent[-1][:3] == ("PUT", "/api/v2/tickets/35436", {"ticket": {**safe, "group_id": 98739}})
    zendesk.write(ticket, note="Larkfield router: please look")
    comment = {"body": "Larkfield router: please look", "public": False}
    assert server.sent[-1][2] == {"ticket": {**safe, "comment": comment}}
    body = {"error": "UpdateConflict", "description": "Safe Update prevented the update"}
    server.answer("/api/v2/tickets/35436", body, 409)
    with pytest.raises(Conflict, match="Safe Update prevented"):
        zendesk.write(ticket, queue="Payments")
    with pytest.raises(Rejected, match="no group 'Payment'"):
        zendesk.write(ticket, queue="Payment")


def test_searches_follow_the_cursor_and_begin_before_the_index(server: Server, zendesk: Any) -> None:
    query = "query=updated%3E2026-11-03T11%3A50%3A00Z&filter%5Btype%5D=ticket&page%5Bsize%5D=100"
    more = {"results": [TICKET], "meta": {"has_more": True, "after_cursor": "a"}}
    server.answer(f"/api/v2/search/export?{query}", more)
    server.answer(
        f"/api/v2/search/export?{query}&page%5Bafter%5D=a", {"results": [TICKET | {"id": 35437}], **LAST}
    )
    found = list(zendesk.changed(1793707200.0))  # 2026-11-03, 12:00 UTC
    assert found == [Event("35436", TICKET["updated_at"]), Event("35437", TICKET["updated_at"])]


def test_waiting_and_latest(server: Server, zendesk: Any) -> None:
    server.answer("/api/v2/search/export", {"results": [TICKET], **LAST})
    assert [event.ticket for event in zendesk.waiting()] == ["35436"]
    assert "group%3A98738" in server.sent[-1][1]
    server.answer("/api/v2/tickets", {"tickets": [TICKET], **LAST})
    assert [event.ticket for event in zendesk.latest(10)] == ["35436"]


def test_check_names_groups_and_rights_that_are_missing(server: Server, zendesk: Any) -> None:
    server.answer("/api/v2/groups", {"groups": [{"id": 98738, "name": "Inbox"}], **LAST})
    user = {"email": "larkfield@example.org", "role": "end-user", "ticket_restriction": "groups"}
    server.answer("/api/v2/users/me", {"user": user})
    said = "\n".join(zendesk.check())
    assert "WRONG: this user is no agent" in said
    assert "WRONG: this user sees tickets of 'groups' alone" in said
    assert "WRONG: there is no group 'Payments'" in said
    assert "'Inbox'" not in said
