"""OTOBO 11 and Znuny 7.2 by their Generic Interface; documented in its operations (TicketGet.pm, …).

Not tried on a real one: the tests hold it to the documented requests. The web service of docs/helpdesks.md
takes each operation as POST, so that the password is in no address. Errors come with the status 200. Nothing
is conditional: the ticket is read again just before the write.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from typing import Any

from service.connect.config import ConfigError, DeskConfig
from service.connect.desk import (
    NOTE_BEGINS,
    Denied,
    DeskError,
    Event,
    Gone,
    NotUnderstood,
    Rejected,
    Ticket,
    once,
)
from service.connect.http import Api

SIGNATURE = "none"
_OPEN, _SOLVED = ("new", "open"), "closed"  # types of states
_TOGETHER, _MOST = 100, 5000


def open_desk(config: DeskConfig, token: str) -> Otobo:
    """With an agent's login, and the password as token; `url` ends with the name of the web service."""
    if not token or not config.user:
        raise ConfigError("user, and token_env or token_file: otobo needs an agent's login and password")
    return Otobo(Api(config.url, {}), config, token)


class Otobo:
    """The desk."""

    def __init__(self, api: Api, config: DeskConfig, password: str) -> None:
        self._api = api
        self._config = config
        self._login = {"UserLogin": config.user, "Password": password}

    def read_event(self, body: Any) -> Event:
        """TicketID is where the invoker puts it: at the top, in Event, or in Ticket."""
        places = [body, *(body.get(name) for name in ("Event", "Ticket"))] if isinstance(body, dict) else []
        for place in places:
            if isinstance(place, dict) and str(place.get("TicketID", "")).isdigit():
                return Event(str(place["TicketID"]), once())
        raise NotUnderstood("expected the data of an invoker, with TicketID")

    def read_ticket(self, event: Event, *, text: bool = True) -> Ticket:
        """One call; a lock says that an agent has it."""
        record = self._tickets([event.ticket], AllArticles=int(text))[0]
        articles = record.get("Article") or []
        return Ticket(
            id=event.ticket,
            queue=record["Queue"],
            subject=record["Title"] or "",
            text=articles[0]["Body"] if articles else "",
            open=record["StateType"] in _OPEN,
            solved=record["StateType"] == _SOLVED,
            taken=record["Lock"] != "unlock",
            noted=any(
                str(each["IsVisibleForCustomer"]) == "0" and NOTE_BEGINS in (each["Body"] or "")
                for each in articles
            ),
            version=record["Changed"],
        )

    def write(self, ticket: Ticket, *, queue: str | None = None, note: str | None = None) -> None:
        """A note is an article that the customer does not see."""
        change: dict[str, Any] = {"TicketID": ticket.id}
        if queue is not None:
            change["Ticket"] = {"Queue": queue}
        if note is not None:
            change["Article"] = {
                "CommunicationChannel": "Internal",
                "IsVisibleForCustomer": 0,
                "SenderType": "agent",
                "Subject": "Routing",
                "Body": note,
                "ContentType": "text/plain; charset=utf-8",
            }
        self._call("TicketUpdate", change)

    def changed(self, since: float) -> Iterator[Event]:
        """By age in minutes, because the Generic Interface reads moments in the system's time zone."""
        minutes = max(1, math.ceil((time.time() - since) / 60))
        return self._events(self._search(TicketLastChangeTimeNewerMinutes=minutes))

    def waiting(self) -> Iterator[Event]:
        """New and open tickets of the entry queues that nobody has locked."""
        found = self._search(Queues=self._config.entry, StateType=list(_OPEN), Locks=["unlock"])
        return self._events(found)

    def latest(self, count: int) -> Iterator[Event]:
        """The newest, newest first: age is the default order."""
        return self._events(self._search(Limit=count, OrderBy="Down"))

    def check(self) -> list[str]:
        """A search in each queue answers nothing, and no error, where it is gone: only writing would tell."""
        count = len(self._search(Limit=1))
        return [
            f"OTOBO or Znuny, as {self._config.user}" + ("" if count else ": sees no ticket"),
            "names of queues and the right rw in them cannot be seen without writing",
        ]

    def _search(self, **conditions: Any) -> list[str]:
        found = self._call("TicketSearch", {"Limit": _MOST, "OrderBy": "Up", "SortBy": "Age", **conditions})
        return [str(number) for number in found.get("TicketID") or []]

    def _events(self, numbers: list[str]) -> Iterator[Event]:
        """A search answers numbers alone; when each ticket changed takes more calls, for many at a time."""
        rest = iter(numbers)
        while some := list(itertools.islice(rest, _TOGETHER)):
            for record in self._tickets(some):
                yield Event(str(record["TicketID"]), str(record["Changed"]))

    def _tickets(self, numbers: list[str], **options: Any) -> Any:
        return self._call("TicketGet", {"TicketID": ",".join(numbers), **options})["Ticket"]

    def _call(self, operation: str, data: dict[str, Any]) -> Any:
        """The answer of an operation; DeskError by the code of its error."""
        answer, _ = self._api.call("POST", f"/{operation}", self._login | data)
        if not isinstance(answer, dict):
            raise DeskError(f"{operation}: the answer is no object; is the url that of the web service?")
        error = answer.get("Error")
        if error is None:
            return answer
        code, said = error.get("ErrorCode", ""), f"{operation}: {error.get('ErrorMessage', 'no message')}"
        kind = code.rpartition(".")[2]
        if kind == "AuthFail":
            raise Denied(said)
        if kind == "AccessDenied":
            # TicketGet says so of a ticket that is deleted; TicketUpdate of a right that is missing.
            raise Gone(said) if operation == "TicketGet" else Denied(said)
        raise Rejected(said)
