"""The tickets of one file: read, cleaned as in serving, and checked row by row."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from models.text import join
from models.tickets.columns import ID_COLUMNS, Columns, team_name, ticket_id
from models.tickets.faults import Faults
from models.tickets.rows import read_rows
from training.data.templates import Repetition, group_numbers, repetition, template_key, text_key
from training.data.times import seconds

STYLE_COLUMN = "style"
MOST_STYLES = 50  # a column with more different values is not a style
# Longer texts are cut here, so that one pasted log cannot fill the memory.
MAX_TEXT_CHARACTERS = 100_000
TEAM_SPELLING = "a team's name with invisible characters or decomposed letters, which are ignored"
NO_TEAM = "no team (empty, or NULL, N/A, none, -, (empty) or similar)"


@dataclass
class Tickets:
    """The tickets of one file, one list per column; `texts` are cleaned as in serving."""

    file: str = ""
    ids: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    teams: list[str] = field(default_factory=list)
    styles: list[str] = field(default_factory=list)  # empty if the file has no such column
    rows: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)  # seconds since 1970 or nan; empty without such a column

    def __len__(self) -> int:
        return len(self.texts)

    def select(self, indices: Iterable[int]) -> Tickets:
        chosen = list(indices)

        def pick(values: list) -> list:
            return [values[index] for index in chosen] if values else []

        return Tickets(
            self.file,
            ids=pick(self.ids),
            texts=pick(self.texts),
            teams=pick(self.teams),
            styles=pick(self.styles),
            rows=pick(self.rows),
            times=pick(self.times),
        )

    def followed_by(self, other: Tickets) -> Tickets:
        """These tickets, then those of `other`; with styles and times only if both have them."""
        return Tickets(
            f"{self.file} and {other.file}",
            self.ids + other.ids,
            self.texts + other.texts,
            self.teams + other.teams,
            self.styles + other.styles if self.styles and other.styles else [],
            self.rows + other.rows,
            self.times + other.times if self.times and other.times else [],
        )

    @cached_property
    def text_groups(self) -> np.ndarray:
        """(tickets,) int64, equal for tickets whose texts differ only in case and white space."""
        return group_numbers(map(text_key, self.texts))

    @cached_property
    def template_groups(self) -> np.ndarray:
        """(tickets,) int64, equal for tickets of one template (`templates.template_key`)."""
        return group_numbers(map(template_key, self.texts))

    @property
    def repetition(self) -> Repetition:
        return repetition(self.text_groups, self.template_groups)


def read_tickets(
    path: Path, columns: Columns, faults: Faults, encoding: str | None = None, skip_rows: int = 0
) -> Tickets:
    """All usable rows of one file; the others are added to `faults`."""
    required = columns.required
    optional = [name for name in (*ID_COLUMNS, STYLE_COLUMN) if name not in required]
    tickets = Tickets(path.name)
    seen: dict[str, bytes] = {}
    merged = dict(columns.merged)
    times: list[str] = []
    for row, values in read_rows(path, required, optional, faults, encoding, skip_rows):
        text = _text(values, columns, row, path.name, faults)
        team = team_name(values[columns.team])
        team = merged.get(team, team)
        given_id = ticket_id(values, columns.id)
        if not text.strip():
            faults.add("empty_text", path.name, "drops", "no text", row)
        elif not team:
            faults.add("empty_team", path.name, "drops", NO_TEAM, row)
        elif given_id and _repeats(given_id, text, seen, row, path.name, faults):
            continue
        else:
            if team != " ".join(values[columns.team].split()) and team not in merged.values():
                faults.add("team_spelling", path.name, "keeps", TEAM_SPELLING, row)
            tickets.ids.append(given_id or f"row {row}")
            tickets.texts.append(text)
            tickets.teams.append(team)
            tickets.rows.append(row)
            times.append(values[columns.time] if columns.time else "")
            if STYLE_COLUMN in values and STYLE_COLUMN not in required:
                tickets.styles.append(values[STYLE_COLUMN])
    _check_styles(tickets, faults)
    if columns.time:
        _read_times(tickets, times, columns.time, faults)
    if not len(tickets) and not any(fault.effect == "stops" and fault.file == path.name for fault in faults):
        faults.add("no_tickets", path.name, "stops", "no usable ticket in this file")
    return tickets


def _text(values: dict[str, str], columns: Columns, row: int, file: str, faults: Faults) -> str:
    """The cleaned text of a row, each column cut after MAX_TEXT_CHARACTERS."""
    texts = [values[name] for name in columns.text]
    if max(map(len, texts)) > MAX_TEXT_CHARACTERS:
        detail = f"text cut after {MAX_TEXT_CHARACTERS:,} characters (is a closing quote missing?)"
        faults.add("huge_text", file, "keeps", detail, row)
        texts = [text[:MAX_TEXT_CHARACTERS] for text in texts]
    return clean_columns(texts)


def _check_styles(tickets: Tickets, faults: Faults) -> None:
    styles = len(set(tickets.styles))
    if styles > MOST_STYLES:
        detail = f"the column {STYLE_COLUMN!r} has {styles:,} different values and is ignored"
        faults.add("too_many_styles", tickets.file, "keeps", detail)
        tickets.styles = []


def _read_times(tickets: Tickets, times: list[str], column: str, faults: Faults) -> None:
    tickets.times = seconds(times, column)
    for row, time in zip(tickets.rows, tickets.times, strict=True):
        if math.isnan(time):
            detail = f"no readable time in the column {column!r}; used for training only"
            faults.add("no_time", tickets.file, "keeps", detail, row)
    if tickets.times and all(map(math.isnan, tickets.times)):
        detail = f"no value of {column!r} is a time; write times like 2026-12-31 14:05"
        faults.add("no_times", tickets.file, "stops", detail)


def clean_columns(texts: Sequence[str]) -> str:
    """One text, cleaned and joined as in serving; the first of several columns is the subject."""
    *subject, text = [texts[0], "\n".join(text for text in texts[1:] if text)] if len(texts) > 1 else texts
    return join(subject[0] if subject else None, text).text


def _repeats(ticket_id: str, text: str, seen: dict[str, bytes], row: int, file: str, faults: Faults) -> bool:
    """True for a second row with the same id and text; an id with different texts is only reported."""
    key = text_key(text)
    if ticket_id not in seen:
        seen[ticket_id] = key
        return False
    if seen[ticket_id] == key:
        faults.add("duplicate_id", file, "drops", "the id and text of an earlier row", row)
        return True
    faults.add("reused_id", file, "keeps", "the id of an earlier row, but another text", row)
    return False
