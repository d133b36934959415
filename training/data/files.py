"""Rows out of CSV, JSONL and Parquet files, with every row that cannot be read named by its number.

Rows are numbered as a spreadsheet shows them: the header of a CSV is row 1, its first ticket row 2.
A JSONL row is its line, a Parquet row counts from 1.
"""

import codecs
import csv
import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

# stops: nothing is trained. drops: the rows are left out and counted. keeps: the rows stay, you are told.
Effect = Literal["stops", "drops", "keeps"]
SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
DELIMITERS = ",;\t|"
# A field longer than this is a quote that never closes; reading on would pull in the whole file.
MAX_FIELD_CHARACTERS = 10_000_000
ROWS_SHOWN = 8
HEADER_CHARACTERS = 65_536
COLUMNS_SHOWN = 20
NOT_PLAIN = "a list or an object where text should be"
NOT_JSON = "not one JSON object on a line of its own"
# What the files of other programs begin with, whatever their names end with.
OTHER_FILES = {
    b"PK\x03\x04": "an Excel or ZIP file",
    b"\xd0\xcf\x11\xe0": "an old Excel file",
    b"\x1f\x8b": "a gzip file",
    b"PAR1": "a Parquet file",
    b"SQLite format 3": "an SQLite database",
    b"%PDF": "a PDF",
    b"<!doctype": "a web page",
    b"<html": "a web page",
    b"<?xml": "an XML file",
}
WAYS_OUT = {
    ".xlsx": "save the sheet as CSV (UTF-8)",
    ".xls": "save the sheet as CSV (UTF-8)",
    ".ods": "save the sheet as CSV",
    ".json": "write one object on each line and name it .jsonl",
    ".txt": "a table of tickets in it? then name it .csv",
    ".gz": "unpack it first",
    ".zip": "unpack it first",
}


class DataError(ValueError):
    """The data cannot be trained on; the message lists every fault that was found."""


@dataclass
class Fault:
    """One kind of fault in one file, with the numbers of all rows that have it."""

    kind: str
    file: str
    effect: Effect
    detail: str
    rows: list[int] = field(default_factory=list)

    def __str__(self) -> str:
        detail = printable(self.detail)
        if not self.rows:
            outcome = {"stops": "stops here", "drops": "dropped", "keeps": "kept"}[self.effect]
            return f"{self.file}: {detail} ({outcome})"
        outcome = {"stops": "cannot stay", "drops": "dropped", "keeps": "kept"}[self.effect]
        shown = ", ".join(map(str, self.rows[:ROWS_SHOWN])) + (", …" if len(self.rows) > ROWS_SHOWN else "")
        noun = "row" if len(self.rows) == 1 else "rows"
        return f"{self.file}: {len(self.rows):,} {noun} {outcome}: {detail} ({noun} {shown})"


class Faults:
    """All faults of a data set, one entry for each kind and file."""

    def __init__(self) -> None:
        self._faults: dict[tuple[str, str], Fault] = {}

    def add(self, kind: str, file: str, effect: Effect, detail: str, row: int | None = None) -> None:
        fault = self._faults.setdefault((kind, file), Fault(kind, file, effect, detail))
        if row is not None:
            fault.rows.append(row)

    def __iter__(self) -> Iterator[Fault]:
        order = {"stops": 0, "drops": 1, "keeps": 2}
        return iter(sorted(self._faults.values(), key=lambda fault: order[fault.effect]))

    def count(self, kind: str) -> int:
        """Rows with faults of this kind, over all files."""
        return sum(len(fault.rows) for fault in self if fault.kind == kind)

    def dropped(self, file: str) -> int:
        """Rows of this file that are left out."""
        return sum(len(fault.rows) for fault in self if fault.file == file and fault.effect == "drops")

    @property
    def fatal(self) -> bool:
        """Whether anything was found that the data cannot be used with."""
        return any(fault.effect == "stops" for fault in self)

    def stop_if_fatal(self) -> None:
        """Raise DataError with everything found so far when the data cannot be used with it."""
        if self.fatal:
            raise DataError("\n".join(["the data cannot be used:", *(f"  - {fault}" for fault in self)]))

    def to_json(self) -> list[dict]:
        return [{**asdict(fault), "count": len(fault.rows)} for fault in self]


