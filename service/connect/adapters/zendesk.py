"""Zendesk Support by its Ticketing API v2 and its event webhooks; documented at developer.zendesk.com (2026).

Not tried on a real Zendesk: the tests hold it to the documented requests. A write carries `updated_stamp`, so
Zendesk refuses it with 409 if anything happened since. Its search sees a change some minutes later.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from service.connect.adapters.groups import NO_GROUP, Groups
from service.connect.config import ConfigError, DeskConfig
from service.connect.desk import NOTE_BEGINS, Event, NotUnderstood, Ticket
from service.connect.http import Api

SIGNATURE = "zendesk"
_OPEN, _SOLVED = ("new", "open"), ("solved", "closed")
_INDEX_SECONDS = 600.0  # until a change is found by search
_PAGE = 100


def open_desk(config: DeskConfig, token: str) -> Zendesk:
    """With `user`, an agent's mail address, the token is an API token, otherwise one of OAuth."""
    if not token:
        raise ConfigError(
            "token_env or token_file: zendesk needs an API token beside user, or an OAuth token"
        )
    if config.user:
        api = Api(f"{config.url}/api/v2", {}, (f"{config.user}/token", token))
    else:
        api = Api(f"{config.url}/api/v2", {"Authorization": f"Bearer {token}"})
    return Zendesk(api, config)


class Zendesk:
    """The desk; groups are its queues, "" is no group."""

    def __init__(self, api: Api, config: DeskConfig) -> None:
        self._api = api
        self._config = config
        self._groups = Groups(lambda: {each["name"]: each["id"] for each in self._pages("/groups", "groups")})

    def read_event(self, body: Any) -> Event | None:
        """Every event has an id of its own; those of other things than tickets are left."""
        kind = body.get("type") if isinstance(body, dict) else None
        if not isinstance(kind, str) or not kind.startswith("zen:event-type:"):
            raise NotUnderstood("expected an event webhook, with a type zen:event-type:ticket.…")
        if not kind.startswith("zen:event-type:ticket."):
            return None
        detail = body.get("detail")
        ticket = detail.get("id") if isinstance(detail, dict) else None
        if not str(ticket or "").isdigit() or not body.get("id"):
            raise NotUnderstood("expected the ticket's id in detail.id, and the event's in id")
        return Event(str(ticket), str(body["id"]))

    def read_ticket(self, event: Event, *, text: bool = True) -> Ticket:
        """The description is the first comment; one more call for the notes."""
        record = self._api.get(f"/tickets/{event.ticket}")["ticket"]
        comments = self._pages(f"/tickets/{event.ticket}/comments", "comments") if text else []
        return Ticket(
            id=event.ticket,
            queue=self._groups.name(record["group_id"]),
            subject=record["subject"] or "",
            text=record["description"] or "",
            open=record["status"] in _OPEN,
            solved=record["status"] in _SOLVED,
            taken=record["assignee_id"] is not None,
            noted=any(not each["public"] and NOTE_BEGINS in (each["body"] or "") for each in comments),
            version=record["updated_at"],
        )

    def write(self, ticket: Ticket, *, queue: str | None = None, note: str | None = None) -> None:
        """One request, refused if the ticket changed."""
        change: dict[str, Any] = {"safe_update": True, "updated_stamp": ticket.version}
        if queue is not None:
            change["group_id"] = self._groups.number(queue)
        if note is not None:
            change["comment"] = {"body": note, "public": False}
        self._api.call("PUT", f"/tickets/{ticket.id}", {"ticket": change})

    def changed(self, since: float) -> Iterator[Event]:
        """From some minutes before, because the search is behind."""
        moment = datetime.fromtimestamp(since - _INDEX_SECONDS, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return self._search(f"updated>{moment}")

    def waiting(self) -> Iterator[Event]:
        """New and open tickets of the entry groups without an assignee."""
        for name in self._config.entry:
            group = "none" if name == NO_GROUP else str(self._groups.number(name))
            yield from self._search(f"status<pending assignee:none group:{group}")

    def latest(self, count: int) -> Iterator[Event]:
        """The newest, newest first."""
        found = self._api.get("/tickets", **{"sort": "-id", "page[size]": count})["tickets"]
        return _events(itertools.islice(found, count))

    def check(self) -> list[str]:
        """Agents may change tickets of the groups that they see; Zendesk has no question for more."""
        me = self._api.get("/users/me")["user"]
        said = [f"Zendesk, as {me.get('email', '?')}, {me.get('role', '?')}"]
        if me.get("role") not in ("agent", "admin"):
            said.append("WRONG: this user is no agent")
        if me.get("ticket_restriction") is not None:
            said.append(f"WRONG: this user sees tickets of {me['ticket_restriction']!r} alone, not all")
        return said + self._groups.missing(self._config.queues)

    def _search(self, query: str) -> Iterator[Event]:
        return _events(self._pages("/search/export", "results", query=query, **{"filter[type]": "ticket"}))

    def _pages(self, path: str, name: str, **parameters: Any) -> Iterator[Any]:
        """All pages by cursor."""
        cursor = None
        while True:
            page = {"page[size]": _PAGE, "page[after]": cursor}
            found = self._api.get(path, **parameters, **page)
            yield from found[name]
            if not found["meta"]["has_more"]:
                return
            cursor = found["meta"]["after_cursor"]


def _events(records: Iterable[Any]) -> Iterator[Event]:
    return (Event(str(each["id"]), str(each["updated_at"])) for each in records)
