"""Freshdesk by its API v2; documented at developers.freshdesk.com/api (2026).

Not tried on a real Freshdesk: the tests hold it to the documented requests. Freshdesk does not sign webhooks
and has no conditional update: the rule sends the secret, and the ticket is read again just before the write.
"""

from __future__ import annotations

import html
import itertools
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from service.connect.adapters.groups import Groups
from service.connect.config import ConfigError, DeskConfig
from service.connect.desk import NOTE_BEGINS, Event, Gone, NotUnderstood, Ticket, once
from service.connect.http import Api

SIGNATURE = "none"
_OPEN, _SOLVED = 2, (4, 5)  # open; resolved and closed
_PAGE = 100
_LAST_PAGE = 300  # Freshdesk answers no page beyond it


def open_desk(config: DeskConfig, token: str) -> Freshdesk:
    """The token is an agent's API key; Freshdesk takes it as a user's name, with any password."""
    if not token:
        raise ConfigError("token_env or token_file: freshdesk needs an agent's API key")
    return Freshdesk(Api(f"{config.url}/api/v2", {}, (token, "X")), config)


class Freshdesk:
    """The desk; groups are its queues, "" is no group."""

    def __init__(self, api: Api, config: DeskConfig) -> None:
        self._api = api
        self._config = config
        self._groups = Groups(lambda: {each["name"]: each["id"] for each in self._pages("/groups")})

    def read_event(self, body: Any) -> Event:
        """The rule's own JSON, or the simple form, where Freshdesk puts it into `freshdesk_webhook`."""
        if isinstance(body, dict):
            body = body.get("freshdesk_webhook", body)
        ticket = body.get("ticket_id") if isinstance(body, dict) else None
        if not str(ticket or "").isdigit():
            raise NotUnderstood('expected {"ticket_id": NUMBER}')
        return Event(str(ticket), once())

    def read_ticket(self, event: Event, *, text: bool = True) -> Ticket:
        """One more call for the notes. Gone for one in the bin or among the spam."""
        record = self._api.get(f"/tickets/{event.ticket}")
        if record.get("deleted") or record.get("spam"):
            raise Gone(f"ticket {event.ticket} is deleted or marked as spam")
        notes = self._pages(f"/tickets/{event.ticket}/conversations") if text else []
        return Ticket(
            id=event.ticket,
            queue=self._groups.name(record["group_id"]),
            subject=record["subject"] or "",
            text=record["description"] or record.get("description_text") or "",
            open=record["status"] == _OPEN,
            solved=record["status"] in _SOLVED,
            taken=record["responder_id"] is not None,
            noted=any(each["private"] and NOTE_BEGINS in (each["body_text"] or "") for each in notes),
            version=record["updated_at"],
        )

    def write(self, ticket: Ticket, *, queue: str | None = None, note: str | None = None) -> None:
        """Notes are HTML there."""
        if note is not None:
            body = html.escape(note, quote=False).replace("\n", "<br>")
            self._api.call("POST", f"/tickets/{ticket.id}/notes", {"body": body, "private": True})
        if queue is not None:
            self._api.call("PUT", f"/tickets/{ticket.id}", {"group_id": self._groups.number(queue)})

    def changed(self, since: float) -> Iterator[Event]:
        """Oldest change first."""
        moment = datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return _events(self._tickets(updated_since=moment, order_type="asc"))

    def waiting(self) -> Iterator[Event]:
        """Open tickets of the entry groups without an agent, of the last 30 days, which Freshdesk lists."""
        for each in self._tickets(order_type="asc"):
            free = each["status"] == _OPEN and each["responder_id"] is None
            if free and self._groups.name(each["group_id"]) in self._config.entry:
                yield Event(str(each["id"]), str(each["updated_at"]))

    def latest(self, count: int) -> Iterator[Event]:
        """The newest, newest first."""
        found = self._api.get("/tickets", order_by="created_at", order_type="desc", per_page=count)
        return _events(found)

    def check(self) -> list[str]:
        """An agent's scope says which tickets are seen."""
        me = self._api.get("/agents/me")
        said = [f"Freshdesk, as {(me.get('contact') or {}).get('email', '?')}"]
        if me.get("ticket_scope") != 1:
            said.append("WRONG: this agent sees only some tickets; the ticket scope must be global")
        return said + self._groups.missing(self._config.queues)

    def _tickets(self, **parameters: Any) -> Iterator[Any]:
        return self._pages("/tickets", order_by="updated_at", **parameters)

    def _pages(self, path: str, **parameters: Any) -> Iterator[Any]:
        for page in itertools.count(1):
            found = self._api.get(path, **parameters, per_page=_PAGE, page=page)
            yield from found
            if len(found) < _PAGE or page == _LAST_PAGE:
                return


def _events(records: Iterable[Any]) -> Iterator[Event]:
    return (Event(str(each["id"]), str(each["updated_at"])) for each in records)
