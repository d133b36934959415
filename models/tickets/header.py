"""The row of a table that names its columns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from models.tickets.columns import tidy
from models.tickets.faults import Faults, printable

COLUMNS_SHOWN = 20
TITLE_ROWS = 30  # so many rows are looked at for a header that stands lower
# A UTF-8 byte-order mark that some program has read as Latin-1, perhaps twice.
MISREAD_MARKS = ("ï»¿", "Ã¯Â»Â¿")


def column_names(path: Path, cells: Sequence[str], faults: Faults) -> list[str]:
    """The cells of the header as the names of columns."""
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
    """Whether one of the columns is not there, or there twice: which of them is meant?"""
    for column in columns:
        if column not in found:
            named = ", ".join(printable(name, 60) for name in found[:COLUMNS_SHOWN]) or "none"
            more = f" and {len(found) - COLUMNS_SHOWN} more" if len(found) > COLUMNS_SHOWN else ""
            detail = f"no column {column!r}; it has: {named}{more}"
            faults.add(f"missing_column:{column}", path.name, "stops", detail)
        elif found.count(column) > 1:
            detail = f"{found.count(column)} columns are named {column!r}; rename all but one"
            faults.add(f"repeated_column:{column}", path.name, "stops", detail)
    return any(found.count(column) != 1 for column in columns)


def tell_lower_header(
    path: Path, columns: Sequence[str], rows: Sequence[Sequence[str]], faults: Faults
) -> None:
    """Say so where one of the first `rows` names all columns: a title stands above the header."""
    for above, cells in enumerate(rows[:TITLE_ROWS]):
        if above and set(columns) <= {tidy(cell) for cell in cells}:
            detail = f"the header seems to be row {above + 1}, below a title: add --skip-rows {above}"
            faults.add("title_rows", path.name, "stops", detail)
            return
