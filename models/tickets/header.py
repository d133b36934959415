"""Checks the header row of a table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from models.tickets.columns import tidy
from models.tickets.faults import Faults, printable

COLUMNS_SHOWN = 20
TITLE_ROWS = 30  # rows to search for a header below a title
# A UTF-8 byte-order mark that another program read as Latin-1, once or twice.
MISREAD_MARKS = ("ï»¿", "Ã¯Â»Â¿")


def column_names(path: Path, cells: Sequence[str], faults: Faults) -> list[str]:
    """The names of the columns, from the cells of the header."""
    names = [tidy(cell) for cell in cells]
    for mark in MISREAD_MARKS:
        if names and names[0].startswith(mark):
            detail = (
                f"the first column's name begins with a byte-order mark read as Latin-1 ({mark}), removed"
            )
            faults.add("misread_mark", path.name, "keeps", detail)
            names[0] = tidy(names[0].removeprefix(mark)).strip('"')
    return names


def missing(path: Path, columns: Sequence[str], found: Sequence[str], faults: Faults) -> bool:
    """Add a fatal fault for each column that is absent or occurs more than once; True if there is one."""
    for column in columns:
        if column not in found:
            named = ", ".join(printable(name, 60) for name in found[:COLUMNS_SHOWN]) or "none"
            more = f" and {len(found) - COLUMNS_SHOWN} more" if len(found) > COLUMNS_SHOWN else ""
            detail = f"no column {column!r}; its columns are: {named}{more}"
            faults.add(f"missing_column:{column}", path.name, "stops", detail)
        elif found.count(column) > 1:
            detail = f"{found.count(column)} columns are named {column!r}; rename all but one"
            faults.add(f"repeated_column:{column}", path.name, "stops", detail)
    return any(found.count(column) != 1 for column in columns)


def tell_lower_header(
    path: Path, columns: Sequence[str], rows: Sequence[Sequence[str]], faults: Faults
) -> None:
    """Suggest --skip-rows if one of the first `rows` has all columns, so that a title is above the header."""
    for above, cells in enumerate(rows[:TITLE_ROWS]):
        if above and set(columns) <= {tidy(cell) for cell in cells}:
            detail = f"the header seems to be row {above + 1}, below a title: add --skip-rows {above}"
            faults.add("title_rows", path.name, "stops", detail)
            return
