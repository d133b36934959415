"""Reads Parquet files, which needs pyarrow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from models.tickets.encodings import broken_encoding, is_broken
from models.tickets.faults import DataError, Faults
from models.tickets.header import missing
from models.tickets.json_files import as_plain

BATCH_ROWS = 4096


def read(
    path: Path, columns: list[str], optional: list[str], faults: Faults
) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of the file; see `rows.read_rows`."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise DataError(f"{path}: Parquet needs pyarrow: pip install pyarrow") from None
    try:
        file = pyarrow.parquet.ParquetFile(path)
        names = file.schema_arrow.names
        wanted = {name: _top_level(name, names) for name in [*columns, *optional]}
        if missing(
            path, columns, [*names, *(name for name in columns if wanted[name] not in (None, name))], faults
        ):
            return
        chosen = {name: top for name, top in wanted.items() if top and names.count(top) == 1}
        if file.metadata.num_rows == 0:
            faults.add("empty_file", path.name, "stops", "the file has no rows")
        row = 0
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=sorted(set(chosen.values()))):
            for values in batch.to_pylist():
                row += 1
                plain = as_plain(path, row, values, list(chosen), faults)
                if plain is None:
                    continue
                if any(map(is_broken, plain.values())):
                    broken_encoding(path, row, None, faults)
                else:
                    yield row, plain
    except (pyarrow.ArrowException, OSError) as error:
        faults.add("unreadable_file", path.name, "stops", f"not a Parquet file, or a damaged one: {error}")


def _top_level(name: str, names: list[str]) -> str | None:
    """The column of the file with `name`, which may be a nested field ("fields.summary")."""
    return next((top for top in (name, name.partition(".")[0]) if top in names), None)
