"""Zammad by its REST API; documented at docs.zammad.org (latest) and admin-docs.zammad.org (webhooks, 6.4).

Not tried on a real Zammad: the tests hold it to the documented requests. Zammad has no conditional update:
the ticket is read again just before the write.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from service.connect.config import ConfigError, DeskConfig
from service.connect.desk import NOTE_BEGINS, Event, NotUnderstood, Ticket, once
from service.connect.http import Api

SIGNATURE = "sha1"
_OPEN = ("new", "open")
_SOLVED = "closed"
_PAGE = 100


def open_desk(config: DeskConfig, token: str) -> Zammad:
    """With an access token of a user who is an agent in all groups."""
    if not token:
        raise ConfigError("token_env or token_file: zammad needs an access token")
    return Zammad(Api(f"{config.url}/api/v1", {"Authorization": f"Token token={token}"}), config)


class Zammad:
    """The desk."""

    def __init__(self, api: Api, config: DeskConfig) -> None:
        self._api = api
        self._config = config

    def read_event(self, body: Any) -> Event:
        """The default payload of a webhook holds the whole ticket."""
        ticket = body.get("ticket") if isinstance(body, dict) else None
        if not isinstance(ticket, dict) or not str(ticket.get("id", "")).isdigit():
            raise NotUnderstood("expected the default payload, with ticket.id")
        return Event(str(ticket["id"]), str(ticket.get("updated_at") or once()))

    def read_ticket(self, event: Event, *, text: bool = True) -> Ticket:
        """One more call for the text: the articles, of which the first is the customer's."""
        record = self._api.get(f"/tickets/{event.ticket}", expand="true")
        articles = self._api.get(f"/ticket_articles/by_ticket/{event.ticket}") if text else []
        return Ticket(
            id=event.ticket,
            queue=record["group"],
            subject=record.get("title") or "",
            text=next((each["body"] or "" for each in articles if not each["internal"]), ""),
            open=record["state"] in _OPEN,
            solved=record["state"] == _SOLVED,
            taken=record["owner"] not in ("", "-", None),
            noted=any(each["internal"] and NOTE_BEGINS in (each["body"] or "") for each in articles),
            version=record["updated_at"],
        )

    def write(self, ticket: Ticket, *, queue: str | None = None, note: str | None = None) -> None:
        """A group that does not exist is refused by Zammad with 422."""
        change: dict[str, Any] = {}
        if queue is not None:
            change["group"] = queue
        if note is not None:
            article = {"subject": "Routing", "body": note, "content_type": "text/plain"}
            change["article"] = article | {"type": "note", "internal": True}
        self._api.call("PUT", f"/tickets/{ticket.id}", change)

    def changed(self, since: float) -> Iterator[Event]:
        """By Zammad's search, which needs Elasticsearch there."""
        moment = datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return _events(self._search(f"updated_at:[{moment} TO *]"))

    def waiting(self) -> Iterator[Event]:
        """New and open tickets of the entry groups."""
        groups = " OR ".join(f'group.name:"{_escaped(group)}"' for group in self._config.entry)
        return _events(self._search(f"(state.name:new OR state.name:open) AND ({groups})"))

    def latest(self, count: int) -> Iterator[Event]:
        """The newest, newest first."""
        return _events(itertools.islice(self._search("*", "desc"), count))

    def check(self) -> list[str]:
        """Zammad shows its groups to agents; the rights in each are in the user's profile."""
        me = self._api.get("/users/me")
        said = [f"Zammad, as {me.get('login', '?')}"]
        groups = {group["name"]: str(group["id"]) for group in self._api.get("/groups")}
        rights = me.get("group_ids") or {}
        for group in self._config.queues:
            if group not in groups:
                said.append(f"WRONG: there is no group {group!r} that this user may see")
            elif not {"full", "change"} & set(rights.get(groups[group], [])):
                said.append(f"WRONG: this user may not change tickets in {group!r}")
        return said

    def _search(self, query: str, order: str = "asc") -> Iterator[Any]:
        for page in itertools.count(1):
            found = self._api.get(
                "/tickets/search",
                query=query,
                expand="true",
                sort_by="created_at",
                order_by=order,
                per_page=_PAGE,
                page=page,
            )
            yield from found
            if len(found) < _PAGE:
                return


def _events(records: Iterable[Any]) -> Iterator[Event]:
    return (Event(str(each["id"]), str(each["updated_at"])) for each in records)


def _escaped(name: str) -> str:
    """Within quotes of Elasticsearch's query language."""
    return name.replace("\\", "\\\\").replace('"', '\\"')
