"""The columns of a ticket file, and how the id and team of a row are read."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass

from models.tickets.faults import DataError

ID_COLUMNS = ("ticket_id", "id")
# What programs write for "no team"; compared in lower case.
NO_TEAM = frozenset((
    "", "null", "nan", "n/a", "#n/a", "none", "nil", "-", "--", "–", "—", "\\n", "<null>", "<none>", "<na>",
    "(empty)", "(blank)", "(null)", "(none)", "[null]", "[empty]", "[none]",
))  # fmt: skip
# Zero-width space, word joiner, soft hyphen, byte-order mark, direction marks. Not the joiners inside emoji
# and Persian words, which are visible in what they join.
_INVISIBLE = re.compile(r"[\u00ad\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff]+")
_WHOLE_AS_FLOAT = re.compile(r"(\d+)\.0+\Z")


@dataclass(frozen=True)
class Columns:
    """The columns to read; several text columns (subject, body) are joined in the given order.

    `merged` are pairs of team names: tickets of the first count as the second's.
    """

    text: tuple[str, ...] = ("text",)
    team: str = "team"
    id: str | None = None  # None: the first of ID_COLUMNS that has a value
    time: str | None = None
    merged: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        named = [*self.text, self.team, *([self.id] if self.id else [])]
        twice = [name for name in named if named.count(name) > 1]
        if not all(name.strip() for name in named):
            raise DataError("the name of a column is empty (--text-column, --team-column)")
        if twice:
            raise DataError(
                f"the column {twice[0]!r} is named twice: text, team and id must be different columns"
            )

    @property
    def required(self) -> list[str]:
        """The columns that a file must have."""
        named = (name for name in (self.id, self.time) if name)
        return list(dict.fromkeys([*self.text, self.team, *named]))


def ticket_id(values: Mapping[str, str], id_column: str | None = None) -> str:
    """The id of a row, "" if it has none; "1234.0", as spreadsheets export whole numbers, becomes "1234"."""
    names = [id_column] if id_column else ID_COLUMNS
    found = (tidy(values[name]) for name in names if values.get(name))
    given = next((value for value in found if value), "")
    whole = _WHOLE_AS_FLOAT.fullmatch(given)
    return whole[1] if whole else given


def team_name(value: str) -> str:
    """A team's name in the form of `tidy`; "" for values that mean "no team"."""
    name = tidy(value)
    return "" if name.lower() in NO_TEAM else name


def tidy(value: str) -> str:
    """The value in NFC, without invisible characters, leading, trailing or repeated spaces."""
    if value.isascii():
        return " ".join(value.split())
    visible = _INVISIBLE.sub("", unicodedata.normalize("NFC", value))
    return " ".join(visible.split()).strip("\u200c\u200d")
