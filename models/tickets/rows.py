"""Reads rows from CSV, JSON, spreadsheets and Parquet, and reports the numbers of rows that cannot be read.

Rows are numbered as in a spreadsheet: the header of a table is row 1, the first ticket row 2. A row of JSON
lines has its line number; rows of a JSON array and of Parquet count from 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from models.tickets import csv_files, json_files, parquet_files, sheets
from models.tickets.faults import DataError, Faults

CSV = (".csv", ".tsv")
JSON = (".jsonl", ".ndjson", ".json")
SHEETS = (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods")
PARQUET = ".parquet"
SUFFIXES = (*CSV, *JSON, *SHEETS, PARQUET)
# The first bytes of files that are not tables of tickets.
OTHER_FILES = {
    b"PK\x03\x04": "a ZIP file without a spreadsheet",
    b"\x1f\x8b": "a gzip file",
    b"PAR1": "a Parquet file",
    b"SQLite format 3": "an SQLite database",
    b"%PDF": "a PDF",
    b"{\\rtf": "a text processor's file",
    b"<!doctype": "a web page",
    b"<html": "a web page",
    b"<?xml": "an XML file",
}
WAYS_OUT = {
    ".txt": "if it is a table of tickets, name it .csv",
    ".gz": "unpack it first",
    ".zip": "unpack it first",
}

Row = tuple[int, dict[str, str]]  # row number, values by column


def read_rows(
    path: Path,
    columns: Sequence[str],
    optional: Sequence[str],
    faults: Faults,
    encoding: str | None = None,
    skip_rows: int = 0,
) -> Iterator[Row]:
    """Yield (row number, values by column) for each readable row; all others are added to `faults`.

    `columns` must exist; `optional` columns are read if they exist. In JSON and Parquet "a.b" is the field b
    of the object a. `encoding` (text files only) is detected by default. `skip_rows` rows above the header of
    a table are skipped. Files are read row by row, except JSON arrays and spreadsheets. Raises DataError for
    a file that is of no kind in SUFFIXES.
    """
    kind = file_kind(path)
    if skip_rows and kind in (*JSON, PARQUET):
        raise DataError(f"{path}: --skip-rows is for tables with a header row, not for {kind} files")
    try:
        if kind in SHEETS:
            yield from sheets.read(path, list(columns), list(optional), faults, skip_rows)
        elif kind == PARQUET:
            yield from parquet_files.read(path, list(columns), list(optional), faults)
        elif kind in JSON:
            yield from json_files.read(path, list(columns), list(optional), faults, encoding)
        else:
            yield from csv_files.read(path, list(columns), list(optional), faults, encoding, skip_rows)
    except UnicodeError as error:
        read_as = encoding or "the encoding of its byte-order mark"
        raise DataError(f"{path}: cannot be read as {read_as}: {error}") from None


def file_kind(path: Path) -> str:
    """The suffix in SUFFIXES that a file is read as; DataError for any other file.

    Spreadsheets are recognised by their first bytes, other files by their names.
    """
    expected = f"expected a file that ends with {', '.join(SUFFIXES)}"
    if not path.is_file():
        raise DataError(f"{path}: {'is not a file' if path.exists() else 'no such file'}; {expected}")
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        hint = f" ({WAYS_OUT[suffix]})" if suffix in WAYS_OUT else ""
        kind = f"files that end with {suffix}" if suffix else "files without an extension"
        raise DataError(f"{path}: {kind} cannot be read; {expected}{hint}")
    if suffix == PARQUET:
        return suffix
    if sheets.is_spreadsheet(path):
        return ".xlsx"
    with path.open("rb") as file:
        start = file.read(256)
    for mark, other in OTHER_FILES.items():
        if start.lstrip().lower().startswith(mark.lower()):
            raise DataError(f"{path}: despite its name, this is {other}; {expected}")
    if suffix in SHEETS:
        raise DataError(f"{path}: despite its name, this is not a spreadsheet; if it is CSV, name it .csv")
    return suffix
