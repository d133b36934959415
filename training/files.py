"""Rows out of CSV, JSONL and Parquet files, with every row that cannot be read named by its number.

Rows are numbered as a spreadsheet shows them: the header of a CSV is row 1, its first ticket row 2.
A JSONL row is its line, a Parquet row counts from 1.
"""

import codecs
import csv
import io
import json
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
NOT_PLAIN = "a list or an object where text should be"


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
        outcome = {"stops": "stops training", "drops": "dropped", "keeps": "kept"}[self.effect]
        if not self.rows:
            return f"{self.file}: {self.detail} ({outcome})"
        shown = ", ".join(map(str, self.rows[:ROWS_SHOWN])) + (", …" if len(self.rows) > ROWS_SHOWN else "")
        noun = "row" if len(self.rows) == 1 else "rows"
        return f"{self.file}: {len(self.rows):,} {noun} {outcome}: {self.detail} ({noun} {shown})"


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

    def stop_if_fatal(self) -> None:
        """Raise DataError with everything found so far when any of it stops training."""
        faults = list(self)
        if any(fault.effect == "stops" for fault in faults):
            raise DataError(
                "\n".join(["the data cannot be trained on:", *(f"  - {fault}" for fault in faults)])
            )

    def to_json(self) -> list[dict]:
        return [{**asdict(fault), "count": len(fault.rows)} for fault in self]


def read_rows(
    path: Path, columns: Sequence[str], optional: Sequence[str], faults: Faults, encoding: str | None = None
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (row number, values by column) for each readable row; all others go to `faults`.

    `columns` must exist, `optional` ones are taken when they do. `encoding` (text files only) is found
    from the byte-order mark, else UTF-8.
    """
    reader = {".parquet": _parquet_rows, ".jsonl": _json_rows, ".ndjson": _json_rows}.get(
        path.suffix.lower(), _csv_rows
    )
    return reader(path, list(columns), list(optional), faults, encoding)


def _missing(path: Path, columns: list[str], found: Sequence[str], faults: Faults) -> bool:
    for column in columns:
        if column not in found:
            named = ", ".join(found) or "none"
            faults.add(
                f"missing_column:{column}", path.name, "stops", f"no column {column!r}; it has: {named}"
            )
    return any(column not in found for column in columns)


def _open_text(path: Path, encoding: str | None, faults: Faults) -> IO[str]:
    """Open for reading; undecodable bytes become lone surrogates, found again by `_is_broken`."""
    with path.open("rb") as file:
        start = file.read(4)
    if start.startswith(b"\xef\xbb\xbf"):
        faults.add("byte_order_mark", path.name, "keeps", "the file starts with a byte-order mark, removed")
    if encoding is None:
        utf16 = start.startswith((b"\xff\xfe", b"\xfe\xff"))
        encoding = "utf-16" if utf16 else "utf-8-sig"
        if utf16:
            faults.add("byte_order_mark", path.name, "keeps", "read as UTF-16, as its byte-order mark says")
    try:
        codecs.lookup(encoding)
    except LookupError:
        raise DataError(f"--encoding {encoding}: there is no such encoding") from None
    errors = "replace" if encoding == "utf-16" else "surrogateescape"
    return path.open(encoding=encoding, errors=errors, newline="")


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
    seen: set[str] = set()
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
            except (json.JSONDecodeError, RecursionError):  # a hundred thousand brackets are no object either
                values = None
            if not isinstance(values, dict):
                faults.add("malformed_row", path.name, "drops", "not one JSON object", row)
                continue
            seen.update(values)
            fields = {name: values.get(name) for name in [*columns, *optional]}
            if any(isinstance(value, dict | list) for value in fields.values()):
                faults.add("malformed_row", path.name, "drops", NOT_PLAIN, row)
                continue
            yield row, {name: _as_text(value) for name, value in fields.items()}
    if not rows:
        faults.add("empty_file", path.name, "stops", "the file is empty")
    elif seen:
        _missing(path, columns, sorted(seen), faults)


def _as_text(value: object) -> str:
    return "" if value is None else value if isinstance(value, str) else str(value)


def _parquet_rows(
    path: Path, columns: list[str], optional: list[str], faults: Faults, encoding: str | None
) -> Iterator[tuple[int, dict[str, str]]]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        faults.add("unreadable_file", path.name, "stops", f"not a Parquet file: {error}")
        return
    if _missing(path, columns, file.schema_arrow.names, faults):
        return
    wanted = [name for name in [*columns, *optional] if name in file.schema_arrow.names]
    if file.metadata.num_rows == 0:
        faults.add("empty_file", path.name, "stops", "the file holds no rows")
    row = 0
    for batch in file.iter_batches(batch_size=4096, columns=wanted):
        for values in batch.to_pylist():
            row += 1
            if any(isinstance(value, dict | list) for value in values.values()):
                faults.add("malformed_row", path.name, "drops", NOT_PLAIN, row)
                continue
            yield row, {name: _as_text(values[name]) for name in wanted}
