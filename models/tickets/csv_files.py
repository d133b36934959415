"""Reads CSV in the dialects that programs write: detects the delimiter and the escape of quotes, and rejoins
rows that an unquoted line break cut."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from models.tickets.encodings import broken_encoding, is_broken, open_text
from models.tickets.faults import Faults
from models.tickets.header import TITLE_ROWS, column_names, missing, tell_lower_header

DELIMITERS = ",;\t|"
# In a longer field a closing quote is missing; reading on would load the whole file into it.
MAX_FIELD_CHARACTERS = 10_000_000
SAMPLE_CHARACTERS = 65_536
FEWEST_SHAPED = 20  # rows needed to know the shapes of first fields
SHAPED_SHARE = 0.95
MOST_SHAPES = 3
QUOTE_INSIDE = "a quote in the middle of a field"
BACKSLASH = ' (MySQL and others write \\" for a quote: export it as "" instead)'

_SEPARATOR_LINE = re.compile(r'"?sep=(?P<delimiter>[,;|\t])"?[ \t]*\Z', re.IGNORECASE)
_LETTERS = re.compile(r"[^\W\d_]+")
_DIGITS = re.compile(r"\d+")

Record = tuple[int, list[str] | csv.Error]  # the row's number; its fields, or why they cannot be parsed


@dataclass(frozen=True)
class Dialect:
    """How a file separates and quotes its fields."""

    delimiter: str
    backslash: bool  # \" stands for a quote inside a quoted field
    separator_line: bool  # the first line is "sep=;", which Excel understands
    first_fields: frozenset[str]  # shapes of the first field of a row; empty if there are many

    def reader(self, lines: Iterable[str], strict: bool = True) -> Iterator[list[str]]:
        escape = {"escapechar": "\\", "doublequote": False} if self.backslash else {}
        return csv.reader(lines, delimiter=self.delimiter, strict=strict, **escape)  # type: ignore[arg-type]

    def begins(self, fields: list[str]) -> bool:
        """Whether the first of these fields has a shape that first fields have in this file."""
        return shape(fields[0]) in self.first_fields


def read(
    path: Path, columns: list[str], optional: list[str], faults: Faults, encoding: str | None, skip_rows: int
) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows below the header; see `rows.read_rows`."""
    with open_text(path, encoding, faults) as file:
        sample = file.read(SAMPLE_CHARACTERS)
        file.seek(0)
        if not sample.strip():
            faults.add("empty_file", path.name, "stops", "the file is empty")
            return
        dialect = find_dialect(sample, columns, skip_rows)
        _tell(path, dialect, faults)
        csv.field_size_limit(MAX_FIELD_CHARACTERS)
        records = _records(file, dialect)
        first = list(itertools.islice(records, max(skip_rows, TITLE_ROWS)))
        at = next((n for n, (_, fields) in enumerate(first) if n >= skip_rows and fields), None)
        cells = first[at][1] if at is not None else []
        if isinstance(cells, csv.Error):
            faults.add("malformed_row", path.name, "stops", f"the header cannot be read: {cells}", 1)
            return
        header = column_names(path, cells, faults)
        if missing(path, columns, header, faults):
            if any(map(is_broken, header)):
                broken_encoding(path, 1, encoding, faults)
            above = [fields if isinstance(fields, list) else [] for _, fields in first]
            tell_lower_header(path, columns, above, faults)
            return
        wanted = {name: header.index(name) for name in [*columns, *optional] if name in header}
        below = itertools.chain(first[(at or 0) + 1 :], records)
        yield from _rows(path, below, dialect, len(header), wanted, encoding, faults)


def find_dialect(sample: str, columns: list[str], skip_rows: int = 0) -> Dialect:
    """The dialect in which most of the sample parses as a table with these columns."""
    first_line = sample.lstrip("\ufeff").splitlines()[0] if sample.strip() else ""
    stated = _SEPARATOR_LINE.fullmatch(first_line)
    if stated:
        delimiter = stated["delimiter"]
    else:
        delimiter = max(DELIMITERS, key=lambda one: _how_well(sample, one, columns, skip_rows))
    dialect = Dialect(delimiter, False, stated is not None, frozenset())
    records = _sample_records(sample, dialect)
    if '\\"' in sample:
        escaped = Dialect(delimiter, True, stated is not None, frozenset())
        records_escaped = _sample_records(sample, escaped)
        if _badly_read(records) > _badly_read(records_escaped) == 0:
            dialect, records = escaped, records_escaped
    return Dialect(delimiter, dialect.backslash, dialect.separator_line, _first_fields(records[skip_rows:]))


def shape(field: str) -> str:
    """The pattern of a field: "a" for a run of letters, "0" for digits ("INC-0017" is "a-0")."""
    return _DIGITS.sub("0", _LETTERS.sub("a", field[:40].strip()))


def _how_well(sample: str, delimiter: str, columns: list[str], skip_rows: int) -> tuple[bool, int]:
    """Whether one of the first rows has all columns, and the number of fields of the first row."""
    reader = csv.reader(io.StringIO(sample, newline=""), delimiter=delimiter)
    try:
        records = list(itertools.islice(reader, skip_rows + TITLE_ROWS))
    except csv.Error:
        records = []
    fields = next((len(record) for record in records[skip_rows:] if record), 0)
    return any(set(columns) <= {name.strip() for name in record} for record in records), fields


