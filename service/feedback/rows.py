"""A decision as the feedback database holds it, and the errors that the database raises."""

from __future__ import annotations

from typing import NamedTuple

# Feedback without a team, as stored in the column `actual`; no team's name begins with "#".
NO_TEAM = {"none_of_these": "#none_of_these", "not_a_ticket": "#not_a_ticket"}


class StoreUnavailable(RuntimeError):
    """The database cannot be used now. The message says why, without paths, addresses or values."""


class RowsRefused(RuntimeError):
    """The database works but rejects these rows."""


class Decided(NamedTuple):
    """One routed ticket; `decided_at` is in seconds since 1970."""

    request_id: str
    ticket_id: str | None
    predicted: str
    decision: str
    confidence: float
    version: str
    tokens: int
    unknown: int
    decided_at: float
    text: str | None = None
    source: str | None = None
    reasons: str | None = None
