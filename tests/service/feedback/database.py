"""Looks into a feedback database."""

from __future__ import annotations

import sqlalchemy as sa

from service.feedback.migrations import decisions, feedback
from service.feedback.store import Store


def row_counts(store: Store) -> dict[str, int]:
    """How many rows each table has."""
    with store.transaction(reads_only=True) as connection:
        return {
            table.name: connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
            for table in (decisions, feedback)
        }
