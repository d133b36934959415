"""Request Tracker 5 by REST2, tried on 5.0.3; documented at docs.bestpractical.com/rt/latest/RT/REST2.html.

A scrip posts {"ticket": 17, "transaction": 71} (docs/helpdesks.md has it). A move carries the ticket's ETag
in If-Match, so RT refuses it if anything happened since. RT answers 200 to a move that it did not make, so
the queue is read again.
"""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Iterator
from typing import Any

from service.connect.config import ConfigError, DeskConfig
from service.connect.desk import DeskError, Event, NotUnderstood, Rejected, Ticket
from service.connect.http import Api

SIGNATURE = "sha256"
_NOTE_SUBJECT = "Larkfield router"
_NOT_OPEN = ("resolved", "rejected", "deleted", "stalled")
_PAGE = 100


def open_desk(config: DeskConfig, token: str) -> RequestTracker:
    """With `user` the token is a password, otherwise it is an auth token of RT."""
    if not token:
        raise ConfigError("token_env or token_file: rt needs an auth token, or a password beside user")
    if config.user:
        api = Api(f"{config.url}/REST/2.0", {}, (config.user, token))
    else:
        api = Api(f"{config.url}/REST/2.0", {"Authorization": f"token {token}"})
    return RequestTracker(api, config)


class RequestTracker:
    """The desk; queue names are read once and again when one is not known."""

    def __init__(self, api: Api, config: DeskConfig) -> None:
        self._api = api
        self._config = config
        self._names: dict[str, str] = {}  # of queues, by id

    def read_event(self, body: Any) -> Event:
        """`transaction` makes the event unique."""
        given = body if isinstance(body, dict) else {}
        ticket, transaction = (str(given.get(name, "")) for name in ("ticket", "transaction"))
        if not ticket.isdigit() or not transaction.isdigit():
            raise NotUnderstood('expected {"ticket": NUMBER, "transaction": NUMBER}')
        return Event(ticket, transaction)

    def read_ticket(self, event: Event, *, text: bool = True) -> Ticket:
        """Two more calls for the text: the list of attachments and the first one of the first mail."""
        record, headers = self._api.call("GET", f"/ticket/{event.ticket}")
        content, noted = self._text(event.ticket) if text else ("", False)
        status = record["Status"]
        return Ticket(
            id=event.ticket,
            queue=self._queue_name(str(record["Queue"]["id"])),
            subject=record.get("Subject") or "",
            text=content,
            open=status not in _NOT_OPEN,
            solved=status == "resolved",
            taken=record["Owner"]["id"] != "Nobody",
            noted=noted,
            version=headers.get("ETag", ""),
        )

    def write(self, ticket: Ticket, *, queue: str | None = None, note: str | None = None) -> None:
        """A move is conditional; a comment is not, because nothing that happened makes it wrong."""
        if note is not None:
            body = {"Subject": _NOTE_SUBJECT, "Content": note, "ContentType": "text/plain"}
            self._api.call("POST", f"/ticket/{ticket.id}/comment", body)
        if queue is None:
            return
        if queue not in self._names.values() and queue not in self._queues().values():
            raise Rejected(f"RT has no queue {queue!r} that this user may see")
        said, _ = self._api.call(
            "PUT", f"/ticket/{ticket.id}", {"Queue": queue}, headers={"If-Match": ticket.version}
        )
        record = self._api.get(f"/ticket/{ticket.id}")
        if self._queue_name(str(record["Queue"]["id"])) != queue:
            raise Rejected(
                f"RT did not move the ticket to {queue!r}: {'; '.join(map(str, said or []))[:200]}"
            )

    def changed(self, since: float) -> Iterator[Event]:
        """By age, because RT reads dates in the time zone of its user."""
        age = max(1, math.ceil(time.time() - since))
        return self._search(f"LastUpdated > '{age} seconds ago'")

    def waiting(self) -> Iterator[Event]:
        """Active tickets of the entry queues that nobody owns."""
        queues = " OR ".join(f"Queue = {_quoted(queue)}" for queue in self._config.entry)
        return self._search(f"({queues}) AND Status = '__Active__' AND Owner = 'Nobody'")

    def latest(self, count: int) -> Iterator[Event]:
        """The highest numbers."""
        found = self._api.get("/tickets", query="id > 0", orderby="id", order="DESC", per_page=count)
        return (Event(str(item["id"]), "latest") for item in found["items"])

    def check(self) -> list[str]:
        """RT offers `create` in a queue, and `comment` on a ticket, to those who have the right."""
        said = [f"RT {self._api.get('/rt').get('Version', '?')}"]
        names = set(self._queues().values())
        wanted = self._config.queues
        for queue in wanted:
            if queue not in names:
                said.append(f"WRONG: there is no queue {queue!r} that this user may see")
        for number, name in self._names.items():
            if name in wanted and not _offers(self._api.get(f"/queue/{number}"), "create"):
                said.append(f"WRONG: no right CreateTicket in {name!r}: tickets cannot be moved there")
        for event in self.latest(1):
            if not _offers(self._api.get(f"/ticket/{event.ticket}"), "comment"):
                said.append(f"WRONG: no right CommentOnTicket on ticket {event.ticket}")
        said.append("ModifyTicket in the entry queues cannot be seen without writing")
        return said

    def _search(self, query: str) -> Iterator[Event]:
        page = 1
        while True:
            found = self._api.get(
                "/tickets", query=query, fields="LastUpdated", orderby="id", per_page=_PAGE, page=page
            )
            for item in found["items"]:
                yield Event(str(item["id"]), str(item["LastUpdated"]))
            if page >= (found.get("pages") or 0):
                return
            page += 1

    def _queues(self) -> dict[str, str]:
        found = self._api.get("/queues/all", fields="Name", per_page=_PAGE)
        self._names = {str(item["id"]): item["Name"] for item in found["items"]}
        return self._names

    def _queue_name(self, number: str) -> str:
        name = self._names.get(number) or self._queues().get(number)
        if name is None:
            raise DeskError(f"this user may not see queue {number} (SeeQueue)")
        return name

    def _text(self, ticket: str) -> tuple[str, bool]:
        """The text of the first mail, plain rather than HTML, and whether a note of ours is there."""
        fields = "Subject,ContentType,Filename,TransactionId"
        found = self._api.get(f"/ticket/{ticket}/attachments", fields=fields, per_page=_PAGE)["items"]
        noted = any(item.get("Subject") == _NOTE_SUBJECT for item in found)
        if not found:
            return "", noted
        first = min(int(item["TransactionId"]) for item in found)
        mine = [item for item in found if int(item["TransactionId"]) == first and not item.get("Filename")]
        for kind in ("text/plain", "text/html"):
            for item in mine:
                if item["ContentType"] == kind:
                    content = self._api.get(f"/attachment/{item['id']}").get("Content") or ""
                    return base64.b64decode(content).decode("utf-8", "replace"), noted
        return "", noted


def _quoted(name: str) -> str:
    """A string of TicketSQL."""
    return "'" + name.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _offers(record: dict[str, Any], what: str) -> bool:
    return any(link.get("ref") == what for link in record.get("_hyperlinks", []))
