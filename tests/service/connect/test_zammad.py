"""Zammad's adapter against requests and answers of the documented shape, written here."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("httpx", reason="the extra `client` (httpx) is not installed")

from service.connect.desk import Event, NotUnderstood, Rejected
from tests.service.connect.server import Server

TICKET = {
    "id": 17,
    "number": "22017",
    "title": "Charged twice",
    "group": "Inbox",
    "state": "new",
    "owner": "-",
    "updated_at": "2026-11-03T11:51:13.809Z",
}
ARTICLE = {
    "id": 1,
    "sender": "Customer",
    "internal": False,
    "content_type": "text/html",
    "body": "<p>Twice</p>",
}


@pytest.fixture
def zammad(server: Server) -> tuple[Server, Any]:
    return server, server.desk(kind="zammad")


def test_a_webhook_names_the_ticket(zammad: tuple[Server, Any]) -> None:
    event = zammad[1].read_event({"ticket": TICKET, "article": ARTICLE})
    assert event == Event("17", "2026-11-03T11:51:13.809Z")
    for body in ({}, {"ticket": {}}, {"ticket": {"id": "x"}}, []):
        with pytest.raises(NotUnderstood):
            zammad[1].read_event(body)


def test_a_ticket_is_read_with_its_first_article(zammad: tuple[Server, Any]) -> None:
    server, desk = zammad
    server.answer("/api/v1/tickets/17?expand=true", TICKET)
    server.answer("/api/v1/ticket_articles/by_ticket/17", [ARTICLE])
    ticket = desk.read_ticket(Event("17", ""))
    assert (ticket.queue, ticket.subject, ticket.text) == ("Inbox", "Charged twice", "<p>Twice</p>")
    assert (ticket.open, ticket.solved, ticket.taken, ticket.noted) == (True, False, False, False)
    assert server.sent[-1][3] == "Token token=abc"
    note = {**ARTICLE, "id": 2, "internal": True, "body": "Larkfield router: please look"}
    server.answer("/api/v1/ticket_articles/by_ticket/17", [ARTICLE, note])
    server.answer(
        "/api/v1/tickets/17?expand=true", TICKET | {"state": "closed", "owner": "agent@example.org"}
    )
    ticket = desk.read_ticket(Event("17", ""))
    assert (ticket.open, ticket.solved, ticket.taken, ticket.noted) == (False, True, True, True)


def test_a_decision_is_written_in_one_request(zammad: tuple[Server, Any]) -> None:
    server, desk = zammad
    server.answer("/api/v1/tickets/17?expand=true", TICKET)
    ticket = desk.read_ticket(Event("17", ""), text=False)
    server.answer("/api/v1/tickets/17", TICKET)
    desk.write(ticket, queue="Payments")
    assert server.sent[-1][:3] == ("PUT", "/api/v1/tickets/17", {"group": "Payments"})
    desk.write(ticket, note="Larkfield router: please look")
    assert server.sent[-1][2]["article"]["internal"] is True
    assert server.sent[-1][2]["article"]["body"] == "Larkfield router: please look"
    server.answer("/api/v1/tickets/17", {"error": "No lookup value found for 'group': \"Payments\""}, 422)
    with pytest.raises(Rejected, match="No lookup value found"):
        desk.write(ticket, queue="Payments")


def test_searches_page_until_the_end(zammad: tuple[Server, Any]) -> None:
    _, desk = zammad
    pages = iter([[TICKET] * 100, [TICKET | {"id": 18}]])
    desk._api.get = lambda path, **parameters: next(pages)
    found = list(desk.changed(0.0))
    assert len(found) == 101
    assert found[-1] == Event("18", TICKET["updated_at"])


def test_check_names_groups_and_rights_that_are_missing(zammad: tuple[Server, Any]) -> None:
    server, desk = zammad
    server.answer("/api/v1/users/me", {"login": "larkfield", "group_ids": {"1": ["read"]}})
    server.answer("/api/v1/groups", [{"id": 1, "name": "Inbox"}])
    said = desk.check()
    assert "WRONG: this user may not change tickets in 'Inbox'" in said
    assert "WRONG: there is no group 'Payments' that this user may see" in said
