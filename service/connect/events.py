"""The event store: every event is on disk before it is acknowledged, and handled once.

SQLite with a write-ahead log and synchronous=FULL, so an acknowledged event survives kill -9 and, if the disk
honours flushes, a power cut. An event is one row, unique by desk, ticket and version: a webhook that comes
twice is one event. `tickets` keeps what was done with each ticket. No ticket text is kept, except for a desk
without an API to read it from, and there only until the event is handled.
"""

from __future__ import annotations

import fcntl
import json
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import IO, Any, Literal

from service.connect.desk import Event

State = Literal["waiting", "done", "parked"]
KEEP_EVENTS_SECONDS = 30 * 86_400.0
KEEP_TICKETS_SECONDS = 400 * 86_400.0
_TABLES = """
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    desk TEXT NOT NULL, ticket TEXT NOT NULL, version TEXT NOT NULL,
    origin TEXT NOT NULL,            -- webhook, sweep or backfill
    content TEXT,                    -- JSON, only of a desk without an API, until it is handled
    received_at REAL NOT NULL,       -- seconds since 1970
    state TEXT NOT NULL DEFAULT 'waiting',
    tries INTEGER NOT NULL DEFAULT 0,
    due_at REAL NOT NULL,
    outcome TEXT, reason TEXT, handled_at REAL,
    UNIQUE (desk, ticket, version)
);
CREATE INDEX IF NOT EXISTS events_due ON events (desk, state, due_at);
CREATE TABLE IF NOT EXISTS tickets (
    desk TEXT NOT NULL, ticket TEXT NOT NULL,
    outcome TEXT,                    -- what became of routing it; 'writing' while it is written back
    queue TEXT,                      -- where it is moved to
    reported TEXT,                   -- the team that /feedback was told
    changed_at REAL NOT NULL,
    PRIMARY KEY (desk, ticket)
);
CREATE TABLE IF NOT EXISTS sweeps (desk TEXT PRIMARY KEY, since REAL NOT NULL);
"""


class StoreBusy(Exception):
    """Another connector works with this store."""


@dataclass(frozen=True)
class Stored:
    """An event in the store."""

    id: int
    desk: str
    event: Event
    received_at: float
    tries: int
    state: str
    reason: str | None


@dataclass(frozen=True)
class Past:
    """What was done with a ticket before."""

    outcome: str | None = None
    queue: str | None = None
    reported: str | None = None


