"""Any desk that sends and takes JSON, by configuration alone: dotted paths in, templates out.

With `read` the ticket is read from the desk before anything is written, so a person who was faster wins.
Without it the webhook's body is all that is known: it is kept until the event is handled, and a move is not
conditional.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from service.connect.config import DeskConfig, Write
from service.connect.desk import NOTE_BEGINS, DeskError, Event, NotUnderstood, Rejected, Ticket, once
from service.connect.http import Api

SIGNATURE = "sha256"
_MOST_PAGES = 1000
_WEEK_SECONDS = 7 * 86_400.0


def open_desk(config: DeskConfig, token: str) -> GenericDesk:
    """`{token}` in the headers is filled in; without headers the token is sent as a bearer token."""
    assert config.generic is not None  # checked with the configuration
    headers = {name: value.replace("{token}", token) for name, value in config.generic.headers.items()}
    if token and not headers:
        headers = {"Authorization": f"Bearer {token}"}
    return GenericDesk(Api(config.url, headers), config)


class GenericDesk:
    """The desk."""

    def __init__(self, api: Api, config: DeskConfig) -> None:
        assert config.generic is not None
        self._api = api
        self._config = config
        self._paths = config.generic
        self._search = config.generic.search

    def read_event(self, body: Any) -> Event:
        """The ticket's id; without a path to a version, the digest of the body tells events apart."""
        ticket = at(body, self._paths.ticket)
        if not isinstance(ticket, (str, int)) or isinstance(ticket, bool) or ticket == "":
            raise NotUnderstood(f"there is no ticket id at {self._paths.ticket!r}")
        if self._paths.version is not None:
            version = str(at(body, self._paths.version) or once())
        else:
            version = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:32]
        return Event(str(ticket), version, None if self._paths.read else body)

    def read_ticket(self, event: Event, *, text: bool = True) -> Ticket:
        """From the desk if `read` is given, otherwise from the webhook's body."""
        paths = self._paths
        record: Any = event.content
        if paths.read is not None:
            record = self._api.get(filled(paths.read, ticket=quote(event.ticket, safe="")))
            if paths.read_root is not None:
                record = at(record, paths.read_root)
        if not isinstance(record, dict):
            raise DeskError("the answer holds no ticket at read_root")
        status = _text(record, paths.status) if paths.status else None
        notes = at(record, paths.note_text) if paths.note_text else []
        return Ticket(
            id=event.ticket,
            queue=_text(record, paths.queue) if paths.queue else self._config.entry[0],
            subject=_text(record, paths.subject),
            text=_text(record, paths.text),
            open=status is None or status in paths.open,
            solved=status is not None and status in paths.solved,
            taken=bool(_text(record, paths.owner)),
            noted=NOTE_BEGINS in json.dumps(notes),
        )

    def write(self, ticket: Ticket, *, queue: str | None = None, note: str | None = None) -> None:
        """Send the template `move` or `note`."""
        self._send("move", self._paths.move, queue, ticket=ticket.id, queue=queue or "")
        self._send("note", self._paths.note, note, ticket=ticket.id, note=note or "")

    def _send(self, name: str, template: Write | None, value: str | None, **fields: str) -> None:
        if value is None:
            return
        if template is None:
            raise Rejected(f"generic.{name} is not configured")
        path = filled(template.path, **{key: quote(text, safe="") for key, text in fields.items()})
        self._api.call(template.method, path, _filled_all(template.body, fields))

    def changed(self, since: float) -> Iterator[Event]:
        """By the configured search; nothing without one."""
        if self._search is None:
            return iter(())
        moment = datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return self._found(filled(self._search.changed, since=quote(moment, safe=""), seconds=f"{since:.0f}"))

    def waiting(self) -> Iterator[Event]:
        """The search for each entry queue; nothing without one."""
        if self._search is None or self._search.waiting is None:
            return
        for queue in self._config.entry:
            yield from self._found(filled(self._search.waiting, queue=quote(queue, safe="")))

    def latest(self, count: int) -> Iterator[Event]:
        """Tickets that changed in the last week, as the search has them."""
        return itertools.islice(self.changed(time.time() - _WEEK_SECONDS), count)

    def check(self) -> list[str]:
        """What the configuration lacks; the desk itself is asked for the latest tickets."""
        needed = ("note",) if self._config.mode == "notes" else ("move", "note")
        missing = [name for name in needed if getattr(self._paths, name) is None]
        said = [f"WRONG: generic.{name} is missing, so it cannot be written" for name in missing]
        if self._search is None:
            return [*said, "no generic.search: what a lost webhook told of is not found again"]
        return said

    def _found(self, address: str) -> Iterator[Event]:
        search = self._search
        assert search is not None
        for _ in range(_MOST_PAGES):
            answer = self._api.get(address)
            records = at(answer, search.root) if search.root else answer
            if not isinstance(records, list):
                raise DeskError(f"the search's answer holds no list at root ({search.root or 'the top'})")
            for record in records:
                ticket = _text(record, search.ticket)
                if not ticket:
                    raise DeskError(f"a record of the search holds no ticket id at {search.ticket!r}")
                yield Event(ticket, _text(record, search.version) or once())
            following = _text(answer, search.next)
            if not following:
                return
            address = following.removeprefix(self._api.url)
            if not address.startswith("/"):  # the token is for this desk alone
                raise DeskError(f"the next page is not at {self._api.url}")
        raise DeskError(f"the search has more than {_MOST_PAGES} pages; is next right?")


def at(document: Any, path: str) -> Any:
    """The value at a dotted path, None if there is none: "ticket.tags.0" is the first tag."""
    for part in path.split("."):
        if isinstance(document, dict):
            document = document.get(part)
        elif isinstance(document, list) and part.isdigit() and int(part) < len(document):
            document = document[int(part)]
        else:
            return None
    return document


def filled(template: str, **fields: str) -> str:
    """The template with each {name} replaced; other braces stay."""
    for name, value in fields.items():
        template = template.replace("{" + name + "}", value)
    return template


def _filled_all(value: Any, fields: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled_all(each, fields) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled_all(each, fields) for each in value]
    return filled(value, **fields) if isinstance(value, str) else value


def _text(record: Any, path: str | None) -> str:
    value = at(record, path) if path else None
    return "" if value is None or isinstance(value, (dict, list)) else str(value)
