"""What the connector asks of a helpdesk, and what can go wrong there.

An adapter is one file of `adapters` with one class. Its three main methods are `read_event`, `read_ticket`
(which also reads the solution) and `write`; the searches find tickets that no webhook told of.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

# Every note begins with this, by which a note of ours is found again.
NOTE_BEGINS = "Larkfield router:"


class DeskError(Exception):
    """Something at the helpdesk went wrong; the message is for the operator. Another try may help."""

    reason = "desk_error"


class DeskAway(DeskError):
    """The helpdesk does not answer, is busy, or answers what is no JSON; `retry_after_seconds` if it said."""

    reason = "desk_away"

    def __init__(self, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class Denied(DeskError):
    """The helpdesk refuses the credentials, or they lack a right."""

    reason = "denied"


class Conflict(DeskError):
    """Somebody changed the ticket between reading and writing."""

    reason = "conflict"


class Gone(DeskError):
    """There is no such ticket, at least none that these credentials may see."""

    reason = "gone"


class Rejected(DeskError):
    """The helpdesk understood and refused, for example because a queue is gone. Another try cannot help."""

    reason = "rejected"


class NotUnderstood(Exception):
    """A webhook's body names no ticket."""


def once() -> str:
    """A version for a webhook that says neither what nor when: it is looked at each time it comes."""
    return f"came {time.time_ns()}"


@dataclass(frozen=True)
class Event:
    """A ticket that changed. The same `version` again means the same event.

    `content` is kept with the event only where the helpdesk has no API to read the ticket from.
    """

    ticket: str
    version: str
    content: dict[str, Any] | None = None


@dataclass(frozen=True)
class Ticket:
    """A ticket as it is now."""

    id: str
    queue: str  # its name, or group, or team
    subject: str = ""
    text: str = ""
    open: bool = True  # waits for an answer
    solved: bool = False
    taken: bool = False  # a person owns it
    noted: bool = False  # a note of the router is on it
    version: str = ""  # what changes with every change; a write may depend on it


class Desk(Protocol):
    """One helpdesk. Every method raises DeskError."""

    def read_event(self, body: Any) -> Event | None:
        """The event of a webhook's body; None for one that concerns no ticket's routing. NotUnderstood."""

    def read_ticket(self, event: Event, *, text: bool = True) -> Ticket:
        """The ticket as it is now; without `text` only what decides whether it may be written to."""

    def write(self, ticket: Ticket, *, queue: str | None = None, note: str | None = None) -> None:
        """Move the ticket to a queue or add an internal note, unless it changed since it was read."""

    def changed(self, since: float) -> Iterable[Event]:
        """Tickets changed after `since` (seconds since 1970); the same one twice does no harm."""

    def waiting(self) -> Iterable[Event]:
        """Open tickets in the queues where new ones arrive."""

    def latest(self, count: int) -> Iterable[Event]:
        """The newest tickets."""

    def check(self) -> list[str]:
        """Sentences about what these credentials may do, without changing anything."""
