"""Which columns hold what, and what the values of a row mean: a ticket's id, its team, its texts."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass

from models.tickets.faults import DataError

ID_COLUMNS = ("ticket_id", "id")
# What programs write where there is no team; compared in lower case.
NO_TEAM = frozenset((
    "", "null", "nan", "n/a", "#n/a", "none", "nil", "-", "--", "–", "—", "\\n", "<null>", "<none>", "<na>",
    "(empty)", "(blank)", "(null)", "(none)", "[null]", "[empty]", "[none]",
))  # fmt: skip
# Zero-width space, word joiner, soft hyphen, byte-order mark, marks of direction. Not the joiners inside
# emoji and Persian words, which change what is seen.
_INVISIBLE = re.compile(r"[\u00ad\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u2064\u2066-\u206f\ufeff]+")
_WHOLE_AS_FLOAT = re.compile(r"(\d+)\.0+\Z")


@dataclass(frozen=True)
class Columns:
    """Which columns hold what; several text columns (subject, body) are joined in the order given."""

    text: tuple[str, ...] = ("text",)
    team: str = "team"
    id: str | None = None  # found among ID_COLUMNS when not named
    time: str | None = None

    def __post_init__(self) -> None:
        named = [*self.text, self.team, *([self.id] if self.id else [])]
        twice = [name for name in named if named.count(name) > 1]
        if not all(name.strip() for name in named):
            raise DataError("a column's name is empty (--text-column, --team-column)")
        if twice:
            raise DataError(
                f"the column {twice[0]!r} is named twice: text, team and id are different columns"
            )

    @property
    def required(self) -> list[str]:
        """The columns that a file must have."""
        named = (name for name in (self.id, self.time) if name)
        return list(dict.fromkeys([*self.text, self.team, *named]))


def ticket_id(values: Mapping[str, str], id_column: str | None = None) -> str:
    """The id of a row, "" where it has none; "1234.0", as spreadsheets make of a number, is "1234"."""
    names = [id_column] if id_column else ID_COLUMNS
    found = (tidy(values[name]) for name in names if values.get(name))
    given = next((value for value in found if value), "")
    whole = _WHOLE_AS_FLOAT.fullmatch(given)
    return whole[1] if whole else given


def team_name(value: str) -> str:
    """A team as it is compared: see `tidy`; "" for what says that there is no team."""
    name = tidy(value)
    return "" if name.lower() in NO_TEAM else name


def tidy(value: str) -> str:
    """In NFC, without invisible characters, with single spaces inside and none around."""
    if value.isascii():
        return " ".join(value.split())
    visible = _INVISIBLE.sub("", unicodedata.normalize("NFC", value))
    return " ".join(visible.split()).strip("\u200c\u200d")
