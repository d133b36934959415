"""Which connections and tickets a worker accepts: each takes one permit when it comes and gives it back once.

A permit holds places of several kinds: every ticket one among the tickets, a long text one among the long
texts, an explanation one among the explanations. All are taken together before any work is done, or none.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from time import perf_counter
from typing import NoReturn

from service.api.problems import unavailable
from service.api.schema import RouteRequest
from service.observe.metrics import Metrics
from service.settings import Settings

log = logging.getLogger("larkfield.admission")

# Characters beyond which a text is cleaned and tokenized in a thread: that takes milliseconds.
LONG_TEXT = 8_192
# Open files that are no connections: libraries, the log, the metrics, databases, and refused connections.
_OTHER_FILES = 256
_MOST_FEEDBACK = 64
# Reason in the metrics, and what the client is told.
_FULL = {
    "queue": "Too many tickets are waiting.",
    "long_texts": "Too many long texts are waiting.",
    "explanations": "Too many explanations are waiting.",
    "batch_explanations": "Too many explanations are waiting.",
    "connections": "Too many connections are open.",
    "feedback": "Too many wait for the feedback database.",
    "bytes": "The requests in flight are too large together.",
}
_REASONS = {"connections": "connections", "batch_explanations": "explanations_full"}


class Permit:
    """Places that were taken; a context manager that gives them back.

    Work in a thread may outlast its deadline. `hold` keeps a permit's places until that work ends.
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
        """One more `release` is needed."""
        self._holders += 1

    def release(self) -> None:
        """Give the places back, if nobody else holds them."""
        self._holders -= 1
        if self._holders == 0:
            for kind in self._kinds:
                self._taken[kind] -= 1


class Admission:
    """Counts the places of one worker; all methods are called on the event loop's thread."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._retry_after_seconds = settings.retry_after_seconds
        self._metrics = metrics
        self.limits = {
            "queue": settings.max_queue,
            "long_texts": settings.max_queue,
            "explanations": settings.max_explanations,
            # Of these, batches and streams take one at a time and leave the others to single tickets.
            "batch_explanations": 1,
            "connections": most_connections(settings.max_connections),
            "bytes": settings.max_bytes_in_flight,
            "feedback": _MOST_FEEDBACK,
        }
        self.taken = dict.fromkeys(self.limits, 0)

    def connection(self) -> Permit:
        """A place for a connection; Problem 503 when too many are open."""
        return self._take(["connections"])

    def ticket(self, ticket: RouteRequest) -> Permit:
        """The places that a single ticket needs; Problem 503 when one is lacking."""
        return self._take(_kinds(ticket))

    async def batch_ticket(self, ticket: RouteRequest, patience_seconds: float) -> Permit:
        """The places of a ticket of a batch, which waits for them that long; then Problem 503."""
        kinds = _kinds(ticket)
        if ticket.explain != "none":
            kinds.append("batch_explanations")
        last, pause = perf_counter() + patience_seconds, 0.005
        while self._full(kinds) and perf_counter() < last:
            await asyncio.sleep(pause)
            pause = min(0.1, pause * 2)
        return self._take(kinds)

    def take_bytes(self, number: int) -> None:
        """Count bytes of a request's body; Problem 503 when all bodies together are too large."""
        if self.taken["bytes"] + number > self.limits["bytes"]:
            self._refuse("bytes")
        self.taken["bytes"] += number

    async def wait_for_bytes(self, number: int) -> None:
        """The same for a line of a stream, which waits until the others are answered."""
        while self.taken["bytes"] + number > self.limits["bytes"]:
            await asyncio.sleep(0.01)
        self.taken["bytes"] += number

    def release_bytes(self, number: int) -> None:
        """Give back what was counted, once the request is answered."""
        self.taken["bytes"] -= number

    def feedback(self) -> Permit:
        """A place for feedback that is written to the database; Problem 503 when too many wait for it."""
        return self._take(["feedback"])

    def _full(self, kinds: list[str]) -> str | None:
        """The first kind that has no place left."""
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
    """Connections that this process can hold: each is an open file, of which the system limits the number."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY or wanted <= files - _OTHER_FILES:
        return wanted
    possible = max(1, files - _OTHER_FILES)
    log.warning(
        "fewer connections than LARKFIELD_MAX_CONNECTIONS: the limit of open files is low",
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
