"""Admission control: limits how many connections and tickets a worker accepts.

Each ticket acquires one permit before any work is done and releases it at the end. A permit counts against
several limits: every ticket against the queue, a long text also against the long texts, an explanation also
against the explanations. If one limit is reached, nothing is acquired.
"""

from __future__ import annotations

import asyncio
import logging
import math
import resource
from time import perf_counter
from typing import NoReturn

from service.api.problems import unavailable
from service.api.schema import RouteRequest
from service.observe.metrics import Metrics
from service.settings import Settings

log = logging.getLogger("larkfield.admission")

# A text of more characters takes milliseconds to clean and tokenize, so that is done in a thread.
LONG_TEXT = 8_192
# Open files besides connections: libraries, log, metrics, databases, refused connections.
_OTHER_FILES = 256
_MOST_FEEDBACK = 64
# Message to the client for each limit.
_FULL = {
    "queue": "Too many tickets are waiting.",
    "long_texts": "Too many long texts are waiting.",
    "explanations": "Too many explanations are waiting.",
    "batch_explanations": "Too many explanations are waiting.",
    "connections": "Too many connections are open.",
    "feedback": "Too many requests wait for the feedback database.",
    "bytes": "The bodies of all requests in flight are too large together.",
}
_REASONS = {"connections": "connections", "batch_explanations": "explanations_full"}


class Permit:
    """Admission of one ticket or connection; a context manager that releases it.

    Work in a thread may outlast its deadline. `hold` keeps the permit until that work ends.
    """

    def __init__(self, admission: Admission, kinds: list[str]) -> None:
        self._taken = admission.taken
        self._kinds = kinds
        self._holders = 1

    def __enter__(self) -> Permit:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def hold(self) -> None:
        """Require one more `release`."""
        self._holders += 1

    def release(self) -> None:
        """Release once; the last release frees the capacity."""
        self._holders -= 1
        if self._holders == 0:
            for kind in self._kinds:
                self._taken[kind] -= 1


class Admission:
    """The limits of one worker; all methods are called on the event loop's thread."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._retry_after_seconds = settings.retry_after_seconds
        self._metrics = metrics
        self.limits = {
            "queue": settings.max_queue,
            "long_texts": settings.max_queue,
            "explanations": settings.max_explanations,
            # Batches and streams may use one of the explanations; the others are for single tickets.
            "batch_explanations": 1,
            "connections": most_connections(settings.max_connections),
            "bytes": settings.max_bytes_in_flight,
            "feedback": _MOST_FEEDBACK,
        }
        self.taken = dict.fromkeys(self.limits, 0)

    def connection(self) -> Permit:
        """A permit for a connection; Problem 503 if too many are open."""
        return self._take(["connections"])

    def ticket(self, ticket: RouteRequest) -> Permit:
        """A permit for a single ticket; Problem 503 if a limit is reached."""
        return self._take(_kinds(ticket))

    async def batch_ticket(self, ticket: RouteRequest, patience_seconds: float) -> Permit:
        """A permit for a ticket of a batch; Problem 503 if none is free after `patience_seconds`."""
        kinds = _kinds(ticket)
        if ticket.explain != "none":
            kinds.append("batch_explanations")
        last, pause = perf_counter() + patience_seconds, 0.005
        while self._full(kinds) and perf_counter() < last:
            await asyncio.sleep(pause)
            pause = min(0.1, pause * 2)
        return self._take(kinds)

    def take_bytes(self, number: int) -> None:
        """Count bytes of a request's body; Problem 503 if all bodies together are too large."""
        if self.taken["bytes"] + number > self.limits["bytes"]:
            self._refuse("bytes")
        self.taken["bytes"] += number

    async def wait_for_bytes(self, number: int, patience_seconds: float = math.inf) -> None:
        """Count bytes of a stream; wait for capacity, and raise Problem 503 after `patience_seconds`."""
        last = perf_counter() + patience_seconds
        while self.taken["bytes"] + number > self.limits["bytes"] and perf_counter() < last:
            await asyncio.sleep(0.01)
        self.take_bytes(number)

    def release_bytes(self, number: int) -> None:
        """Release counted bytes after the answer."""
        self.taken["bytes"] -= number

    def feedback(self) -> Permit:
        """A permit for feedback to be written to the database; Problem 503 if too many requests wait."""
        return self._take(["feedback"])

    def _full(self, kinds: list[str]) -> str | None:
        """The first limit that is reached, if any."""
        return next((kind for kind in kinds if self.taken[kind] >= self.limits[kind]), None)

    def _take(self, kinds: list[str]) -> Permit:
        full = self._full(kinds)
        if full is not None:
            self._refuse(full)
        for kind in kinds:
            self.taken[kind] += 1
        return Permit(self, kinds)

    def _refuse(self, kind: str) -> NoReturn:
        self._metrics.refused.inc(_REASONS.get(kind, f"{kind}_full"))
        raise unavailable(_FULL[kind], self._retry_after_seconds)


def most_connections(wanted: int) -> int:
    """The wanted number of connections, or fewer if the system's limit of open files is lower."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY or wanted <= files - _OTHER_FILES:
        return wanted
    possible = max(1, files - _OTHER_FILES)
    log.warning(
        "the limit of open files is too low for LARKFIELD_MAX_CONNECTIONS; fewer connections are accepted",
        extra={"connections": possible, "open_files": files},
    )
    return possible


def _kinds(ticket: RouteRequest) -> list[str]:
    kinds = ["queue"]
    if len(ticket.text) > LONG_TEXT:
        kinds.append("long_texts")
    if ticket.explain != "none":
        kinds.append("explanations")
    return kinds
