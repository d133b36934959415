"""Rows out of CSV, JSON, spreadsheets and Parquet, with every row that cannot be read named by its number.

Rows are numbered as a spreadsheet shows them: the header of a table is row 1, its first ticket row 2. A
row of JSON lines is its line; rows of a JSON array and of Parquet count from 1.
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
# What the files of other programs begin with, whatever their names end with.
OTHER_FILES = {
    b"PK\x03\x04": "a ZIP file that holds no spreadsheet",
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
    ".txt": "a table of tickets in it? then name it .csv",
    ".gz": "unpack it first",
    ".zip": "unpack it first",
}

Row = tuple[int, dict[str, str]]  # its number, its values by column


def read_rows(
    path: Path,
    columns: Sequence[str],
    optional: Sequence[str],
    faults: Faults,
    encoding: str | None = None,
    skip_rows: int = 0,
) -> Iterator[Row]:
    """Yield (row number, values by column) for each readable row; all others go to `faults`.

    `columns` must exist, `optional` ones are taken when they do; in JSON and Parquet "a.b" is the field b of
    the object a. `encoding` (text files only) is found where it is not given. `skip_rows` rows above the
    header of a table are left out. Large files are read row by row, except JSON arrays and spreadsheets.
    Raises DataError for what is no file of a kind in SUFFIXES.
    """
    kind = file_kind(path)
    if skip_rows and kind in (*JSON, PARQUET):
        raise DataError(f"{path}: --skip-rows is for tables with a header row, not for {kind}")
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
    """The suffix in SUFFIXES that a file is read as; DataError for every other file.

    A spreadsheet is known by its first bytes, whatever its name ends with; other files go by their names.
    """
    expected = f"expected a file that ends with {', '.join(SUFFIXES)}"
    if not path.is_file():
        raise DataError(f"{path}: {'is no file' if path.exists() else 'no such file'}; {expected}")
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        hint = f" ({WAYS_OUT[suffix]})" if suffix in WAYS_OUT else ""
        kind = f"files that end with {suffix}" if suffix else "files whose name has no ending"
        raise DataError(f"{path}: {kind} are not read; {expected}{hint}")
    if suffix == PARQUET:
        return suffix
    if sheets.is_spreadsheet(path):
        return ".xlsx"
    with path.open("rb") as file:
        start = file.read(256)
    for mark, other in OTHER_FILES.items():
        if start.lstrip().lower().startswith(mark.lower()):
            raise DataError(f"{path}: this is {other}, whatever its name says; {expected}, and is one")
    if suffix in SHEETS:
        raise DataError(f"{path}: this is no spreadsheet, whatever its name says; is it CSV? name it .csv")
    return suffix