def _sample_records(sample: str, dialect: Dialect) -> list[list[str] | csv.Error]:
    whole = sample if len(sample) < SAMPLE_CHARACTERS else sample[: sample.rfind("\n") + 1]
    records = [fields for _, fields in _records(io.StringIO(whole, newline=""), dialect)]
    if len(sample) == SAMPLE_CHARACTERS and records:  # its last quote may close after the sample
        records.pop()
    return records


def _badly_read(records: list[list[str] | csv.Error]) -> int:
    """The number of records that are errors or do not have as many fields as the first one."""
    width = next((len(one) for one in records if isinstance(one, list) and one), 0)
    return sum(isinstance(one, csv.Error) or (len(one) not in (0, width)) for one in records)


def _first_fields(records: list[list[str] | csv.Error]) -> frozenset[str]:
    """The few shapes of the first field of nearly every complete row; empty if there are many."""
    rows = [one for one in records if isinstance(one, list) and one]
    shapes = Counter(shape(one[0]) for one in rows[1:] if len(one) == len(rows[0]))
    common = {
        name: count
        for name, count in shapes.most_common(MOST_SHAPES)
        if count >= (1 - SHAPED_SHARE) * shapes.total()
    }
    if shapes.total() < FEWEST_SHAPED or sum(common.values()) < SHAPED_SHARE * shapes.total():
        return frozenset()
    return frozenset(common)


def _tell(path: Path, dialect: Dialect, faults: Faults) -> None:
    if dialect.separator_line:
        detail = f"its first line says sep={dialect.delimiter}, which is used as the delimiter"
        faults.add("separator_line", path.name, "keeps", detail)
    elif dialect.delimiter != "," and path.suffix.lower() != ".tsv":
        detail = f"fields are separated by {dialect.delimiter!r}"
        faults.add("delimiter", path.name, "keeps", detail)
    if dialect.backslash:
        detail = 'quotes inside fields are written \\", as MySQL does'
        faults.add("backslash_quotes", path.name, "keeps", detail)


def _records(file: Iterable[str], dialect: Dialect) -> Iterator[Record]:
    """Every record with its row number, including blank and unreadable ones; "sep=" is not a row."""
    lines = iter(file)
    if dialect.separator_line:
        next(lines, None)
    reader = dialect.reader(lines)
    for row in itertools.count(1):
        try:
            yield row, next(reader)
        except csv.Error as error:
            yield row, error
        except StopIteration:
            return


def _rows(
    path: Path,
    records: Iterator[Record],
    dialect: Dialect,
    width: int,
    wanted: dict[str, int],
    encoding: str | None,
    faults: Faults,
) -> Iterator[tuple[int, dict[str, str]]]:
    """The readable rows by column; faults of the other records are added to `faults`."""
    for row, fields in _rejoined(path, records, dialect, width, faults):
        if isinstance(fields, csv.Error):
            if "unexpected end" in str(fields) or "field limit" in str(fields):
                detail = "this row opens a quote that is never closed; nothing after it can be read"
                faults.add("unclosed_quote", path.name, "stops", detail, row)
                return
            faults.add("malformed_row", path.name, "drops", QUOTE_INSIDE + BACKSLASH, row)
        elif not fields:  # an empty line
            continue
        elif len(fields) != width:
            detail = (
                f"not the {width} fields of the header (a line break or {dialect.delimiter!r} in a field "
                "without quotes? then export with quotes)"
            )
            faults.add("ragged_row", path.name, "drops", detail, row)
        elif any(is_broken(fields[index]) for index in wanted.values()):
            broken_encoding(path, row, encoding, faults)
        else:
            yield row, {name: fields[index] for name, index in wanted.items()}


def _rejoined(
    path: Path, records: Iterator[Record], dialect: Dialect, width: int, faults: Faults
) -> Iterator[Record]:
    """Join rows that unquoted line breaks cut into pieces, if that is certain.

    It is certain if first fields have a characteristic shape (ids, dates), the first piece begins with such a
    field and the others do not, and together the pieces have as many fields as the header.
    """
    pieces: list[tuple[int, list[str]]] = []  # of a row that is not complete yet
    count = 0  # fields in these pieces
    for row, fields in records:
        if pieces and fields == []:
            continue
        if pieces and isinstance(fields, list) and not dialect.begins(fields):
            pieces.append((row, fields))
            count += len(fields) - 1
            if count < width:
                continue
            if count == width:
                detail = "an unquoted line break; joined with the lines below"
                faults.add("rejoined_row", path.name, "keeps", detail, pieces[0][0])
            yield pieces[0][0], _joined([fields for _, fields in pieces])
            pieces = []
            continue
        yield from pieces
        pieces = []
        if isinstance(fields, list) and 0 < len(fields) < width and dialect.begins(fields):
            pieces, count = [(row, fields)], len(fields)
        else:
            yield row, fields
    yield from pieces


def _joined(pieces: list[list[str]]) -> list[str]:
    """The fields of the joined pieces; the last field of a piece continues in the first of the next."""
    fields: list[list[str]] = [[]]
    for piece in pieces:
        fields[-1].append(piece[0])
        fields += [[one] for one in piece[1:]]
    return ["\n".join(lines) for lines in fields]
