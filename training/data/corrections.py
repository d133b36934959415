"""The table of suspected label errors that a person corrects, and what becomes of the corrections.

A correction names its ticket by its id and its text, because ids repeat and change: rows are numbered anew
when a file is exported again. What a person wrote is never dropped: a table that cannot be read whole, or
that shows another text than the ticket has, stops the run, and the table stays as it is.
"""

from __future__ import annotations

import csv
import io
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

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
    "corrections that show another text than the ticket of that id has, or an id that several tickets have: "
    "the data was exported anew, or its ids repeat. Correct them in the label_errors.csv of a run on this "
    "data, or delete these rows"
)
_ROW_NUMBER = re.compile(r"row \d+")  # stands for an id where the file has none

Line = dict[str, str]


def key_of(text: str) -> str:
    """Names a text without showing it; the leading letter keeps spreadsheets from reading a number."""
    return "t" + text_key(text).hex()


def read_corrections(path: Path) -> list[Line]:
    """The lines of a table in which `corrected_team` is filled in.

    DataError, with the reason, unless every row can be read.
    """
    return [line for _, line in _filled_in(path)]


def _filled_in(path: Path) -> list[tuple[int, Line]]:
    faults = Faults()
    required = ["ticket_id", "corrected_team"]
    optional = [name for name in COLUMNS if name not in required]
    rows = list(read_rows(path, required, optional, faults))
    if unread := [fault for fault in faults if fault.effect != "keeps"]:
        raise DataError(
            "\n".join(
                [f"{path.name} cannot be read whole; nothing was trained, and the file stays as it is:"]
                + [f"  - {fault}" for fault in unread]
                + ["save it as CSV (UTF-8) or .xlsx, or repair these rows"]
            )
        )
    lines = ((row, {name: unquoted(value) for name, value in values.items()}) for row, values in rows)
    return [
        (row, dict.fromkeys(COLUMNS, "") | line) for row, line in lines if team_name(line["corrected_team"])
    ]


def to_csv(suspects: Iterable[Line], done: Sequence[Line] = (), texts: bool = True) -> str:
    """A table to correct: write the right team into `corrected_team`, leave it empty where it was right.

    `done` are lines that a person has corrected before; they stand first and are not listed again.
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
    """Write a table with a byte-order mark, by which Excel knows UTF-8; whole or not at all."""
    beside = path.with_name(f".{path.name}.writing")
    beside.write_text(table, encoding="utf-8-sig", newline="")
    beside.replace(path)


def apply_corrections(parts: Sequence[Tickets], path: Path, faults: Faults) -> list[Tickets]:
    """The tickets with the teams that a person corrected; what cannot be applied stops, in `faults`."""
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
            detail = "a correction for a ticket that the data does not have"
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
    """The tickets that a line names by id and text; none where they do not fit together."""
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
    """Whether a line shows this text, perhaps as a spreadsheet has changed it."""
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
