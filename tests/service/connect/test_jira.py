"""The adapter of Jira Service Management against requests and answers as documented, written here."""

from __future__ import annotations

import time
from typing import Any

import pytest

pytest.importorskip("httpx", reason="the extra `client` (httpx) is not installed")

from service.connect.desk import Event, NotUnderstood, Rejected
from tests.service.connect.server import Server

STATUS = {"name": "Waiting for support", "statusCategory": {"key": "indeterminate"}}
FIELDS: dict[str, Any] = {
    "summary": "Charged twice",
    "description": "My card was charged twice.",
    "status": STATUS,
    "assignee": None,
    "components": [],
    "comment": {"comments": []},
    "updated": "2026-11-03T11:51:13.809+0000",
}
NOTE = {"id": "1", "body": "Larkfield router: please look", "jsdPublic": False}
ISSUE = {"id": "10002", "key": "SUP-7", "fields": FIELDS}
PATH = "/rest/api/2/issue/SUP-7"


def desk(server: Server, **keys: Any) -> Any:
    server.answer(PATH, ISSUE)
    return server.desk(**{"kind": "jira", "user": "a@example.org", "project": "SUP", "entry": [""], **keys})


def test_a_webhook_names_the_issue_and_other_projects_are_left(server: Server) -> None:
    jira = desk(server)
    body = {"timestamp": 1762170673809, "webhookEvent": "jira:issue_created", "issue": ISSUE}
    assert jira.read_event(body) == Event("SUP-7", "1762170673809")
    assert jira.read_event(body | {"issue": {"key": "SUPER-7"}}) is None
    for wrong in ({}, [], {"issue": {}}, {"issue": {"key": 7}}):
        with pytest.raises(NotUnderstood, match="issue"):
            jira.read_event(wrong)


def test_an_issue_is_read_with_its_component(server: Server) -> None:
    jira = desk(server, entry=["Inbox"])
    server.answer(PATH, {"fields": FIELDS | {"components": [{"name": "Inbox"}]}})
    ticket = jira.read_ticket(Event("SUP-7", ""))
    assert (ticket.queue, ticket.subject, ticket.text) == ("Inbox", "Charged twice", FIELDS["description"])
    assert (ticket.open, ticket.solved, ticket.taken, ticket.noted) == (True, False, False, False)
    changed = {
        "components": [{"name": "Inbox"}, {"name": "Payments"}],
        "status": {"statusCategory": {"key": "done"}},
        "assignee": {"accountId": "5"},
        "comment": {"comments": [NOTE]},
    }
    server.answer(PATH, {"fields": FIELDS | changed})
    ticket = jira.read_ticket(Event("SUP-7", ""))
    assert (ticket.open, ticket.solved, ticket.taken, ticket.noted) == (False, True, True, True)
    assert ticket.queue == "Payments"
    server.answer(PATH, {"fields": FIELDS | {"comment": {"comments": [NOTE | {"jsdPublic": True}]}}})
    assert not jira.read_ticket(Event("SUP-7", "")).noted


def test_a_decision_is_written(server: Server) -> None:
    jira = desk(server)
    ticket = jira.read_ticket(Event("SUP-7", ""), text=False)
    assert ticket.queue == ""
    server.answer(PATH, b"", 204)
    jira.write(ticket, queue="Payments")
    assert server.sent[-1][:3] == ("PUT", PATH, {"fields": {"components": [{"name": "Payments"}]}})
    comment = "/rest/servicedeskapi/request/SUP-7/comment"
    server.answer(comment, {"id": "1"}, 201)
    jira.write(ticket, note="Larkfield router: please look")
    body = {"body": "Larkfield router: please look", "public": False}
    assert server.sent[-1][:3] == ("POST", comment, body)
    error = {"errorMessages": [], "errors": {"components": "Component name 'Payments' is not valid"}}
    server.answer(PATH, error, 400)
    with pytest.raises(Rejected, match="Component name 'Payments' is not valid"):
        jira.write(ticket, queue="Payments")


def test_a_field_of_your_own_is_read_written_and_searched(server: Server) -> None:
    jira = desk(server, queue_field="customfield_10050", entry=["", 'In"box'])
    server.answer(PATH, {"fields": FIELDS | {"customfield_10050": {"id": "1", "value": "Payments"}}})
    ticket = jira.read_ticket(Event("SUP-7", ""))
    assert ticket.queue == "Payments"
    server.answer(PATH, b"", 204)
    jira.write(ticket, queue="Delivery")
    assert server.sent[-1][2] == {"fields": {"customfield_10050": {"value": "Delivery"}}}
    asked: list[str] = []
    jira._api.get = lambda path, **parameters: asked.append(parameters["jql"]) or {"issues": []}
    assert list(jira.waiting()) == []
    assert 'AND (cf[10050] in ("In\\"box") OR cf[10050] is EMPTY)' in asked[0]


def test_searches_follow_the_token(server: Server) -> None:
    jira = desk(server)
    pages = [
        {"issues": [ISSUE], "nextPageToken": "a"},
        {"issues": [ISSUE | {"key": "SUP-8"}], "isLast": True},
    ]
    asked: list[dict[str, Any]] = []
    jira._api.get = lambda path, **parameters: asked.append({"path": path, **parameters}) or pages.pop(0)
    found = list(jira.changed(time.time() - 130))
    assert found == [Event("SUP-7", FIELDS["updated"]), Event("SUP-8", FIELDS["updated"])]
    assert asked[0]["path"] == "/api/2/search/jql"
    assert asked[0]["jql"] == 'project = "SUP" AND updated >= "-3m" ORDER BY updated ASC'
    assert [each["nextPageToken"] for each in asked] == [None, "a"]


def test_check_names_components_and_rights_that_are_missing(server: Server) -> None:
    jira = desk(server)
    server.answer("/rest/api/2/myself", {"displayName": "Larkfield"})
    rights = {"BROWSE_PROJECTS": {"havePermission": True}, "EDIT_ISSUES": {"havePermission": False}}
    server.answer("/rest/api/2/mypermissions", {"permissions": rights})
    server.answer("/rest/api/2/project/SUP/components", [{"name": "Delivery"}])
    said = "\n".join(jira.check())
    assert "WRONG: no right EDIT_ISSUES" in said
    assert "WRONG: no right ADD_COMMENTS" in said
    assert "BROWSE_PROJECTS" not in said
    assert "WRONG: the project SUP has no component 'Payments'" in said
    assert said.count("has no component") == 1
