"""Remembering decisions behind the answers, so that later feedback knows what was predicted.

`record` appends to a list in memory; a thread writes it to the database four times a second. Kill -9 loses at
most that quarter of a second of decisions (feedback on them is kept, its prediction is then unknown): the
price of never slowing an answer. This file does without SQLAlchemy, which is imported when first needed.
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
LARGEST_WRITE = 1000  # rows in one transaction: a slow disk's flush is shared by as many


def opener(url: str) -> Callable[[], Store]:
    """A function that opens the database when it is first called, and gives the same one ever after."""
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
    """Remembers decisions behind the answers: `record` appends to a list in memory, a thread writes it out.

    Bounded: when the database cannot keep up or is away, up to `most_waiting` decisions wait, further ones
    are counted as dropped, and routing never notices. At most `write_every` seconds are lost on kill -9.
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
        """Remember one decision; costs well under a microsecond and never waits."""
        if len(self.waiting) >= self.most_waiting:
            self.on_dropped(1)
            return
        self.waiting.append(decided)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Write what waits and end the thread; gives up after a few seconds when the database is away."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def flush(self) -> None:
        """Write everything that waits, now; any thread may. StoreUnavailable: the rest stays in line."""
        store = self.store()
        if not self._writing.acquire(timeout=LONGEST_WAIT_SECONDS):
            raise StoreUnavailable("too many wait for the database")
        try:
            while batch := [self.waiting.popleft() for _ in range(min(LARGEST_WRITE, len(self.waiting)))]:
                try:
                    store.remember(batch)
                except StoreUnavailable:
                    self.waiting.extendleft(reversed(batch))
                    raise
                except RowsRefused as error:
                    self.on_dropped(len(batch))
                    log.error("decisions were dropped: %s", error)
        finally:
            self._writing.release()

    def _run(self) -> None:
        failing = False
        while True:
            stopping = self._stop.wait(2.0 if failing else self.write_every)
            try:
                if self.waiting:
                    self.flush()
                if failing:
                    log.warning("decisions are written again")
                failing = False
            except StoreUnavailable as error:
                self.on_failure()
                if not failing:
                    log.error("decisions cannot be written: %s; routing goes on", error)
                failing = True
            except Exception:  # the thread must live: whatever it was, the next batch may pass
                log.exception("decisions were lost")
            if stopping:
                if self.waiting:
                    self.on_dropped(len(self.waiting))
                return
