"""The adapter of OTOBO and Znuny against requests and answers of the documented shape, written here."""

from __future__ import annotations

import time
from typing import Any

import pytest

pytest.importorskip("httpx", reason="the extra `client` (httpx) is not installed")

from service.connect.desk import Denied, DeskError, Event, Gone, NotUnderstood, Rejected
from tests.service.connect.server import Server

MAIL = {"ArticleID": "1", "SenderType": "customer", "IsVisibleForCustomer": "1", "Body": "Charged twice."}
NOTE = {
    "ArticleID": "2",
    "SenderType": "agent",
    "IsVisibleForCustomer": "0",
    "Body": "Larkfield router: look",
}
TICKET: dict[str, Any] = {
    "TicketID": "17",
    "TicketNumber": "2026110300001",
    "Title": "Twice",
    "Queue": "Inbox",
    "StateType": "new",
    "Lock": "unlock",
    "Changed": "2026-11-03 11:51:13",
    "Article": [MAIL],
}


@pytest.fixture
def otobo(server: Server) -> Any:
    server.answer("/TicketGet", {"Ticket": [TICKET]})
    return server.desk(kind="otobo", user="larkfield")


@pytest.mark.parametrize(
    "body",
    [
        {"TicketID": 17, "Event": "TicketCreate"},  # Generic::PassThrough
        {"Ticket": {}, "Event": {"TicketID": "17", "Event": "TicketStateUpdate"}},  # Ticket::Generic
        {"Ticket": {"TicketID": "17"}},
    ],
)
def test_a_webhook_names_the_ticket_and_no_version(otobo: Any, body: Any) -> None:
    first, second = otobo.read_event(body), otobo.read_event(body)
    assert (first.ticket, second.ticket) == ("17", "17")
    assert first.version != second.version


@pytest.mark.parametrize("body", [{}, [], None, {"Event": "TicketCreate"}, {"Ticket": {"TicketID": "x"}}])
def test_another_body_is_not_understood(otobo: Any, body: Any) -> None:
    with pytest.raises(NotUnderstood, match="TicketID"):
        otobo.read_event(body)


def test_a_ticket_is_read_with_its_first_article(server: Server, otobo: Any) -> None:
    ticket = otobo.read_ticket(Event("17", ""))
    assert (ticket.queue, ticket.subject, ticket.text) == ("Inbox", "Twice", "Charged twice.")
    assert (ticket.open, ticket.solved, ticket.taken, ticket.noted) == (True, False, False, False)
    asked = {"UserLogin": "larkfield", "Password": "abc", "TicketID": "17", "AllArticles": 1}
    assert server.sent[-1][:3] == ("POST", "/TicketGet", asked)
    changed = {"StateType": "closed", "Lock": "lock", "Article": [MAIL, NOTE]}
    server.answer("/TicketGet", {"Ticket": [TICKET | changed]})
    ticket = otobo.read_ticket(Event("17", ""))
    assert (ticket.open, ticket.solved, ticket.taken, ticket.noted) == (False, True, True, True)


def test_a_decision_is_written(server: Server, otobo: Any) -> None:
    ticket = otobo.read_ticket(Event("17", ""), text=False)
    server.answer("/TicketUpdate", {"TicketID": "17"})
    otobo.write(ticket, queue="Payments")
    assert server.sent[-1][2]["Ticket"] == {"Queue": "Payments"}
    assert "Article" not in server.sent[-1][2]
    otobo.write(ticket, note="Larkfield router: look")
    article = server.sent[-1][2]["Article"]
    assert (article["Body"], article["IsVisibleForCustomer"]) == ("Larkfield router: look", 0)
    assert article["CommunicationChannel"] == "Internal"


@pytest.mark.parametrize(
    ("operation", "code", "error"),
    [
        ("TicketGet", "TicketGet.AuthFail", Denied),
        ("TicketGet", "TicketGet.AccessDenied", Gone),  # a deleted ticket is denied
        ("TicketUpdate", "TicketUpdate.AccessDenied", Denied),
        ("TicketUpdate", "TicketUpdate.InvalidParameter", Rejected),
    ],
)
def test_an_error_with_the_status_200_is_named(
    server: Server, otobo: Any, operation: str, code: str, error: type[DeskError]
) -> None:
    ticket = otobo.read_ticket(Event("17", ""))
    server.answer(f"/{operation}", {"Error": {"ErrorCode": code, "ErrorMessage": "no such queue"}})
    with pytest.raises(error, match=f"{operation}: no such queue"):
        otobo.read_ticket(Event("17", "")) if operation == "TicketGet" else otobo.write(ticket, queue="P")


def test_an_answer_that_is_no_object(server: Server, otobo: Any) -> None:
    server.answer("/TicketGet", [])
    with pytest.raises(DeskError, match="is the url that of the web service"):
        otobo.read_ticket(Event("17", ""))


def test_searches_read_when_each_ticket_changed(server: Server, otobo: Any) -> None:
    server.answer("/TicketSearch", {"TicketID": ["17"] * 150})
    found = list(otobo.changed(time.time() - 130))
    assert found[0] == Event("17", TICKET["Changed"])
    search, *reads = server.sent
    assert search[2]["TicketLastChangeTimeNewerMinutes"] == 3
    assert [len(each[2]["TicketID"].split(",")) for each in reads] == [100, 50]
    server.answer("/TicketSearch", {})  # nothing was found
    assert list(otobo.waiting()) == []
    assert (server.sent[-1][2]["Queues"], server.sent[-1][2]["Locks"]) == (["Inbox"], ["unlock"])
    assert list(otobo.latest(10)) == []


def test_check_says_if_no_ticket_is_seen(server: Server, otobo: Any) -> None:
    server.answer("/TicketSearch", {})
    assert otobo.check()[0] == "OTOBO or Znuny, as larkfield: sees no ticket"
