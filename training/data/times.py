"""Reads the times of tickets in the formats that helpdesks export."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from models.tickets.faults import DataError

_NUMERIC = re.compile(
    r"(?P<a>\d{1,4})(?P<mark>[./-])(?P<b>\d{1,2})[./-](?P<c>\d{4}|\d{2})"
    r"(?:,?[ T]+"
    r"(?P<hour>\d{1,2})[:.](?P<minute>\d{2})(?:[:.](?P<second>\d{2}))?[ ]?(?P<half>[AaPp][Mm])?)?.{0,20}"
)
_UNIX_TIME = re.compile(r"\d{10}(?:\d{3})?(?:\.\d+)?")
_SPELLED = ("%d-%b-%Y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y", "%b %d %Y")
_TIMES = ("", " %H:%M", " %H:%M:%S", " %I:%M %p", " %I:%M:%S %p")
LONGEST = 60  # characters; a longer value is not a time


def seconds(values: Sequence[str], column: str) -> list[float]:
    """Seconds since 1970 of each value, nan if it is not a time.

    Accepts ISO 8601, Unix time, 31.12.2026 14:05, 12/31/2026 2:05 PM and English names of months. Raises
    DataError if no value of the column shows whether the day or the month comes first.
    """
    stripped = [value.strip() if len(value) <= LONGEST else "" for value in values]
    day_first = _day_first(stripped, column)
    return [_seconds(value, day_first) for value in stripped]


def _day_first(values: Sequence[str], column: str) -> bool:
    """Whether dates such as 1/2/2026 begin with the day."""
    matches = [match for value in values if (match := _NUMERIC.fullmatch(value)) and len(match["a"]) <= 2]
    if not matches or any(match["mark"] == "." or int(match["a"]) > 12 for match in matches):
        return True
    if any(int(match["b"]) > 12 for match in matches):
        return False
    raise DataError(
        f"column {column!r}: {matches[0][0]!r} may begin with the day or the month, "
        "and no value shows which; write 2026-12-31"
    )


def _seconds(value: str, day_first: bool) -> float:
    if _UNIX_TIME.fullmatch(value):
        number = float(value)
        return number / 1000 if number > 1e11 else number
    for parse in (
        datetime.fromisoformat,
        lambda text: _numeric(text, day_first),
        _spelled,
        parsedate_to_datetime,
    ):
        try:
            moment = parse(value)
        except (ValueError, TypeError, IndexError, OverflowError):
            continue
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return math.nan


def _numeric(value: str, day_first: bool) -> datetime:
    match = _NUMERIC.fullmatch(value)
    if not match:
        raise ValueError(value)
    first, middle, last = int(match["a"]), int(match["b"]), int(match["c"])
    year, month, day = (
        (first, middle, last) if first > 31 else (last, middle, first) if day_first else (last, first, middle)
    )
    hour, minute, second = (int(match[name] or 0) for name in ("hour", "minute", "second"))
    if match["half"]:
        hour = hour % 12 + 12 * (match["half"].lower() == "pm")
    return datetime(year + 2000 if year < 100 else year, month, day, hour, minute, second, tzinfo=UTC)


def _spelled(value: str) -> datetime:
    for date in _SPELLED:
        for time in _TIMES:
            try:
                return datetime.strptime(value, date + time).replace(tzinfo=UTC)
            except ValueError:
                continue
    raise ValueError(value)
