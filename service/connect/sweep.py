"""Finds by search what no webhook told of: helpdesk or connector were away, or there are no webhooks."""

from __future__ import annotations

import itertools
import logging
import sqlite3
import threading
from collections.abc import Iterable

from service.connect.desk import Desk, DeskError, Event
from service.connect.events import EventStore
from service.connect.metrics import Metrics

log = logging.getLogger("larkfield.connect")

# Changes become visible to a search a little later, and clocks differ.
OVERLAP_SECONDS = 60.0
_TOGETHER = 200  # events stored in one transaction


class Sweeper:
    """Searches one desk again and again; the first time from now on, later from where it stopped."""

    def __init__(
        self,
        name: str,
        every_seconds: float,
        desk: Desk,
        store: EventStore,
        metrics: Metrics,
        wake: threading.Event,
    ) -> None:
        self.name = name
        self.every_seconds = every_seconds
        self._desk = desk
        self._store = store
        self._metrics = metrics
        self._wake = wake
        self._stopped = threading.Event()

    def run(self) -> None:
        """Search until `stop`."""
        while not self._stopped.is_set():
            try:
                self.step()
                self._store.forget_old()
            except (DeskError, sqlite3.Error) as error:
                self._failed(str(error))
            except Exception as error:  # an answer of another shape than documented
                self._failed(f"unexpected: {type(error).__name__}")
            self._stopped.wait(self.every_seconds)

    def stop(self) -> None:
        """End `run`."""
        self._stopped.set()

    def step(self) -> int:
        """One search; the number of new events."""
        began = self._store.clock()
        since = self._store.swept(self.name)
        if since is None:
            self._store.set_swept(self.name, began)
            return 0
        added = stored(
            self._store, self._metrics, self.name, self._desk.changed(since - OVERLAP_SECONDS), "sweep"
        )
        self._store.set_swept(self.name, began)
        if added:
            self._wake.set()
        return added

    def _failed(self, why: str) -> None:
        self._metrics.sweeps_failed.labels(self.name).inc()
        log.warning("search for changed tickets failed", extra={"desk": self.name, "reason": why})


def stored(
    store: EventStore, metrics: Metrics | None, desk: str, events: Iterable[Event], origin: str
) -> int:
    """Store events as they come; how many were new."""
    added, events = 0, iter(events)
    while some := list(itertools.islice(events, _TOGETHER)):
        new = store.add(desk, some, origin)
        added += new
        if metrics is not None:
            metrics.events.labels(desk, origin, "new").inc(new)
    return added
