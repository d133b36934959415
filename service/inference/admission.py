"""Which connections and tickets a worker accepts: each takes one permit when it comes and gives it back once.

A permit holds places of several kinds: every ticket one among the tickets, a long text one among the long
texts, an explanation one among the explanations. All are taken together before any work is done, or none.
"""

from __future__ import annotations

import asyncio
from time import perf_counter

from service.api.problems import unavailable
from service.api.schema import RouteRequest
from service.observe.metrics import Metrics
from service.settings import Settings

# Characters beyond which a text is cleaned and tokenized in a thread: that takes milliseconds.
LONG_TEXT = 8_192
# Reason in the metrics, and what the client is told.
_FULL = {
    "queue": "Too many tickets are waiting.",
    "long_texts": "Too many long texts are waiting.",
    "explanations": "Too many explanations are waiting.",
    "batch_explanations": "Too many explanations are waiting.",
    "connections": "Too many connections are open.",
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
            "connections": settings.max_connections,
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

    def _full(self, kinds: list[str]) -> str | None:
        """The first kind that has no place left."""
        return next((kind for kind in kinds if self.taken[kind] >= self.limits[kind]), None)

    def _take(self, kinds: list[str]) -> Permit:
        full = self._full(kinds)
        if full is not None:
            self._metrics.refused.inc(_REASONS.get(full, f"{full}_full"))
            raise unavailable(_FULL[full], self._retry_after_seconds)
        for kind in kinds:
            self.taken[kind] += 1
        return Permit(self, kinds)


def _kinds(ticket: RouteRequest) -> list[str]:
    kinds = ["queue"]
    if len(ticket.text) > LONG_TEXT:
        kinds.append("long_texts")
    if ticket.explain != "none":
        kinds.append("explanations")
    return kinds
