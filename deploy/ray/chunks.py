"""Splits an archive of tickets (CSV, JSONL or Parquet) into chunks that can be read independently.

A chunk is a range of a file: bytes of CSV and JSONL, rows of Parquet. It never splits a record. Workers on
several machines read their chunks without the rest of the file, and a job can resume. `models.tickets` reads
whole files only.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SUFFIXES = {".csv": "csv", ".tsv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
csv.field_size_limit(100_000_000)


class ArchiveError(ValueError):
    """The archive cannot be read; the message names the file and the reason."""


@dataclass(frozen=True)
class Chunk:
    """Records `first_row` … `first_row + rows` of the archive: `start` … `end` of one file."""

    number: int
    path: str
    kind: str
    start: int
    end: int
    first_row: int
    rows: int
    header: tuple[str, ...] = ()
    delimiter: str = ","


def files_of(data: Path) -> list[Path]:
    """The file, or the archive files of a folder in order of their names."""
    if not data.exists():
        raise ArchiveError(f"{data}: no such file or folder")
    found = [data] if data.is_file() else sorted(p for p in data.iterdir() if p.suffix in SUFFIXES)
    if not found or found[0].suffix not in SUFFIXES:
        raise ArchiveError(f"{data}: expected {', '.join(SUFFIXES)}")
    return found


def cut(data: Path, rows: int) -> list[Chunk]:
    """Chunks of at most `rows` records; reads CSV and JSONL completely, but only the footer of Parquet."""
    chunks: list[Chunk] = []
    first_row = 0
    for path in files_of(data):
        kind = SUFFIXES[path.suffix]
        header: tuple[str, ...] = ()
        delimiter = ","
        if kind == "parquet":
            import pyarrow.parquet

            total = pyarrow.parquet.ParquetFile(path).metadata.num_rows
            spans = [(at, min(at + rows, total), min(rows, total - at)) for at in range(0, total, rows)]
        else:
            with path.open("rb") as file:
                if kind == "csv":
                    header, delimiter = _csv_header(file, path)
                spans = list(_spans(file, rows, delimiter if kind == "csv" else None))
        for start, end, count in spans:
            chunks.append(
                Chunk(len(chunks), str(path), kind, start, end, first_row, count, header, delimiter)
            )
            first_row += count
    return chunks


def _csv_header(file: Any, path: Path) -> tuple[tuple[str, ...], str]:
    """Read the header: column names and the delimiter; `file` is then at the first record."""
    line = file.readline().decode("utf-8-sig")
    delimiter = max(",;\t", key=line.count)
    header = tuple(name.strip() for name in next(csv.reader([line], delimiter=delimiter), []))
    if not header or len(set(header)) != len(header):
        raise ArchiveError(f"{path.name}: the first line must name the columns, each once")
    return header, delimiter


def _spans(file: Any, rows: int, delimiter: str | None) -> Iterator[tuple[int, int, int]]:
    """(start, end, records), in bytes. `csv` finds the end of a record, which may contain line breaks."""
    position = start = file.tell()

    def lines() -> Iterator[str]:
        nonlocal position
        for line in file:
            position += len(line)
            yield line.decode("utf-8", "replace")

    records = csv.reader(lines(), delimiter=delimiter) if delimiter else lines()
    count = 0
    for record in records:
        if not (any(record) if delimiter else record.strip()):
            continue
        count += 1
        if count == rows:
            yield start, position, count
            start, count = position, 0
    if count:
        yield start, position, count


def read(chunk: Chunk) -> list[dict[str, Any]]:
    """The records of a chunk, as many as `chunk.rows`; a JSONL line that is not an object is {}."""
    if chunk.kind == "parquet":
        return _read_parquet(chunk)
    with Path(chunk.path).open("rb") as file:
        file.seek(chunk.start)
        text = file.read(chunk.end - chunk.start).decode("utf-8", "replace")
    if chunk.kind == "csv":
        records = csv.reader(io.StringIO(text, newline=""), delimiter=chunk.delimiter)
        return [dict(zip(chunk.header, record, strict=False)) for record in records if any(record)]
    return [_object(line) for line in text.split("\n") if line.strip()]


def _object(line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _read_parquet(chunk: Chunk) -> list[dict[str, Any]]:
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(chunk.path)
    records: list[dict[str, Any]] = []
    at = 0
    for group in range(file.metadata.num_row_groups):
        size = file.metadata.row_group(group).num_rows
        first, last = max(chunk.start, at), min(chunk.end, at + size)
        if first < last:
            records += file.read_row_group(group).slice(first - at, last - first).to_pylist()
        at += size
    return records
