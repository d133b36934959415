"""What the feedback database holds of a decision, and the errors it may raise."""

from __future__ import annotations

from typing import NamedTuple


class StoreUnavailable(RuntimeError):
    """The database cannot be used now; the message says why, without paths, addresses or values."""


class RowsRefused(RuntimeError):
    """The database is well and does not take these rows."""


class Decided(NamedTuple):
    """One routed ticket, as it is remembered."""

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
