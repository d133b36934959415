"""The table of suspected label errors that a person corrects, and how the corrections are applied.

A correction identifies its ticket by id and text, because ids may repeat, and row numbers change when a file
is exported again. No correction is ever lost: the run stops, and leaves the table unchanged, if a row cannot
be read or shows another text than its ticket.
"""

from __future__ import annotations

import csv
import io
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from models.files import atomic_write
from models.text import clean
from models.tickets.columns import team_name, ticket_id
from models.tickets.faults import DataError, Faults
from models.tickets.formulas import quoted, unquoted
from models.tickets.rows import read_rows
from training.data.templates import text_key
from training.data.tickets import Tickets

COLUMNS = (
    "ticket_id",
    "row",
    "part",
    "team",
    "suggested_team",
    "probability_wrong",
    "corrected_team",
    "text_key",
    "text",
)
EXCEL_CELL = 32_767  # characters; Excel cuts longer cells
REFUSED = (
    "a correction that does not match one ticket: its text differs from that of the ticket with this id, or "
    "several tickets have this id (was the data exported again?). Make these corrections in the "
    "label_errors.csv of a run on this data, or delete the rows"
)
_ROW_NUMBER = re.compile(r"row \d+")  # the id of a ticket in a file without ids

Line = dict[str, str]


def key_of(text: str) -> str:
    """A hash of the text, as hex; it starts with a letter so that no spreadsheet reads it as a number."""
    return "t" + text_key(text).hex()


def read_corrections(path: Path) -> list[Line]:
    """The lines of a table in which `corrected_team` is filled in; DataError unless every row can be read."""
    return [line for _, line in _filled_in(path)]


def read_all(paths: Iterable[Path | None]) -> list[Line]:
    """The lines of several tables, of each existing file once; see `read_corrections`."""
    files = dict.fromkeys(path.resolve() for path in paths if path and path.exists())
    return [line for path in files for line in read_corrections(path)]


def _filled_in(path: Path) -> list[tuple[int, Line]]:
    faults = Faults()
    required = ["ticket_id", "corrected_team"]
    optional = [name for name in COLUMNS if name not in required]
    rows = list(read_rows(path, required, optional, faults))
    if unread := [fault for fault in faults if fault.effect != "keeps"]:
        raise DataError(
            "\n".join(
                [f"{path.name} has rows that cannot be read; nothing was trained, and the file is unchanged:"]
                + [f"  - {fault}" for fault in unread]
                + ["save it as CSV (UTF-8) or .xlsx, or repair these rows"]
            )
        )
    lines = ((row, {name: unquoted(value) for name, value in values.items()}) for row, values in rows)
    return [
        (row, dict.fromkeys(COLUMNS, "") | line) for row, line in lines if team_name(line["corrected_team"])
    ]


def to_csv(suspects: Iterable[Line], done: Sequence[Line] = (), texts: bool = True) -> str:
    """The table for a person to fill in: `corrected_team` where the label is wrong, empty where it is right.

    `done` are lines that a person corrected before; they come first and are not repeated.
    """
    table = io.StringIO()
    writer = csv.DictWriter(table, COLUMNS, lineterminator="\r\n")
    writer.writeheader()
    listed = set()
    for line in [*done, *suspects]:
        key = line["text_key"] or (key_of(line["text"]) if line["text"] else "")
        if (line["ticket_id"], key) not in listed:
            listed.add((line["ticket_id"], key))
            shown = {**line, "text_key": key, "text": line["text"] if texts else ""}
            writer.writerow({name: quoted(value) for name, value in shown.items()})
    return table.getvalue()


def write_csv(path: Path, table: str) -> None:
    """Write a table atomically, with a byte-order mark, by which Excel recognises UTF-8."""
    with atomic_write(path) as file:
        file.write(table.encode("utf-8-sig"))


def apply_corrections(parts: Sequence[Tickets], path: Path, faults: Faults) -> list[Tickets]:
    """The tickets with the corrected teams; a correction that cannot be applied is a fatal fault."""
    places: dict[str, list[tuple[int, int]]] = defaultdict(list)  # (part, index) by id, and by text
    by_text: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for number, tickets in enumerate(parts):
        for index, (given, text) in enumerate(zip(tickets.ids, tickets.texts, strict=True)):
            places[given].append((number, index))
            by_text[key_of(text)].append((number, index))
    corrected: dict[tuple[int, int], str] = {}
    for row, line in _filled_in(path):
        given = ticket_id(line, "ticket_id")
        if not _ROW_NUMBER.fullmatch(given) and given not in places:
            detail = "a correction of a ticket that is not in the data"
            faults.add("unknown_correction", path.name, "keeps", detail, row)
            continue
        found = _tickets_of(line, given, parts, places, by_text)
        team = team_name(line["corrected_team"])
        if not found or any(corrected.get(place, team) != team for place in found):
            faults.add("refused_correction", path.name, "stops", REFUSED, row)
        corrected.update(dict.fromkeys(found, team))
    return [_with_teams(tickets, number, corrected, path, faults) for number, tickets in enumerate(parts)]


def _tickets_of(
    line: Line,
    given: str,
    parts: Sequence[Tickets],
    places: Mapping[str, list[tuple[int, int]]],
    by_text: Mapping[str, list[tuple[int, int]]],
) -> list[tuple[int, int]]:
    """The (part, index) of the tickets with a line's id and text; empty if these do not match."""
    if _ROW_NUMBER.fullmatch(given):
        return list({place for key in _keys(line) for place in by_text.get(key, ())})
    named = places[given]
    if not line["text_key"] and not line["text"].strip():
        return named if len({parts[number].texts[index] for number, index in named}) == 1 else []
    return [(number, index) for number, index in named if _shows(line, parts[number].texts[index])]


def _keys(line: Line) -> set[str]:
    shown = {key_of(line["text"]), key_of(clean(line["text"]).text)} if line["text"].strip() else set()
    return shown | ({line["text_key"]} if line["text_key"] else set())


def _shows(line: Line, text: str) -> bool:
    """Whether a line shows this text, unchanged or as a spreadsheet cuts or re-encodes it."""
    if key_of(text) in _keys(line):
        return True
    shown = line["text"].strip()
    if len(shown) > EXCEL_CELL - 100 and text.startswith(shown[: EXCEL_CELL // 2]):
        return True
    in_windows = text.encode("cp1252", "replace").decode("cp1252")
    return "?" in shown and text_key(in_windows) == text_key(shown)


def _with_teams(
    tickets: Tickets, number: int, corrected: Mapping[tuple[int, int], str], path: Path, faults: Faults
) -> Tickets:
    teams = list(tickets.teams)
    for index, row in enumerate(tickets.rows):
        team = corrected.get((number, index), teams[index])
        if team != teams[index]:
            faults.add("corrected_team", tickets.file, "keeps", f"team corrected by {path.name}", row)
            teams[index] = team
    return replace(tickets, teams=teams)
