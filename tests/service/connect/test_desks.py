"""Calls to a helpdesk that misbehaves, and the generic desk's paths and templates."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("httpx", reason="the extra `client` (httpx) is not installed")

from service.connect import http
from service.connect.adapters import opened
from service.connect.config import DeskConfig
from service.connect.desk import Conflict, Denied, DeskAway, DeskError, Event, Gone, NotUnderstood, Rejected
from service.connect.http import Api
from tests.service.connect.server import HTML, JSON, Server


@pytest.mark.parametrize(
    ("status", "kind", "body", "error", "said"),
    [
        (200, HTML, b"<html>login</html>", DeskAway, "the answer is text/html, not JSON"),
        (302, HTML, b"", DeskAway, "redirected"),
        (401, JSON, b'{"message": "Unauthorized"}', Denied, "401 Unauthorized"),
        (403, HTML, b"<html>", Denied, "403"),
        (404, JSON, b'{"message": "Not Found"}', Gone, "404"),
        (404, HTML, b"<html>no such page</html>", DeskAway, "404"),
        (412, JSON, b"{}", Conflict, "412"),
        (422, JSON, b'{"error": "no such group"}', Rejected, "no such group"),
        (
            400,
            JSON,
            b'{"description": "invalid", "errors": [{"field": "x"}]}',
            Rejected,
            'invalid; [{"field": ',
        ),
        (502, HTML, b"<html>", DeskAway, "502"),
    ],
)
def test_every_answer_that_is_no_success_is_named(
    server: Server, status: int, kind: str, body: bytes, error: type[DeskError], said: str
) -> None:
    server.answer("/x", body, status, kind)
    with pytest.raises(error) as caught:
        Api(server.url, {}).get("/x")
    assert said in str(caught.value)
    assert "<html" not in str(caught.value)


def test_a_rate_limit_says_how_long(server: Server) -> None:
    server.answer("/x", {}, 429, Retry_After="17")
    with pytest.raises(DeskAway) as caught:
        Api(server.url, {}).get("/x")
    assert caught.value.retry_after_seconds == 17


def test_the_query_of_a_path_stays(server: Server) -> None:
    server.answer("/tickets?id=17", {"id": 17})
    assert Api(server.url, {}).get("/tickets?id=17", unused=None) == {"id": 17}
    assert server.sent[-1][1] == "/tickets?id=17"


def test_a_desk_that_is_not_there(server: Server) -> None:
    with pytest.raises(DeskAway, match="no answer"):
        Api("http://127.0.0.1:9", {}).get("/x")


@pytest.mark.parametrize(
    ("name", "value"), [("LARGEST_ANSWER_BYTES", 10), ("CALL_SECONDS", -1.0)], ids=["endless", "hanging"]
)
def test_an_answer_without_an_end_is_cut_off(
    server: Server, monkeypatch: pytest.MonkeyPatch, name: str, value: float
) -> None:
    monkeypatch.setattr(http, name, value)
    server.answer("/x", {"text": "more than ten bytes"})
    with pytest.raises(DeskAway):
        Api(server.url, {}).get("/x")


def generic(url: str, mode: str = "notes", **paths: Any) -> Any:
    document = {
        "kind": "generic",
        "url": url,
        "mode": mode,
        "entry": ["inbox"],
        "teams": {"payment": "billing"},
        "token_env": "DESK_TOKEN",
        "generic": {"ticket": "ticket.id", **paths},
    }
    return opened(DeskConfig.model_validate(document))


READ = {
    "version": "ticket.updated",
    "read": "/tickets/{ticket}",
    "read_root": "data",
    "subject": "title",
    "text": "messages.0.body",
    "queue": "group.name",
    "owner": "owner",
    "status": "state",
    "note_text": "notes",
    "move": {"method": "PUT", "path": "/tickets/{ticket}", "body": {"group": "{queue}"}},
    "note": {"path": "/tickets/{ticket}/notes", "body": {"text": "{note}", "internal": True}},
}


def test_a_generic_desk_reads_and_writes_by_configuration(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DESK_TOKEN", "abc")
    desk = generic(server.url, **READ)
    event = desk.read_event({"ticket": {"id": 17, "updated": "noon"}})
    assert (event.ticket, event.version, event.content) == ("17", "noon", None)
    record = {"title": "Hello", "messages": [{"body": "Text"}], "group": {"name": "inbox"}, "state": "new"}
    server.answer("/tickets/17", {"data": record})
    ticket = desk.read_ticket(event)
    assert (ticket.subject, ticket.text, ticket.queue) == ("Hello", "Text", "inbox")
    assert (ticket.open, ticket.solved, ticket.taken, ticket.noted) == (True, False, False, False)
    desk.write(ticket, queue="billing")
    assert server.sent[-1] == ("PUT", "/tickets/17", {"group": "billing"}, "Bearer abc")
    server.answer("/tickets/17/notes", {})
    desk.write(ticket, note='Larkfield router: "look" {queue}')
    assert server.sent[-1][2] == {"text": 'Larkfield router: "look" {queue}', "internal": True}
    server.answer("/tickets/17", {"data": record | {"notes": [{"t": "Larkfield router: look"}], "owner": 3}})
    again = desk.read_ticket(event)
    assert (again.noted, again.taken) == (True, True)


SEARCH = {
    "changed": "/tickets?since={since}&seconds={seconds}",
    "waiting": "/tickets?queue={queue}",
    "root": "data",
    "version": "updated",
    "next": "links.next",
}


def found(number: int, **links: str) -> dict[str, Any]:
    return {"data": [{"id": number, "updated": "noon"}], "links": links}


def test_a_generic_desk_is_searched_page_by_page(server: Server) -> None:
    desk = generic(server.url, **READ, search=SEARCH)
    first = "/tickets?since=2026-11-03T12%3A00%3A00Z&seconds=1793707200"
    server.answer(first, found(17, next=f"{server.url}/tickets?page=2"))
    server.answer("/tickets?page=2", found(18, next="/tickets?page=3"))
    server.answer("/tickets?page=3", found(19))
    assert list(desk.changed(1793707200.0)) == [Event(number, "noon") for number in ("17", "18", "19")]
    server.answer("/tickets?queue=inbox", found(20))
    assert list(desk.waiting()) == [Event("20", "noon")]
    server.answer("/tickets", found(21))
    assert list(desk.latest(10)) == [Event("21", "noon")]
    assert desk.check() == []


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"items": []}, r"holds no list at root \(data\)"),
        ({"data": [{"number": 17}]}, "holds no ticket id at 'id'"),
        (found(17, next="https://elsewhere.example.org/tickets"), "the next page is not at"),
        (found(17, next="/tickets"), "more than 3 pages"),
    ],
)
def test_a_search_that_is_configured_wrongly_says_so(
    server: Server, monkeypatch: pytest.MonkeyPatch, answer: Any, said: str
) -> None:
    monkeypatch.setattr("service.connect.adapters.generic._MOST_PAGES", 3)
    server.answer("/tickets", answer)
    with pytest.raises(DeskError, match=said):
        list(generic(server.url, **READ, search=SEARCH).changed(0.0))


def test_a_generic_desk_without_a_search_finds_nothing_and_says_so(server: Server) -> None:
    desk = generic(server.url, **READ)
    assert [*desk.changed(0.0), *desk.waiting(), *desk.latest(10)] == []
    assert desk.check() == ["no generic.search: what a lost webhook told of is not found again"]


def test_check_misses_only_what_the_mode_needs(server: Server) -> None:
    assert not [said for said in generic(server.url, note=READ["note"]).check() if "WRONG" in said]
    assert "WRONG: generic.move is missing" in generic(server.url, note=READ["note"], mode="move").check()[0]


def test_without_an_api_the_webhook_is_the_ticket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DESK_TOKEN", "abc")
    desk = generic("http://127.0.0.1:9", text="ticket.text")
    body = {"ticket": {"id": "A/1", "text": "Hello"}}
    event = desk.read_event(body)
    assert event == desk.read_event(dict(body))
    assert desk.read_ticket(event).text == "Hello"
    with pytest.raises(Rejected, match=r"generic\.move is not configured"):
        desk.write(desk.read_ticket(event), queue="billing")


@pytest.mark.parametrize(
    "body", [None, [], {"ticket": None}, {"ticket": {"id": {}}}, {"ticket": {"id": True}}]
)
def test_a_body_without_a_ticket_is_not_understood(monkeypatch: pytest.MonkeyPatch, body: Any) -> None:
    monkeypatch.setenv("DESK_TOKEN", "abc")
    with pytest.raises(NotUnderstood):
        generic("http://127.0.0.1:9").read_event(body)
