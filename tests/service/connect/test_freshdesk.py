"""Freshdesk's adapter against requests and answers of the documented shape, written here."""

from __future__ import annotations

import base64
from typing import Any

import pytest

pytest.importorskip("httpx", reason="the extra `client` (httpx) is not installed")

from service.connect.desk import Event, Gone, NotUnderstood, Rejected
from tests.service.connect.server import Server

TICKET = {
    "id": 20,
    "subject": "Charged twice",
    "description": "<div>My card was charged twice.</div>",
    "description_text": "My card was charged twice.",
    "status": 2,
    "group_id": 11,
    "responder_id": None,
    "spam": False,
    "updated_at": "2026-11-03T11:51:13Z",
}
NOTE = {"id": 5, "private": True, "incoming": False, "body_text": "Larkfield router: please look"}


@pytest.fixture
def freshdesk(server: Server) -> Any:
    server.answer("/api/v2/groups", [{"id": 11, "name": "Inbox"}, {"id": 12, "name": "Payments"}])
    server.answer("/api/v2/tickets/20", TICKET)
    server.answer("/api/v2/tickets/20/conversations", [])
    return server.desk(kind="freshdesk")


@pytest.mark.parametrize("body", [{"ticket_id": "20"}, {"freshdesk_webhook": {"ticket_id": 20}}])
def test_a_webhook_names_the_ticket_and_no_version(freshdesk: Any, body: Any) -> None:
    first, second = freshdesk.read_event(body), freshdesk.read_event(body)
    assert (first.ticket, second.ticket) == ("20", "20")
    assert first.version != second.version  # a second solution must not pass for the first


@pytest.mark.parametrize("body", [{}, [], None, {"ticket_id": "{{ticket.id}}"}, {"freshdesk_webhook": 1}])
def test_another_body_is_not_understood(freshdesk: Any, body: Any) -> None:
    with pytest.raises(NotUnderstood, match="ticket_id"):
        freshdesk.read_event(body)


def test_a_ticket_is_read_with_the_name_of_its_group(server: Server, freshdesk: Any) -> None:
    ticket = freshdesk.read_ticket(Event("20", ""))
    assert (ticket.queue, ticket.subject, ticket.text) == ("Inbox", TICKET["subject"], TICKET["description"])
    assert (ticket.open, ticket.solved, ticket.taken, ticket.noted) == (True, False, False, False)
    assert server.sent[-1][3] == "Basic " + base64.b64encode(b"abc:X").decode()
    server.answer("/api/v2/tickets/20/conversations", [NOTE])
    server.answer("/api/v2/tickets/20", TICKET | {"status": 4, "responder_id": 7, "group_id": None})
    ticket = freshdesk.read_ticket(Event("20", ""))
    assert (ticket.open, ticket.solved, ticket.taken, ticket.noted) == (False, True, True, True)
    assert ticket.queue == ""


@pytest.mark.parametrize("change", [{"deleted": True}, {"spam": True}])
def test_a_ticket_in_the_bin_is_gone(server: Server, freshdesk: Any, change: Any) -> None:
    server.answer("/api/v2/tickets/20", TICKET | change)
    with pytest.raises(Gone):
        freshdesk.read_ticket(Event("20", ""))


def test_a_decision_is_written(server: Server, freshdesk: Any) -> None:
    ticket = freshdesk.read_ticket(Event("20", ""), text=False)
    freshdesk.write(ticket, queue="Payments")
    assert server.sent[-1][:3] == ("PUT", "/api/v2/tickets/20", {"group_id": 12})
    server.answer("/api/v2/tickets/20/notes", {}, 201)
    freshdesk.write(
        ticket, note="Larkfield router: a < b\nhttps://router.example.org/review?source=f&ticket=20"
    )
    body = "Larkfield router: a &lt; b<br>https://router.example.org/review?source=f&amp;ticket=20"
    assert server.sent[-1][:3] == ("POST", "/api/v2/tickets/20/notes", {"body": body, "private": True})
    error = {"description": "Validation failed", "errors": [{"field": "group_id", "message": "invalid"}]}
    server.answer("/api/v2/tickets/20", error, 400)
    with pytest.raises(Rejected, match=r"Validation failed.*group_id"):
        freshdesk.write(ticket, queue="Payments")
    with pytest.raises(Rejected, match="no group 'Payment'"):
        freshdesk.write(ticket, queue="Payment")


def test_searches_page_until_the_end(server: Server, freshdesk: Any) -> None:
    query = "order_by=updated_at&updated_since=2026-11-03T12%3A00%3A00Z&order_type=asc&per_page=100"
    server.answer(f"/api/v2/tickets?{query}&page=1", [TICKET] * 100)
    server.answer(f"/api/v2/tickets?{query}&page=2", [TICKET | {"id": 21}])
    found = list(freshdesk.changed(1793707200.0))  # 2026-11-03, 12:00 UTC
    assert len(found) == 101
    assert found[-1] == Event("21", TICKET["updated_at"])


def test_waiting_tickets_are_open_free_and_in_an_entry_group(server: Server, freshdesk: Any) -> None:
    others = [{"status": 3}, {"responder_id": 7}, {"group_id": 12}, {"group_id": None}]
    tickets = [TICKET | {"id": 30 + number} | each for number, each in enumerate(others)]
    server.answer("/api/v2/tickets", [TICKET, *tickets])
    assert [event.ticket for event in freshdesk.waiting()] == ["20"]
    assert len(list(freshdesk.latest(10))) == 5


def test_check_names_groups_and_rights_that_are_missing(server: Server, freshdesk: Any) -> None:
    server.answer("/api/v2/groups", [{"id": 11, "name": "Inbox"}])
    server.answer("/api/v2/agents/me", {"id": 1, "ticket_scope": 2, "contact": {"email": "a@example.org"}})
    said = "\n".join(freshdesk.check())
    assert "WRONG: this agent sees only some tickets" in said
    assert "WRONG: there is no group 'Payments'" in said
    assert "'Inbox'" not in said
