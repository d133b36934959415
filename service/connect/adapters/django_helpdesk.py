"""django-helpdesk by its REST API, tried on 2.6.1; documented by its code (views/api.py, webhooks.py).

The API knows queues by number alone, so the configuration says which number is which queue. It knows no time
of change either: a search reads the newest follow-ups, which every new mail, comment and status has. Nothing
is conditional: the ticket is read again just before the write.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from service.connect.config import ConfigError, DeskConfig
from service.connect.desk import NOTE_BEGINS, DeskError, Event, NotUnderstood, Rejected, Ticket, once
from service.connect.http import Api

SIGNATURE = "none"
_OPEN, _SOLVED = (1, 2), (3, 4)  # open and reopened; resolved and closed
_PAGE = 100


def open_desk(config: DeskConfig, token: str) -> DjangoHelpdesk:
    """With the name of a staff user, and the password as token."""
    if not token or not config.user:
        raise ConfigError("user, and token_env or token_file: django-helpdesk needs a staff user's password")
    return DjangoHelpdesk(Api(f"{config.url}/api", {}, (config.user, token)), config)


class DjangoHelpdesk:
    """The desk."""

    def __init__(self, api: Api, config: DeskConfig) -> None:
        self._api = api
        self._config = config
        self._names = {number: name for name, number in config.queue_ids.items()}

    def read_event(self, body: Any) -> Event:
        """The webhook of a follow-up names it; that of a new ticket has the first one in the ticket."""
        ticket = body.get("ticket") if isinstance(body, dict) else None
        if not isinstance(ticket, dict) or not str(ticket.get("id", "")).isdigit():
            raise NotUnderstood("expected the webhook of a new ticket or a follow-up, with ticket.id")
        newest = max((each["id"] for each in ticket.get("followup_set") or []), default=None)
        followup = body.get("followup_id") or newest
        return Event(str(ticket["id"]), f"follow-up {followup}" if followup else once())

    def read_ticket(self, event: Event, *, text: bool = True) -> Ticket:
        """One call, which has the follow-ups as well. A ticket on hold is in a person's hands."""
        record = self._api.get(f"/tickets/{event.ticket}/")
        queue = record["queue"]
        return Ticket(
            id=event.ticket,
            queue=self._names.get(queue, f"queue {queue}"),
            subject=record["title"] or "",
            text=record["description"] or "",
            open=record["status"] in _OPEN,
            solved=record["status"] in _SOLVED,
            taken=record["assigned_to"] is not None or record["on_hold"],
            noted=any(
                not each["public"] and NOTE_BEGINS in (each["comment"] or "")
                for each in record["followup_set"]
            ),
        )

    def write(self, ticket: Ticket, *, queue: str | None = None, note: str | None = None) -> None:
        """A move leaves no follow-up. A note has no title, because that would become the ticket's title."""
        if note is not None:
            body = {"ticket": int(ticket.id), "comment": note, "public": False}
            self._api.call("POST", "/followups/", body)
        if queue is None:
            return
        number = self._config.queue_ids[queue]
        record, _ = self._api.call("PATCH", f"/tickets/{ticket.id}/", {"queue": number})
        if record["queue"] != number:
            raise Rejected(f"django-helpdesk did not move the ticket to {queue!r} (number {number})")

    def changed(self, since: float) -> Iterator[Event]:
        """The newest follow-ups are on the last page."""
        page: int | str = "last"
        while page:
            found = self._api.get("/followups/", page_size=_PAGE, page=page)
            for each in found["results"]:
                if _seconds(each["date"]) >= since:
                    yield Event(str(each["ticket"]), f"follow-up {each['id']}")
            if not found["results"] or _seconds(found["results"][0]["date"]) < since:
                return
            page = (math.ceil(found["count"] / _PAGE) if page == "last" else int(page)) - 1

    def waiting(self) -> Iterator[Event]:
        """Open and reopened tickets of the entry queues that nobody owns."""
        entry, page = {self._config.queue_ids[name] for name in self._config.entry}, 1
        while True:
            status = ",".join(map(str, _OPEN))
            found = self._api.get("/tickets/", status=status, page_size=_PAGE, page=page)
            for each in found["results"]:
                if each["queue"] in entry and each["assigned_to"] is None:
                    yield Event(str(each["id"]), "waiting")
            if not found["next"]:
                return
            page += 1

    def latest(self, count: int) -> Iterator[Event]:
        """Tickets are in the order of their numbers, so the newest are on the last two pages."""
        found = self._api.get("/tickets/", page_size=count, page="last")
        records = found["results"]
        if found["previous"]:
            before = math.ceil(found["count"] / count) - 1
            records = self._api.get("/tickets/", page_size=count, page=before)["results"] + records
        return (Event(str(each["id"]), "latest") for each in records[::-1][:count])

    def check(self) -> list[str]:
        """Whoever may read tickets by this API may also change them."""
        count = self._api.get("/tickets/", page_size=1)["count"]
        numbers = ", ".join(f"{name} = {number}" for name, number in self._config.queue_ids.items())
        return [
            f"django-helpdesk, {count} tickets, as {self._config.user}",
            f"the API does not list queues: compare {numbers} with the addresses in the site's admin",
        ]


def _seconds(moment: str) -> float:
    """Seconds since 1970. DeskError if the moment has no time zone."""
    when = datetime.fromisoformat(moment)
    if when.tzinfo is None:
        raise DeskError("its times have no time zone: set USE_TZ = True in the site's settings")
    return when.timestamp()
