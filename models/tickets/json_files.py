"""Reads JSON: one object per line, or one array of objects; "a.b" is the field b of the object a."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from models.tickets.encodings import broken_encoding, is_broken, open_text
from models.tickets.faults import Faults
from models.tickets.header import missing

NOT_PLAIN = "an object instead of text; name one of its fields: {name}.{field}"
NOT_JSON = "not a JSON object on one line"
DEEPEST = 5  # levels of nested fields that a message lists
ROWS_LISTED = 20  # rows whose nested fields a message lists


def read(
    path: Path, columns: list[str], optional: list[str], faults: Faults, encoding: str | None
) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of the file; see `rows.read_rows`."""
    with open_text(path, encoding, faults) as file:
        records = _array_in(path, file, faults)
        if records is None:
            file.seek(0)
            records = _lines_of(path, file, encoding, faults)
        seen: dict[str, None] = {}
        rows = 0
        for row, record in records:
            rows += 1
            if not isinstance(record, dict):
                faults.add("malformed_row", path.name, "drops", NOT_JSON, row)
                continue
            seen.update(dict.fromkeys(record))
            seen.update((name, None) for name in columns if "." in name and _values(record, name))
            if rows <= ROWS_LISTED:
                seen.update(dict.fromkeys(_dotted(record)))
            plain = as_plain(path, row, record, [*columns, *optional], faults)
            if plain is not None:
                yield row, plain
    if not rows and not faults.count("broken_encoding"):
        faults.add("empty_file", path.name, "stops", "the file is empty")
    elif seen:
        missing(path, columns, list(seen), faults)


def _array_in(path: Path, file: Any, faults: Faults) -> Iterator[tuple[int, Any]] | None:
    """The elements of a file that is one array, or one object with an array; None for JSON lines."""
    first = next((line for line in file if line.strip()), "").lstrip("\ufeff \t")
    if not first.startswith(("[", "{")) or (first.startswith("{") and _is_json(first)):
        return None
    file.seek(0)
    try:
        whole = json.load(file)
    except (ValueError, RecursionError):
        return None
    if isinstance(whole, dict):
        lists = [name for name, value in whole.items() if isinstance(value, list) and _holds_objects(value)]
        if len(lists) != 1:
            return iter([(1, whole)])
        faults.add("inner_array", path.name, "keeps", f"read the array in the field {lists[0]!r}")
        whole = whole[lists[0]]
    return enumerate(whole, start=1)


def _holds_objects(values: list[Any]) -> bool:
    return any(isinstance(value, dict) for value in values)


def _is_json(line: str) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _lines_of(path: Path, file: Any, encoding: str | None, faults: Faults) -> Iterator[tuple[int, Any]]:
    """(line number, the value on the line, or None if the line is not JSON)."""
    for row, line in enumerate(file, start=1):
        if not line.strip():
            continue
        if is_broken(line):
            broken_encoding(path, row, encoding, faults)
            continue
        try:
            yield row, json.loads(line)
        except (ValueError, RecursionError):  # RecursionError: thousands of nested brackets
            yield row, None


def as_plain(
    path: Path, row: int, record: Mapping[str, Any], names: Sequence[str], faults: Faults
) -> dict[str, str] | None:
    """The named fields of a record as text; None, with a fault, if one of them is an object."""
    plain: dict[str, str] = {}
    for name in names:
        values = _values(record, name)
        for value in values:
            if isinstance(value, dict | list):
                field = next(iter(value), "name") if isinstance(value, dict) else "0"
                detail = NOT_PLAIN.format(name=name, field=field)
                faults.add("malformed_row", path.name, "drops", detail, row)
                return None
        texts = list(dict.fromkeys(text for text in map(_as_text, values) if text))
        if len(texts) > 1:
            detail = f"several values of {name!r}, joined with line breaks (to choose one: {name}.0)"
            faults.add(f"several_values:{name}", path.name, "keeps", detail, row)
        plain[name] = "\n".join(texts)
    return plain


def _values(record: Mapping[str, Any], name: str) -> list[Any]:
    """All values of a field, one for each object of an array; empty if there is no such field."""
    found: list[Any] = [record]
    if name in record:  # the field's name itself may contain a dot
        found = [record[name]]
    else:
        for part in name.split("."):
            found = [inner for value in found for inner in _field(value, part)]
    return [inner for value in found for inner in (value if isinstance(value, list) else [value])]


def _field(value: Any, part: str) -> list[Any]:
    """The field `part` of an object or of each object in an array, or the array element with that index."""
    if isinstance(value, Mapping):
        return [value[part]] if part in value else []
    if not isinstance(value, list):
        return []
    if part.isdecimal():
        return value[int(part) : int(part) + 1] if len(part) < 10 else []
    return [one[part] for one in value if isinstance(one, Mapping) and part in one]


def _dotted(record: Mapping[str, Any], above: str = "", depth: int = 0) -> Iterator[str]:
    """The names of a record's nested fields, as they are given on the command line."""
    for name, value in record.items():
        inner = value[0] if isinstance(value, list) and value else value
        if isinstance(inner, Mapping) and depth < DEEPEST:
            yield from _dotted(inner, f"{above}{name}.", depth + 1)
        elif above:
            yield above + name


def _as_text(value: object) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):  # both mean "no value"
        return ""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)
