"""The schema of the feedback database and its versions; `migrate` changes a database to another version.

1  decisions and feedback; without a table `schema_version`
2  `source` in both tables keeps the ids of several helpdesks apart; decisions keep the reasons for review
"""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from service.feedback.rows import StoreUnavailable

VERSION = 2
ID_LENGTH, SOURCE_LENGTH, REASONS_LENGTH = 200, 50, 200
_LOCK = 5_261_178  # an arbitrary constant: replicas that start together migrate one after the other

metadata = sa.MetaData()
decisions = sa.Table(
    "decisions",
    metadata,
    sa.Column(
        "row", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True
    ),
    sa.Column("request_id", sa.String(ID_LENGTH), nullable=False, index=True),
    sa.Column("ticket_id", sa.String(ID_LENGTH), index=True),
    sa.Column("predicted", sa.String(ID_LENGTH), nullable=False),
    sa.Column("decision", sa.String(20), nullable=False),
    sa.Column("confidence", sa.Double, nullable=False),
    sa.Column("version", sa.String(ID_LENGTH), nullable=False),
    sa.Column("tokens", sa.Integer, nullable=False),
    sa.Column("unknown", sa.Integer, nullable=False),
    sa.Column("decided_at", sa.Double, nullable=False, index=True),  # seconds since 1970
    sa.Column("text", sa.Text),
    sa.Column("source", sa.String(SOURCE_LENGTH)),  # the helpdesk; null where the caller names none
    sa.Column("reasons", sa.String(REASONS_LENGTH)),  # for review, separated by spaces
    sa.Index("decisions_version_row", "version", "row"),
    sqlite_autoincrement=True,  # never reuse a row number: feedback refers to it
)
feedback = sa.Table(
    "feedback",
    metadata,
    sa.Column("key", sa.String(ID_LENGTH + SOURCE_LENGTH + 3), primary_key=True),  # see `key_of`
    sa.Column("ticket_id", sa.String(ID_LENGTH)),
    sa.Column("request_id", sa.String(ID_LENGTH)),
    sa.Column("actual", sa.String(ID_LENGTH), nullable=False),
    sa.Column("predicted", sa.String(ID_LENGTH)),  # null: no decision for this ticket was found
    sa.Column("decision", sa.String(20)),
    sa.Column("confidence", sa.Double),
    sa.Column("version", sa.String(ID_LENGTH)),
    sa.Column("decision_row", sa.BigInteger),
    sa.Column("received_at", sa.Double, nullable=False, index=True),
    sa.Column("source", sa.String(SOURCE_LENGTH)),
    sa.Index("feedback_version_received_at", "version", "received_at"),
)
schema_version = sa.Table("schema_version", metadata, sa.Column("version", sa.Integer, nullable=False))


def key_of(ticket_id: str | None, request_id: str | None, source: str | None) -> str:
    """The primary key of feedback: its ticket, of a helpdesk if `source` names one, or its request."""
    if ticket_id and source:
        return f"s:{source}:{ticket_id}"
    return f"t:{ticket_id}" if ticket_id else f"r:{request_id}"


def version_of(connection: Connection) -> int:
    """The version of a database's schema; 0 if it has no tables yet."""
    tables = sa.inspect(connection).get_table_names()
    if schema_version.name in tables:
        return int(connection.execute(sa.select(schema_version.c.version)).scalar_one())
    return 1 if decisions.name in tables else 0


def migrate(connection: Connection, target: int = VERSION) -> int:
    """Change the schema to version `target`, within the transaction; return the version it had before.

    StoreUnavailable if the database is of a newer version than this program knows.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    before = present = version_of(connection)
    if present > VERSION:
        raise StoreUnavailable(
            f"the database has schema version {present}, this program knows versions up to {VERSION}"
        )
    if present == 0:
        metadata.create_all(connection)
        connection.execute(schema_version.insert().values(version=VERSION))
        present = VERSION
    while present < target:
        _UP[present](connection)
        present += 1
    while present > target:
        present -= 1
        _DOWN[present](connection)
    return before


def _from_1_to_2(connection: Connection) -> None:
    for table, column, length in _ADDED_IN_2:
        connection.execute(sa.text(f"ALTER TABLE {table} ADD COLUMN {column} VARCHAR({length})"))
    if connection.dialect.name == "postgresql":  # SQLite ignores the length
        length = ID_LENGTH + SOURCE_LENGTH + 3
        connection.execute(sa.text(f"ALTER TABLE feedback ALTER COLUMN key TYPE VARCHAR({length})"))
    # After a migration back to version 1, the source of feedback is still in its key.
    stored = sa.select(feedback.c.key).where(feedback.c.key.like("s:%"))
    for key in connection.execute(stored).scalars().all():
        here = sa.update(feedback).where(feedback.c.key == key)
        connection.execute(here.values(source=key.split(":", 2)[1]))
    schema_version.create(connection)
    connection.execute(schema_version.insert().values(version=2))


def _from_2_to_1(connection: Connection) -> None:
    for table, column, _ in _ADDED_IN_2:
        connection.execute(sa.text(f"ALTER TABLE {table} DROP COLUMN {column}"))
    schema_version.drop(connection)


_ADDED_IN_2 = (
    ("decisions", "source", SOURCE_LENGTH),
    ("decisions", "reasons", REASONS_LENGTH),
    ("feedback", "source", SOURCE_LENGTH),
)
_UP: dict[int, Callable[[Connection], None]] = {1: _from_1_to_2}
_DOWN: dict[int, Callable[[Connection], None]] = {1: _from_2_to_1}
