"""Jira Service Management Cloud; documented at developer.atlassian.com (platform REST v2, service desk REST).

Not tried on a real Jira: the tests hold it to the documented requests. A queue of Jira is a search, so a team
is a field that the searches read: the components, or a single-choice field of your own. Nothing is
conditional: the issue is read again just before the write.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote

from service.connect.config import ConfigError, DeskConfig
from service.connect.desk import NOTE_BEGINS, Event, NotUnderstood, Ticket, once
from service.connect.http import Api

SIGNATURE = "sha256"
_COMPONENTS = "components"
_NONE = ""  # no component, or no value in the field
_RIGHTS = ("BROWSE_PROJECTS", "EDIT_ISSUES", "ADD_COMMENTS")
_PAGE = 100


def open_desk(config: DeskConfig, token: str) -> Jira:
    """With an agent's mail address and an API token."""
    if not token or not config.user:
        raise ConfigError("user, and token_env or token_file: jira needs a mail address and an API token")
    return Jira(Api(f"{config.url}/rest", {}, (config.user, token)), config)


class Jira:
    """The desk."""

    def __init__(self, api: Api, config: DeskConfig) -> None:
        self._api = api
        self._config = config
        self._field = config.queue_field

    def read_event(self, body: Any) -> Event | None:
        """Issues of the project alone; a retry of a webhook carries the same time."""
        issue = body.get("issue") if isinstance(body, dict) else None
        if not isinstance(issue, dict) or not isinstance(issue.get("key"), str):
            raise NotUnderstood("expected the webhook of an issue, with issue.key")
        if issue["key"].rpartition("-")[0] != self._config.project:
            return None
        return Event(issue["key"], str(body.get("timestamp") or once()))

    def read_ticket(self, event: Event, *, text: bool = True) -> Ticket:
        """One call, the comments included."""
        fields = f"summary,status,assignee,updated,{self._field}" + (",description,comment" if text else "")
        record = self._api.get(f"/api/2/issue/{quote(event.ticket, safe='')}", fields=fields)["fields"]
        category = record["status"]["statusCategory"]["key"]
        comments = (record.get("comment") or {}).get("comments") or []
        return Ticket(
            id=event.ticket,
            queue=self._queue(record.get(self._field)),
            subject=record["summary"] or "",
            text=record.get("description") or "",
            open=category != "done",
            solved=category == "done",
            taken=record["assignee"] is not None,
            noted=any(not each.get("jsdPublic") and NOTE_BEGINS in each["body"] for each in comments),
            version=record["updated"],
        )

    def write(self, ticket: Ticket, *, queue: str | None = None, note: str | None = None) -> None:
        """A value that does not exist is refused by Jira with 400."""
        if note is not None:
            path = f"/servicedeskapi/request/{ticket.id}/comment"
            self._api.call("POST", path, {"body": note, "public": False})
        if queue is not None:
            value: Any = [{"name": queue}] if self._field == _COMPONENTS else {"value": queue}
            self._api.call("PUT", f"/api/2/issue/{ticket.id}", {"fields": {self._field: value}})

    def changed(self, since: float) -> Iterator[Event]:
        """By age in minutes, because Jira reads moments in the time zone of its user."""
        minutes = max(1, math.ceil((time.time() - since) / 60))
        return self._search(f'updated >= "-{minutes}m" ORDER BY updated ASC')

    def waiting(self) -> Iterator[Event]:
        """Issues of the entry queues that are not done and that nobody is assigned to."""
        names = [_quoted(name) for name in self._config.entry if name != _NONE]
        field = "component" if self._field == _COMPONENTS else f"cf[{self._field.partition('_')[2]}]"
        found = [f"{field} in ({', '.join(names)})"] if names else []
        if _NONE in self._config.entry:
            found.append(f"{field} is EMPTY")
        place = " OR ".join(found)
        return self._search(f"statusCategory != Done AND assignee is EMPTY AND ({place}) ORDER BY key ASC")

    def latest(self, count: int) -> Iterator[Event]:
        """The newest, newest first."""
        return _events(self._found("created is not EMPTY ORDER BY created DESC", count)["issues"])

    def check(self) -> list[str]:
        """Rights in the project, and its components; options of a field of your own are not listed."""
        project = self._config.project
        me = self._api.get("/api/2/myself")
        said = [f"Jira, project {project}, as {me.get('displayName', '?')}"]
        rights = self._api.get("/api/2/mypermissions", projectKey=project, permissions=",".join(_RIGHTS))
        for right in _RIGHTS:
            if not rights["permissions"].get(right, {}).get("havePermission"):
                said.append(f"WRONG: no right {right} in the project {project}")
        if self._field != _COMPONENTS:
            return [*said, f"the values of {self._field} cannot be seen without writing"]
        found = {each["name"] for each in self._api.get(f"/api/2/project/{project}/components")}
        missing = [name for name in self._config.queues if name not in (_NONE, *found)]
        return said + [f"WRONG: the project {project} has no component {name!r}" for name in missing]

    def _queue(self, value: Any) -> str:
        """Of several components the first that is no entry: a person has added it."""
        if self._field != _COMPONENTS:
            return (value or {}).get("value") or _NONE
        names = [each["name"] for each in value or []]
        return next((name for name in names if name not in self._config.entry), (names or [_NONE])[0])

    def _search(self, query: str) -> Iterator[Event]:
        token = None
        while True:
            found = self._found(query, _PAGE, token)
            yield from _events(found["issues"])
            token = found.get("nextPageToken")
            if not token:
                return

    def _found(self, query: str, count: int, token: str | None = None) -> Any:
        project = _quoted(self._config.project or "")
        return self._api.get(
            "/api/2/search/jql",
            jql=f"project = {project} AND {query}",
            fields="updated",
            maxResults=count,
            nextPageToken=token,
        )


def _events(records: Iterable[Any]) -> Iterator[Event]:
    return (Event(each["key"], each["fields"]["updated"]) for each in records)


def _quoted(name: str) -> str:
    """A string of JQL."""
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'