class EventStore:
    """The events of all desks in one file; threads may share it. sqlite3.Error if the file fails."""

    def __init__(self, path: Path, clock: Callable[[], float] = time) -> None:
        self.path = path
        self.clock = clock
        self._lock = threading.Lock()
        self._owner: IO[bytes] | None = None
        path.parent.mkdir(parents=True, exist_ok=True)
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=10.0)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.executescript(_TABLES)

    def close(self) -> None:
        """Close the file and give up the right to handle its events."""
        with self._lock:
            self._connection.close()
        if self._owner is not None:
            self._owner.close()

    def own(self) -> None:
        """Become the one process that handles events; StoreBusy if another one does."""
        file = self.path.with_name(self.path.name + ".lock").open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise StoreBusy(f"another connector works with {self.path}") from None
        self._owner = file

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._connection.execute(query, values).fetchall()

    def add(self, desk: str, events: Iterable[Event], origin: str) -> int:
        """Store events; those that are there already are left as they are. How many were new."""
        now, added = self.clock(), 0
        with self._transaction() as connection:
            for event in events:
                content = None if event.content is None else json.dumps(event.content)
                row = (desk, event.ticket, event.version, origin, content, now, now)
                added += connection.execute(
                    "INSERT OR IGNORE INTO events "
                    "(desk, ticket, version, origin, content, received_at, due_at) VALUES (?,?,?,?,?,?,?)",
                    row,
                ).rowcount
        return added

    def next(self, desk: str) -> Stored | None:
        """The event that is due longest, if there is one."""
        rows = self._rows(
            f"{_SELECT} WHERE desk = ? AND state = 'waiting' AND due_at <= ? ORDER BY due_at, id LIMIT 1",
            desk,
            self.clock(),
        )
        return _stored(rows[0]) if rows else None

    def postpone(self, stored: Stored, seconds: float, reason: str) -> None:
        """Try an event again after some time."""
        with self._transaction() as connection:
            connection.execute(
                "UPDATE events SET tries = tries + 1, due_at = ?, reason = ? WHERE id = ?",
                (self.clock() + seconds, reason, stored.id),
            )

    def park(self, stored: Stored, reason: str) -> None:
        """Give an event up, with the reason, until a person replays it."""
        with self._transaction() as connection:
            connection.execute(
                "UPDATE events SET state = 'parked', tries = tries + 1, reason = ?, handled_at = ? "
                "WHERE id = ?",
                (reason, self.clock(), stored.id),
            )

    def begin_writing(self, stored: Stored, queue: str | None) -> None:
        """Store what is about to be written, so that after a crash it is known whose change it was."""
        self._set_ticket(stored, outcome="writing", queue=queue)

    def finish(self, stored: Stored, result: str, /, **ticket: str | None) -> None:
        """An event is handled; `ticket` names what to remember of its ticket (outcome, queue, reported)."""
        now = self.clock()
        with self._transaction() as connection:
            connection.execute(
                "UPDATE events SET state = 'done', content = NULL, outcome = ?, reason = NULL, "
                "tries = tries + 1, handled_at = ? WHERE id = ?",
                (result, now, stored.id),
            )
            if ticket:
                _upsert(connection, stored, now, ticket)

    def _set_ticket(self, stored: Stored, **ticket: str | None) -> None:
        with self._transaction() as connection:
            _upsert(connection, stored, self.clock(), ticket)

    def past(self, stored: Stored) -> Past:
        """What was done with the event's ticket before."""
        rows = self._rows(
            "SELECT outcome, queue, reported FROM tickets WHERE desk = ? AND ticket = ?",
            stored.desk,
            stored.event.ticket,
        )
        return Past(*rows[0]) if rows else Past()

    def replay(self, desk: str | None = None) -> int:
        """Let parked events wait again, with a day ahead of them; how many."""
        now = self.clock()
        with self._transaction() as connection:
            return connection.execute(
                "UPDATE events SET state = 'waiting', tries = 0, received_at = ?, due_at = ? "
                "WHERE state = 'parked' AND (? IS NULL OR desk = ?)",
                (now, now, desk, desk),
            ).rowcount

    def counts(self) -> dict[tuple[str, str], int]:
        """Events by desk and state."""
        rows = self._rows("SELECT desk, state, count(*) FROM events GROUP BY desk, state")
        return {(desk, state): count for desk, state, count in rows}

    def seconds_behind(self, desk: str) -> float:
        """The age of the oldest event that waits; 0 if none does."""
        query = "SELECT min(received_at) FROM events WHERE desk = ? AND state = 'waiting'"
        oldest = self._rows(query, desk)[0][0]
        return 0.0 if oldest is None else max(0.0, self.clock() - oldest)

    def listed(self, state: State, limit: int = 20) -> list[Stored]:
        """The newest events in a state."""
        query = f"{_SELECT} WHERE state = ? ORDER BY id DESC LIMIT ?"
        return [_stored(row) for row in self._rows(query, state, limit)]

    def swept(self, desk: str) -> float | None:
        """Up to when a desk's changes are known; None before the first sweep."""
        rows = self._rows("SELECT since FROM sweeps WHERE desk = ?", desk)
        return rows[0][0] if rows else None

    def set_swept(self, desk: str, since: float) -> None:
        """Remember up to when a desk's changes are known."""
        with self._transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO sweeps VALUES (?, ?)", (desk, since))

    def forget_old(self) -> None:
        """Delete what was handled long ago."""
        now = self.clock()
        with self._transaction() as connection:
            connection.execute(
                "DELETE FROM events WHERE state = 'done' AND handled_at < ?", (now - KEEP_EVENTS_SECONDS,)
            )
            connection.execute("DELETE FROM tickets WHERE changed_at < ?", (now - KEEP_TICKETS_SECONDS,))


_SELECT = "SELECT id, desk, ticket, version, content, received_at, tries, state, reason FROM events"


def _stored(row: tuple[Any, ...]) -> Stored:
    number, desk, ticket, version, content, received_at, tries, state, reason = row
    event = Event(ticket, version, None if content is None else json.loads(content))
    return Stored(number, desk, event, received_at, tries, state, reason)


def _upsert(
    connection: sqlite3.Connection, stored: Stored, now: float, ticket: dict[str, str | None]
) -> None:
    names = list(ticket)  # of the code: outcome, queue, reported
    connection.execute(
        f"INSERT INTO tickets (desk, ticket, changed_at, {', '.join(names)}) "
        f"VALUES (?, ?, ?{', ?' * len(names)}) ON CONFLICT (desk, ticket) DO UPDATE SET "
        + ", ".join(f"{name} = excluded.{name}" for name in ["changed_at", *names]),
        (stored.desk, stored.event.ticket, now, *ticket.values()),
    )