def read_rows(
    path: Path, columns: Sequence[str], optional: Sequence[str], faults: Faults, encoding: str | None = None
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (row number, values by column) for each readable row; all others go to `faults`.

    `columns` must exist, `optional` ones are taken when they do. `encoding` (text files only) is found
    from the byte-order mark, else UTF-8. DataError for what is no file of a kind in SUFFIXES.
    """
    check_kind(path)
    reader = {".parquet": _parquet_rows, ".jsonl": _json_rows, ".ndjson": _json_rows}.get(
        path.suffix.lower(), _csv_rows
    )
    try:
        yield from reader(path, list(columns), list(optional), faults, encoding)
    except UnicodeError as error:
        read_as = encoding or "the encoding of its byte-order mark"
        raise DataError(f"{path}: cannot be read as {read_as}: {error}") from None


def check_kind(path: Path) -> None:
    """DataError unless `path` is a file of a kind that can be read, by its name and its first bytes."""
    expected = f"expected a file that ends with {', '.join(SUFFIXES)}"
    if not path.is_file():
        raise DataError(f"{path}: {'is no file' if path.exists() else 'no such file'}; {expected}")
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        hint = f" ({WAYS_OUT[suffix]})" if suffix in WAYS_OUT else ""
        kind = f"files that end with {suffix}" if suffix else "files whose name has no ending"
        raise DataError(f"{path}: {kind} are not read; {expected}{hint}")
    if suffix == ".parquet":
        return
    with path.open("rb") as file:
        start = file.read(256)
    for mark, kind in OTHER_FILES.items():
        if start.lstrip().lower().startswith(mark.lower()):
            raise DataError(f"{path}: this is {kind}, whatever its name says; {expected}, and is one")


def printable(text: str, most: int = 2_000) -> str:
    """For a terminal: control characters and broken bytes replaced, cut after `most` characters."""
    shown = "".join(one if one.isprintable() else "\ufffd" for one in text[:most])
    return shown + ("…" if len(text) > most else "")


def _missing(path: Path, columns: list[str], found: Sequence[str], faults: Faults) -> bool:
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


def _open_text(path: Path, encoding: str | None, faults: Faults) -> IO[str]:
    """Open for reading; undecodable bytes become lone surrogates, found again by `_is_broken`."""
    with path.open("rb") as file:
        start = file.read(512)
    if start.startswith(codecs.BOM_UTF8):
        faults.add("byte_order_mark", path.name, "keeps", "the file starts with a byte-order mark, removed")
    if encoding is None:
        encoding = _marked(start)
        if encoding:
            detail = f"read as {encoding.upper()}, as its byte-order mark says"
            faults.add("byte_order_mark", path.name, "keeps", detail)
        elif start.count(0) > len(start) // 4:
            detail = "full of zero bytes: not UTF-8 (UTF-16 without its mark? then --encoding utf-16-le)"
            raise DataError(f"{path}: {detail}")
    encoding = encoding or "utf-8-sig"
    return path.open(encoding=encoding, errors=_on_broken_bytes(encoding), newline="")


def _marked(start: bytes) -> str | None:
    """The encoding that a byte-order mark names; UTF-32's begins as UTF-16's does."""
    if start.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    return "utf-16" if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else None


def _on_broken_bytes(encoding: str) -> str:
    """How to go on after bytes that an encoding does not have; DataError where it is none of text."""
    try:
        like_ascii = "a\n".encode(encoding).endswith(b"a\n")
        b"a".decode(encoding, "replace")
    except (LookupError, UnicodeError):
        raise DataError(f"--encoding {encoding}: there is no such encoding of text") from None
    return "surrogateescape" if like_ascii else "replace"


def _is_broken(text: str) -> bool:
    return any("\udc80" <= character <= "\udcff" for character in text) if not text.isascii() else False


def _broken_encoding(path: Path, row: int, encoding: str | None, faults: Faults) -> None:
    detail = "bytes that are not UTF-8 (a Windows export? then --encoding cp1252)"
    detail = f"bytes that are not {encoding}" if encoding else detail
    faults.add("broken_encoding", path.name, "drops", detail, row)


def _find_delimiter(sample: str, columns: list[str]) -> str:
    """The delimiter under which the header holds all columns, else most fields."""

    def header(delimiter: str) -> list[str]:
        return next(csv.reader(io.StringIO(sample, newline=""), delimiter=delimiter), [])

    return max(
        DELIMITERS, key=lambda d: (set(columns) <= {name.strip() for name in header(d)}, len(header(d)))
    )


def _csv_rows(
    path: Path, columns: list[str], optional: list[str], faults: Faults, encoding: str | None
) -> Iterator[tuple[int, dict[str, str]]]:
    with _open_text(path, encoding, faults) as file:
        sample = file.read(HEADER_CHARACTERS)
        file.seek(0)
        if not sample.strip():
            faults.add("empty_file", path.name, "stops", "the file is empty")
            return
        delimiter = _find_delimiter(sample, columns)
        if delimiter != "," and path.suffix.lower() != ".tsv":
            faults.add(
                "delimiter", path.name, "keeps", f"fields are separated by {delimiter!r}, read as such"
            )
        csv.field_size_limit(MAX_FIELD_CHARACTERS)
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        try:
            header = [name.strip() for name in next((values for values in reader if values), [])]
        except csv.Error as error:
            faults.add("malformed_row", path.name, "stops", f"the header cannot be read: {error}", 1)
            return
        if _missing(path, columns, header, faults):
            if any(map(_is_broken, header)):
                _broken_encoding(path, 1, encoding, faults)
            return
        wanted = {name: header.index(name) for name in [*columns, *optional] if name in header}
        yield from _csv_records(path, reader, len(header), wanted, encoding, faults)


def _csv_records(
    path: Path, reader: Any, width: int, wanted: dict[str, int], encoding: str | None, faults: Faults
) -> Iterator[tuple[int, dict[str, str]]]:
    row = 1
    while True:
        row += 1
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if "unexpected end" in str(error) or "field limit" in str(error):
                detail = "this row opens a quote that never closes; everything after it is lost"
                faults.add("unclosed_quote", path.name, "stops", detail, row)
                return
            faults.add("malformed_row", path.name, "drops", "a quote in the middle of a field", row)
            continue
        if not values:  # an empty line
            continue
        if len(values) != width:
            faults.add("ragged_row", path.name, "drops", f"not the {width} fields that the header names", row)
        elif any(_is_broken(values[index]) for index in wanted.values()):
            _broken_encoding(path, row, encoding, faults)
        else:
            yield row, {name: values[index] for name, index in wanted.items()}


def _json_rows(
    path: Path, columns: list[str], optional: list[str], faults: Faults, encoding: str | None
) -> Iterator[tuple[int, dict[str, str]]]:
    seen: dict[str, None] = {}
    rows = 0
    with _open_text(path, encoding, faults) as file:
        for row, line in enumerate(file, start=1):
            if not line.strip():
                continue
            rows += 1
            if _is_broken(line):
                _broken_encoding(path, row, encoding, faults)
                continue
            try:
                values = json.loads(line)
            except (ValueError, RecursionError):  # a hundred thousand brackets or digits are no object either
                values = None
            if not isinstance(values, dict):
                faults.add("malformed_row", path.name, "drops", NOT_JSON, row)
                continue
            seen.update(dict.fromkeys(values))
            plain = _plain(path, row, {name: values.get(name) for name in [*columns, *optional]}, faults)
            if plain:
                yield row, plain
    if not rows:
        faults.add("empty_file", path.name, "stops", "the file is empty")
    elif seen:
        _missing(path, columns, list(seen), faults)


def _plain(path: Path, row: int, values: dict[str, Any], faults: Faults) -> dict[str, str] | None:
    """The values of one row as text; None where one is a list, an object or bytes that are not UTF-8."""
    if any(isinstance(value, dict | list) for value in values.values()):
        faults.add("malformed_row", path.name, "drops", NOT_PLAIN, row)
        return None
    texts = {name: _as_text(value) for name, value in values.items()}
    if any(isinstance(values[name], bytes) and _is_broken(text) for name, text in texts.items()):
        _broken_encoding(path, row, None, faults)
        return None
    return texts


def _as_text(value: object) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):  # both say: nothing there
        return ""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def _parquet_rows(
    path: Path, columns: list[str], optional: list[str], faults: Faults, encoding: str | None
) -> Iterator[tuple[int, dict[str, str]]]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        names = file.schema_arrow.names
        if _missing(path, columns, names, faults):
            return
        wanted = [name for name in [*columns, *optional] if names.count(name) == 1]
        if file.metadata.num_rows == 0:
            faults.add("empty_file", path.name, "stops", "the file holds no rows")
        row = 0
        for batch in file.iter_batches(batch_size=4096, columns=wanted):
            for values in batch.to_pylist():
                row += 1
                plain = _plain(path, row, {name: values[name] for name in wanted}, faults)
                if plain:
                    yield row, plain
    except (pyarrow.ArrowException, OSError) as error:
        faults.add("unreadable_file", path.name, "stops", f"not a Parquet file, or a damaged one: {error}")
