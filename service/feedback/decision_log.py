"""Writes each decision to the database in the background, so that feedback can be compared with it.

`record` appends to a queue in memory. A thread writes the queue to the database four times a second, so no
answer waits for the disk. After kill -9, the decisions of the last quarter of a second are missing: feedback
on them is kept without a prediction. SQLAlchemy is imported when a database is first opened.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from service.feedback.rows import Decided, RowsRefused, StoreUnavailable

if TYPE_CHECKING:
    from service.feedback.store import Store

log = logging.getLogger("larkfield.decisions")

LONGEST_WAIT_SECONDS = 2.0
LARGEST_WRITE = 1000  # rows in one transaction, which costs one flush of the disk


def opener(url: str) -> Callable[[], Store]:
    """A function that opens the database on its first call and returns the same Store on each call."""
    lock = threading.Lock()
    opened: list[Store] = []

    def store() -> Store:
        with lock:
            if not opened:
                from service.feedback.store import Store

                opened.append(Store(url))
            return opened[0]

    return store


class DecisionLog:
    """A bounded queue of decisions and the thread that writes them to the database.

    If the database is slow or unreachable, up to `most_waiting` decisions wait. Further ones are dropped and
    counted. Routing goes on.
    """

    def __init__(
        self,
        store: Callable[[], Store],
        *,
        most_waiting: int = 20_000,
        write_every: float = 0.25,
        on_dropped: Callable[[int], None] = lambda count: None,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self.store = store
        self.waiting: deque[Decided] = deque()
        self.most_waiting = most_waiting
        self.write_every = write_every
        self.on_dropped = on_dropped
        self.on_failure = on_failure
        self._writing = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="decision-log", daemon=True)

    def record(self, decided: Decided) -> None:
        """Queue one decision; never blocks."""
        if len(self.waiting) >= self.most_waiting:
            self.on_dropped(1)
            return
        self.waiting.append(decided)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write the queued decisions and end the thread; give up after 5 s if the database is unreachable."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def flush(self) -> None:
        """Write all queued decisions now, from any thread; on StoreUnavailable the rest stays queued."""
        store = self.store()
        if not self._writing.acquire(timeout=LONGEST_WAIT_SECONDS):
            raise StoreUnavailable("too many requests wait for the database")
        lost = 0
        try:
            while batch := [self.waiting.popleft() for _ in range(min(LARGEST_WRITE, len(self.waiting)))]:
                try:
                    store.add_decisions(batch)
                except StoreUnavailable:
                    self.waiting.extendleft(reversed(batch))
                    raise
                except RowsRefused as error:
                    self.on_dropped(len(batch))
                    log.error("decisions were dropped: %s", error)
                except BaseException:
                    lost = len(batch)
                    raise
        finally:
            if lost:
                self.on_dropped(lost)
            self._writing.release()

    def _run(self) -> None:
        failing = False
        while True:
            stopping = self._stop.wait(2.0 if failing else self.write_every)
            try:
                if self.waiting:
                    self.flush()
                if failing:
                    log.warning("the database works again; decisions are written")
                failing = False
            except StoreUnavailable as error:
                self.on_failure()
                if not failing:
                    log.error("decisions cannot be written: %s; routing goes on", error)
                failing = True
            except Exception:  # the thread must go on: the next batch may succeed
                log.exception("decisions were lost")
            if stopping:
                if self.waiting:
                    self.on_dropped(len(self.waiting))
                return
