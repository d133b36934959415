"""Reads spreadsheets: .xlsx, .xlsb, .xls and .ods, recognised by their first bytes."""

from __future__ import annotations

import datetime
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from models.tickets.faults import DataError, Faults
from models.tickets.header import TITLE_ROWS, column_names, missing, tell_lower_header

ZIP = b"PK\x03\x04"
OLD_EXCEL = b"\xd0\xcf\x11\xe0"
OPEN_DOCUMENT = b"application/vnd.oasis.opendocument.spreadsheet"


def is_spreadsheet(path: Path) -> bool:
    """Whether the bytes of a file are those of a spreadsheet."""
    with path.open("rb") as file:
        start = file.read(4)
    if start != ZIP:
        return start == OLD_EXCEL
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if "mimetype" in names:
                with archive.open("mimetype") as file:
                    return file.read(len(OPEN_DOCUMENT)) == OPEN_DOCUMENT
    except (zipfile.BadZipFile, OSError, RuntimeError):
        return False
    return any(name.startswith("xl/") for name in names)


def read(
    path: Path, columns: list[str], optional: list[str], faults: Faults, skip_rows: int
) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows below the header of the first sheet that has the columns; see `rows.read_rows`."""
    from python_calamine import CalamineError, CalamineWorkbook, PasswordError

    try:
        book = CalamineWorkbook.from_path(str(path))
        names = [name for name in book.sheet_names if book.get_sheet_by_name(name).height]
        sheets = {name: book.get_sheet_by_name(name).to_python(skip_empty_area=False) for name in names}
    except PasswordError:
        raise DataError(f"{path}: is password-protected; save it without a password") from None
    except (CalamineError, OSError) as error:
        raise DataError(f"{path}: not a spreadsheet, or a damaged one: {error}") from None
    if not sheets:
        faults.add("empty_file", path.name, "stops", "the file is empty")
        return
    chosen = _sheet_with(sheets, columns, skip_rows)
    if len(sheets) > 1:
        detail = f"read the sheet {chosen!r}, not: {', '.join(name for name in sheets if name != chosen)}"
        faults.add("sheets", path.name, "keeps", detail)
    rows = sheets[chosen]
    header = column_names(path, list(map(as_text, rows[skip_rows])) if skip_rows < len(rows) else [], faults)
    if missing(path, columns, header, faults):
        tell_lower_header(path, columns, [list(map(as_text, row)) for row in rows[:TITLE_ROWS]], faults)
        return
    wanted = {name: header.index(name) for name in [*columns, *optional] if name in header}
    for number, row in enumerate(rows[skip_rows + 1 :], start=skip_rows + 2):
        values = {name: as_text(row[index]) for name, index in wanted.items()}
        if any(values.values()):
            yield number, values


def _sheet_with(sheets: dict[str, list[list[Any]]], columns: list[str], skip_rows: int) -> str:
    """The first sheet with the columns in its header or below a title; else the first sheet."""
    for rows in (slice(skip_rows, skip_rows + 1), slice(0, TITLE_ROWS)):
        for name, sheet in sheets.items():
            if any(set(columns) <= {as_text(cell).strip() for cell in row} for row in sheet[rows]):
                return name
    return next(iter(sheets))


def as_text(cell: Any) -> str:
    """A cell as text: 1234.0 becomes "1234", a date ISO 8601."""
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < 1e15:
        return str(int(cell))
    if isinstance(cell, datetime.datetime):
        return cell.isoformat(sep=" ")
    return str(cell)
