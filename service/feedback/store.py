"""The database of decisions and feedback.

SQLite by default, PostgreSQL by URL, one code path through SQLAlchemy. Two tables:

- `decisions`: one row per routed ticket, written in the background (`service.feedback.decision_log`). All
  workers share it, and on PostgreSQL all replicas.
- `feedback`: one row per ticket, written before `POST /feedback` answers 200. SQLite uses a write-ahead log
  with synchronous=FULL, PostgreSQL its default synchronous_commit=on. So acknowledged feedback survives
  kill -9 and, if the disk honours flushes, a power cut.

Ticket text is stored only if a setting allows it, and deleted after the days that another setting gives.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection, Engine, make_url
from sqlalchemy.exc import SQLAlchemyError

from service.feedback.migrations import decisions, feedback, key_of, migrate
from service.feedback.rows import Decided, RowsRefused, StoreUnavailable

log = logging.getLogger("larkfield.store")

LOCK_WAIT_SECONDS = 2.0
_DAY_SECONDS = 86_400.0
_DOUBTFUL_GAP_SECONDS = 30 * _DAY_SECONDS


class Receipt(NamedTuple):
    """Stored feedback with its prediction; `status` is created, unchanged or changed."""

    status: str
    ticket_id: str | None
    request_id: str | None
    actual: str
    predicted: str | None
    decision: str | None
    confidence: float | None
    source: str | None


REASONS = (  # a part of the driver's message -> our message; the first match counts
    ("database is locked", "the database is locked by another process"),
    ("lock timeout", "the database is locked by another process"),
    ("disk is full", "the disk is full"),
    ("no space left", "the disk is full"),
    ("disk i/o error", "the disk cannot be written"),
    ("readonly database", "the database may not be written"),
    ("unable to open", "the database file cannot be opened"),
    ("not a database", "the file is not a database"),
    ("malformed", "the database file is damaged"),
    ("queuepool limit", "too many requests wait for the database"),
    ("connection", "the database server does not answer"),
)


def reason_of(error: BaseException) -> str:
    """Why the database failed, in a message without paths, addresses or stored values."""
    words = str(getattr(error, "orig", None) or error).lower()
    return next((ours for theirs, ours in REASONS if theirs in words), "the database refused the statement")


def storable(text: str | None) -> str | None:
    """The text with NUL, which PostgreSQL rejects, replaced by U+FFFD."""
    return text.replace("\0", "\ufffd") if text and "\0" in text else text


def connect(url: str) -> Engine:
    """Engine for a SQLite or PostgreSQL URL; it does not connect yet.

    ValueError for any other database. `postgresql://` means psycopg (the extra `postgres`).
    """
    parsed = make_url(url)
    dialect = parsed.get_backend_name()
    if dialect == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
        limits = f"-c lock_timeout={LOCK_WAIT_SECONDS:.0f}s -c statement_timeout=10s"
        # A database without an encoding of its own (SQL_ASCII) keeps the bytes that it is sent.
        arguments: dict[str, Any] = {"connect_timeout": 3, "options": limits, "client_encoding": "utf8"}
        try:
            return sa.create_engine(
                parsed, connect_args=arguments, pool_pre_ping=True, pool_timeout=5, hide_parameters=True
            )
        except ModuleNotFoundError:
            raise StoreUnavailable("PostgreSQL needs the extra `postgres` (psycopg)") from None
    if dialect != "sqlite":
        raise ValueError(f"the feedback database must be sqlite or postgresql, not {dialect!r}")
    # One connection: threads get it in order of arrival, which SQLite's own lock does not guarantee.
    engine = sa.create_engine(
        parsed,
        connect_args={"timeout": LOCK_WAIT_SECONDS, "check_same_thread": False},
        poolclass=sa.pool.QueuePool,
        pool_size=1,
        max_overflow=0,
        pool_timeout=2 * LOCK_WAIT_SECONDS,
        hide_parameters=True,
    )

    @sa.event.listens_for(engine, "connect")
    def _durable(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # transactions begin in `_begin`, not in the driver
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")

    @sa.event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A transaction that reads first and then writes fails if another process wrote in between. BEGIN
        # IMMEDIATE takes the write lock first, and waits for it.
        reads = connection.get_execution_options().get("reads_only")
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return engine


# `migrations.key_of` for a row of decisions.
_KEY_OF_DECISION = sa.case(
    (decisions.c.ticket_id.is_(None) | (decisions.c.ticket_id == ""), "r:" + decisions.c.request_id),
    (decisions.c.source.is_(None), "t:" + decisions.c.ticket_id),
    else_="s:" + decisions.c.source + ":" + decisions.c.ticket_id,
)


class Store:
    """Decisions and feedback in one database. Every method raises StoreUnavailable if it fails."""

    def __init__(self, url: str) -> None:
        self.engine = connect(url)
        self.insert: Any = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}[
            self.engine.dialect.name
        ]
        self._ready = False
        self._file: tuple[int, int] | None = None  # device and inode of the SQLite file that is open
        self._opened = time.monotonic()
        self._lock = threading.Lock()

    def close(self) -> None:
        self.engine.dispose()

    def _require_same_file(self) -> None:
        """Reconnect if the SQLite file was deleted or replaced, as a restart would."""
        with self._lock:
            if self._file is not None and self._file_now() != self._file:
                self._disconnect()

    def _file_now(self) -> tuple[int, int] | None:
        if self.engine.dialect.name != "sqlite" or not self.engine.url.database:
            return None
        try:
            status = Path(self.engine.url.database).stat()
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    def _disconnect(self) -> None:
        """Close all connections; the next transaction opens the database again."""
        self.engine.dispose()
        self._ready, self._file = False, None

    @contextmanager
    def transaction(self, *, reads_only: bool = False) -> Iterator[Connection]:
        """A transaction with existing tables; it is committed and on disk when the block ends."""
        try:
            self._require_same_file()
            self._migrate()
            connection = self.engine.connect()
        except (SQLAlchemyError, OSError) as error:
            raise StoreUnavailable(reason_of(error)) from error
        try:
            with connection.execution_options(reads_only=reads_only), connection.begin():
                yield connection
        except SQLAlchemyError as error:
            if "readonly" in str(error):  # an open connection does not notice when the file becomes writable
                self._disconnect()
            raise StoreUnavailable(reason_of(error)) from error
        finally:
            connection.close()
        if not reads_only and self._file_now() != self._file:
            raise StoreUnavailable("the database file was deleted or replaced while it was written")

    def _migrate(self) -> None:
        """Create the tables, or migrate them to the current schema version; once per process."""
        if self._ready:
            return
        with self._lock:
            if self.engine.dialect.name == "sqlite" and self.engine.url.database:
                Path(self.engine.url.database).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            for tries_left in (4, 3, 2, 1, 0):
                try:
                    with self.engine.begin() as connection:
                        migrate(connection)
                    break
                except SQLAlchemyError:
                    if not tries_left:
                        raise
                    time.sleep(0.1)
            self._ready, self._file = True, self._file_now()

    def add_decisions(self, rows: Sequence[Decided]) -> None:
        """Write decisions, all or none; RowsRefused if another try would fail in the same way.

        The rows are passed directly to the driver, because SQLAlchemy's insert takes twice the time per row
        and holds the interpreter's lock, which delays answers.
        """
        statement = decisions.insert().compile(dialect=self.engine.dialect, column_keys=Decided._fields)
        rows = [row._replace(ticket_id=storable(row.ticket_id), text=storable(row.text)) for row in rows]
        values: Any = rows if statement.positional else [row._asdict() for row in rows]
        try:
            with self.transaction() as connection:
                connection.exec_driver_sql(str(statement), values)
        except StoreUnavailable as error:
            if isinstance(error.__cause__, sa.exc.DataError):
                raise RowsRefused("the database rejects these values") from error
            raise

    def add_feedback(
        self,
        actual: str,
        *,
        ticket_id: str | None = None,
        request_id: str | None = None,
        source: str | None = None,
    ) -> Receipt:
        """Store the team that solved a ticket; it is on disk when this returns.

        The same team again changes nothing. Another team replaces the first.
        """
        actual = storable(actual) or ""
        ticket_id, request_id = storable(ticket_id), storable(request_id)
        with self.transaction() as connection:
            found = self._decision(connection, ticket_id, request_id, source)
            if found is not None:
                ticket_id = found.ticket_id or ticket_id
                request_id, source = found.request_id, found.source
            key = key_of(ticket_id, request_id, source)
            values = {
                "key": key,
                "ticket_id": ticket_id,
                "request_id": request_id,
                "actual": actual,
                "predicted": found and found.predicted,
                "decision": found and found.decision,
                "confidence": found and found.confidence,
                "version": found and found.version,
                "decision_row": found and found.row,
                "received_at": time.time(),
                "source": source,
            }
            status = self._upsert(connection, values)
        return Receipt(
            status,
            ticket_id,
            request_id,
            actual,
            values["predicted"],
            values["decision"],
            values["confidence"],
            source,
        )

    def remove_feedback(
        self, *, ticket_id: str | None = None, request_id: str | None = None, source: str | None = None
    ) -> bool:
        """Delete the feedback on a ticket; False if there was none."""
        ticket_id, request_id = storable(ticket_id), storable(request_id)
        with self.transaction() as connection:
            found = self._decision(connection, ticket_id, request_id, source)
            if found is not None:
                ticket_id, request_id, source = found.ticket_id, found.request_id, found.source
            here = feedback.c.key == key_of(ticket_id, request_id, source)
            return bool(connection.execute(sa.delete(feedback).where(here)).rowcount)

    def _upsert(self, connection: Connection, values: dict[str, Any]) -> str:
        """Insert, or update if the team differs; concurrent calls for one ticket run one after the other."""
        insert = self.insert(feedback).values(values).on_conflict_do_nothing()
        if connection.execute(insert.returning(feedback.c.key)).first() is not None:
            return "created"
        here = feedback.c.key == values["key"]
        previous = connection.execute(sa.select(feedback.c.actual).where(here).with_for_update()).scalar_one()
        if previous == values["actual"]:
            return "unchanged"
        if values["predicted"] is None:  # the decision was deleted meanwhile: keep the stored prediction
            values = {name: values[name] for name in ("actual", "received_at")}
        connection.execute(sa.update(feedback).where(here).values(values))
        return "changed"

    @staticmethod
    def _decision(
        connection: Connection, ticket_id: str | None, request_id: str | None, source: str | None
    ) -> Any:
        """The latest decision for this ticket of this source, or for this request; None if there is none."""
        if ticket_id:
            same: Any = (decisions.c.ticket_id == ticket_id) & decisions.c.source.is_not_distinct_from(source)
        else:
            same = decisions.c.request_id == request_id
        query = sa.select(decisions).where(same).order_by(decisions.c.row.desc()).limit(1)
        return connection.execute(query).first()

    def match_late(self, newest_seconds: float = 3600.0) -> int:
        """Add the prediction to feedback that came before its decision was written; return how many."""
        late = feedback.c.predicted.is_(None) & (feedback.c.received_at > time.time() - newest_seconds)
        with self.transaction(reads_only=True) as connection:
            waiting = connection.execute(sa.select(feedback).where(late).limit(1000)).all()
            found = [
                (row.key, self._decision(connection, row.ticket_id, row.request_id, row.source))
                for row in waiting
            ]
        matched = [(key, decision) for key, decision in found if decision is not None]
        if matched:
            with self.transaction() as connection:
                for key, decision in matched:
                    values = {
                        name: getattr(decision, name)
                        for name in ("predicted", "decision", "confidence", "version", "request_id")
                    }
                    connection.execute(
                        sa.update(feedback)
                        .where(feedback.c.key == key)
                        .values(**values, decision_row=decision.row)
                    )
        return len(matched)

    def recent_decisions(self, version: str, limit: int) -> Sequence[Any]:
        """The newest `limit` decisions of one bundle version: predicted, confidence, tokens, unknown."""
        columns = decisions.c.predicted, decisions.c.confidence, decisions.c.tokens, decisions.c.unknown
        query = sa.select(*columns).where(decisions.c.version == version)
        with self.transaction(reads_only=True) as connection:
            return connection.execute(query.order_by(decisions.c.row.desc()).limit(limit)).all()

    def recent_feedback(self, version: str, limit: int) -> Sequence[Any]:
        """The newest `limit` feedbacks on one bundle version: predicted, actual, confidence, decision."""
        columns = feedback.c.predicted, feedback.c.actual, feedback.c.confidence, feedback.c.decision
        query = sa.select(*columns).where(feedback.c.version == version)
        with self.transaction(reads_only=True) as connection:
            return connection.execute(query.order_by(feedback.c.received_at.desc()).limit(limit)).all()

    def feedback_with_text(self, since: float = 0.0) -> Sequence[Any]:
        """Feedback since `since` (seconds since 1970), oldest first, with the text if it is stored."""
        joined = feedback.outerjoin(decisions, feedback.c.decision_row == decisions.c.row)
        query = sa.select(feedback, decisions.c.text).select_from(joined)
        with self.transaction(reads_only=True) as connection:
            return connection.execute(
                query.where(feedback.c.received_at >= since).order_by(feedback.c.received_at)
            ).all()

    def waiting(
        self, team: str | None, reason: str | None, order: str, limit: int
    ) -> tuple[int, Sequence[Any]]:
        """How many tickets were sent to review and have no feedback, and the first `limit` of them.

        Of a ticket that was routed several times, the newest decision counts. `order` is "newest", or
        "unsure" for the least confident first.
        """
        later = decisions.alias()
        newer = sa.exists().where(
            later.c.ticket_id == decisions.c.ticket_id,
            later.c.source.is_not_distinct_from(decisions.c.source),
            later.c.row > decisions.c.row,
        )
        solved = sa.exists().where(feedback.c.key == _KEY_OF_DECISION)
        found = [decisions.c.decision == "review", ~newer, ~solved]
        if team:
            found.append(decisions.c.predicted == team)
        if reason:
            found.append((" " + sa.func.coalesce(decisions.c.reasons, "") + " ").contains(f" {reason} "))
        ranked = decisions.c.confidence if order == "unsure" else decisions.c.row.desc()
        with self.transaction(reads_only=True) as connection:
            count = connection.execute(sa.select(sa.func.count()).select_from(decisions).where(*found))
            rows = connection.execute(sa.select(decisions).where(*found).order_by(ranked).limit(limit))
            return count.scalar_one(), rows.all()

    def text_of(self, row: int) -> str | None:
        """The stored text of a decision; None if there is none."""
        with self.transaction(reads_only=True) as connection:
            return connection.execute(sa.select(decisions.c.text).where(decisions.c.row == row)).scalar()

    def decided_between(self, start: float, end: float) -> Sequence[Any]:
        """Decisions of a period: decided_at, predicted, decision, text, and `actual` if there is feedback."""
        columns = decisions.c.decided_at, decisions.c.predicted, decisions.c.decision, decisions.c.text
        joined = decisions.outerjoin(feedback, feedback.c.key == _KEY_OF_DECISION)
        query = sa.select(*columns, feedback.c.actual).select_from(joined)
        with self.transaction(reads_only=True) as connection:
            return connection.execute(query.where(decisions.c.decided_at.between(start, end))).all()

    def texts_between(self, start: float, end: float, limit: int) -> Sequence[str]:
        """The newest `limit` stored texts of a period."""
        found = decisions.c.text.is_not(None) & decisions.c.decided_at.between(start, end)
        query = sa.select(decisions.c.text).where(found).order_by(decisions.c.row.desc()).limit(limit)
        with self.transaction(reads_only=True) as connection:
            return connection.execute(query).scalars().all()

    def prune(self, *, keep_days: float, text_days: float, most_decisions: int) -> dict[str, int]:
        """Delete texts and rows that are older than allowed; return the counts by kind.

        If the clock is far ahead of the newest row at the start, it may be wrong, and nothing is deleted for
        a day.
        """
        now = time.time()
        if self._clock_is_doubtful(now):
            log.warning("old rows are kept for a day: the clock is far ahead of the newest row")
            return {"texts": 0, "decisions": 0, "feedback": 0}
        with self.transaction() as connection:
            newest = connection.execute(sa.select(sa.func.max(decisions.c.row))).scalar() or 0
            too_old = decisions.c.decided_at < now - keep_days * 86400
            too_many = decisions.c.row <= newest - most_decisions
            old_text = decisions.c.text.is_not(None) & (decisions.c.decided_at < now - text_days * 86400)
            return {
                "texts": connection.execute(sa.update(decisions).where(old_text).values(text=None)).rowcount,
                "decisions": connection.execute(sa.delete(decisions).where(too_old | too_many)).rowcount,
                "feedback": connection.execute(
                    sa.delete(feedback).where(feedback.c.received_at < now - keep_days * 86400)
                ).rowcount,
            }

    def _clock_is_doubtful(self, now: float) -> bool:
        """Whether the newest row was more than a month old when this process started.

        Rows of the hour before the start do not count: another worker may have written them with the same
        clock.
        """
        awake = time.monotonic() - self._opened
        if awake > _DAY_SECONDS:
            return False
        start = now - awake - 3600.0
        with self.transaction(reads_only=True) as connection:
            times = [
                connection.execute(sa.select(sa.func.max(column)).where(column < start)).scalar()
                for column in (feedback.c.received_at, decisions.c.decided_at)
            ]
        newest = max((seconds for seconds in times if seconds is not None), default=start)
        return start - newest > _DOUBTFUL_GAP_SECONDS
