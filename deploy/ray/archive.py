"""Route an archive of millions of tickets with Ray Data: `make archive DATA=tickets.csv`.

    python deploy/ray/archive.py tickets.csv --out runs/archive --text-column subject,body

The archive is cut into chunks. One actor per core holds the bundle, routes a chunk and writes one part of the
output atomically. When a worker dies, Ray gives its chunk to another worker, which writes the same part.
When the whole job dies, the next start routes only the chunks whose part is missing. Each record of the
archive, even a faulty one, gets one row in the output, with its number and id.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from chunks import ArchiveError, Chunk, cut, files_of, read

from models.bundle import BundleError, load_bundle
from models.decision import decide
from models.files import atomic_write
from models.text import join
from service.inference.runtime import Runtime, pad
from service.settings import SHIPPED_BUNDLE, Settings

ROWS = 2_000
ID_COLUMNS = ("ticket_id", "id")


class Router:
    """The actor of one worker process: loads the bundle, routes chunks and writes their parts."""

    def __init__(self, bundle: str, out: str, text_columns: list[str], id_column: str | None) -> None:
        self.runtime = Runtime.load(Path(bundle), Settings(provider="auto"))
        self.out = Path(out)
        self.text_columns = text_columns
        self.id_column = id_column

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Called by Ray Data with one chunk at a time: write its part, return its counts."""
        done = [self.route(Chunk(**json.loads(text))) for text in batch["chunk"]]
        return {name: [counts[name] for counts in done] for name in done[0]}

    def route(self, chunk: Chunk) -> dict[str, Any]:
        """Route a chunk and write its part; return its counts and the process id."""
        rows = self.rows(chunk)
        write_part(self.out, chunk.number, rows)
        decisions = [row["decision"] for row in rows]
        return {
            "number": chunk.number,
            "records": len(rows),
            "routed": decisions.count("route"),
            "review": decisions.count("review"),
            "failed": decisions.count(None),
            "process": os.getpid(),
        }

    def rows(self, chunk: Chunk) -> list[dict[str, Any]]:
        """One output row per record, in order."""
        records = read(chunk)
        rows = [self.blank(record, chunk.first_row + place) for place, record in enumerate(records)]
        texts = [self.text(record) for record in records]
        good = [place for place, text in enumerate(texts) if text.strip()]
        encodings = self.runtime.tokenizer.encode_batch([texts[place] for place in good])
        order = sorted(range(len(good)), key=lambda index: len(encodings[index].ids))
        for batch in self.batches(order, encodings):
            logits = self.runtime.run(pad([encodings[index].ids for index in batch]))
            for index, row_logits in zip(batch, logits, strict=True):
                decision = decide(row_logits, encodings[index], self.runtime.config)
                rows[good[index]] |= {
                    "team": decision.team,
                    "confidence": decision.confidence,
                    "decision": decision.decision,
                    "reasons": " ".join(decision.reasons),
                    "error": None,
                }
        return rows

    def batches(self, order: list[int], encodings: list[Any]) -> Iterator[list[int]]:
        """Group tickets of similar length, within the runtime's limit of padded tokens."""
        batch: list[int] = []
        for index in order:
            longest = max(1, len(encodings[index].ids))
            full = len(batch) >= self.runtime.batch_tickets
            if batch and (full or longest * (len(batch) + 1) > self.runtime.batch_tokens):
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch

    def blank(self, record: dict[str, Any], row: int) -> dict[str, Any]:
        names = (self.id_column,) if self.id_column else ID_COLUMNS
        given = next((record[name] for name in names if record.get(name) not in (None, "")), None)
        return {
            "row": row,
            "ticket_id": None if given is None else str(given),
            "team": None,
            "confidence": None,
            "decision": None,
            "reasons": "",
            "version": self.runtime.version,
            "error": "no text",
        }

    def text(self, record: dict[str, Any]) -> str:
        """The record's text columns as training and serving join them."""
        values = [value for name in self.text_columns if isinstance(value := record.get(name), str)]
        if not values:
            return ""
        *subjects, body = values
        return join("\n".join(subjects) or None, body).text


def part(out: Path, number: int) -> Path:
    return out / f"part-{number:06d}.parquet"


def write_part(out: Path, number: int, rows: list[dict[str, Any]]) -> None:
    """Write a part atomically, even while another worker writes the same one."""
    import pyarrow
    import pyarrow.parquet

    schema = pyarrow.schema(
        [
            ("row", pyarrow.int64()),
            ("ticket_id", pyarrow.string()),
            ("team", pyarrow.string()),
            ("confidence", pyarrow.float64()),
            ("decision", pyarrow.string()),
            ("reasons", pyarrow.string()),
            ("version", pyarrow.string()),
            ("error", pyarrow.string()),
        ]
    )
    with atomic_write(part(out, number)) as file:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows, schema), file)


def plan(data: Path, out: Path, bundle: Path, text_columns: list[str], id_column: str | None) -> list[Chunk]:
    """The job's chunks: those of an earlier start of the same job if `out` holds one, else new ones.

    ArchiveError when `out` belongs to another job: another archive, bundle or choice of columns.
    """
    seen = hashlib.sha256()
    for path in files_of(data):
        status = path.stat()
        seen.update(f"{path.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    job = {
        "archive": seen.hexdigest(),
        "bundle": load_bundle(bundle).config.digest,
        "text_columns": text_columns,
        "id_column": id_column,
    }
    file = out / "_job.json"
    if file.exists():
        earlier = json.loads(file.read_text(encoding="utf-8"))
        chunks = [Chunk(**{**chunk, "header": tuple(chunk["header"])}) for chunk in earlier.pop("chunks")]
        if earlier != job:
            changed = ", ".join(name for name in job if earlier.get(name) != job[name])
            raise ArchiveError(f"{out} has another job ({changed}): choose another --out, or delete it")
        return chunks
    if out.exists() and any(out.iterdir()):
        raise ArchiveError(f"{out} has other files: choose an empty or new folder")
    out.mkdir(parents=True, exist_ok=True)
    chunks = cut(data, ROWS)
    check_columns(chunks, text_columns)
    with atomic_write(file) as plan_file:
        plan_file.write(json.dumps({**job, "chunks": [asdict(chunk) for chunk in chunks]}).encode())
    return chunks


def check_columns(chunks: list[Chunk], text_columns: list[str]) -> None:
    """Raise ArchiveError before routing if the first records have none of the text columns."""
    if not chunks:
        raise ArchiveError("the archive has no records")
    names = {name for record in read(chunks[0])[:100] for name in record}
    if not names & set(text_columns):
        raise ArchiveError(
            f"no column {', '.join(text_columns)} in the archive, only {', '.join(sorted(names))}"
        )


def run_ray(chunks: list[Chunk], arguments: dict[str, Any], workers: int | None) -> dict[str, int]:
    """Route chunks on the Ray cluster that RAY_ADDRESS names, or on one that is started here."""
    import ray

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    started = not ray.is_initialized()
    if started:
        join_cluster()
    try:
        cores = int(ray.cluster_resources().get("CPU", 1))
        size = workers or max(1, cores)
        items = [{"chunk": json.dumps(asdict(chunk))} for chunk in chunks]
        routed = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
            Router,
            batch_size=1,
            num_cpus=1,
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=size),
            fn_constructor_kwargs=arguments,
        )
        totals = dict.fromkeys(("records", "routed", "review", "failed"), 0)
        for counts in routed.iter_rows():
            for name in totals:
                totals[name] += counts[name]
            progress(totals["records"])
        return totals
    finally:
        if started:
            ray.shutdown()


def join_cluster(tries: int = 4) -> None:
    """Start Ray or join the cluster; try several times, as Ray's start times out on a busy machine."""
    import ray

    for left in reversed(range(tries)):
        try:
            ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
            return
        except Exception as error:  # Ray raises bare Exception here
            if not left or "timed out during startup" not in str(error):
                raise
            ray.shutdown()


def run_here(chunks: list[Chunk], arguments: dict[str, Any], seconds: float) -> tuple[int, float]:
    """The same job in this one process, for at most about `seconds`; (records, seconds taken)."""
    router = Router(**arguments)
    began = time.perf_counter()
    records = 0
    for chunk in chunks:
        records += len(router.rows(chunk))
        if time.perf_counter() - began > seconds:
            break
    return records, time.perf_counter() - began


def progress(records: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{records:,} tickets", end="", file=sys.stderr, flush=True)


def count_out(out: Path, chunks: list[Chunk]) -> int:
    """The number of rows in the output; AssertionError if a row is missing or occurs twice."""
    import pyarrow.parquet

    expected = 0
    for chunk in chunks:
        rows = pyarrow.parquet.read_table(part(out, chunk.number), columns=["row"])["row"].to_pylist()
        if rows != list(range(chunk.first_row, chunk.first_row + chunk.rows)):
            raise AssertionError(f"{part(out, chunk.number).name} does not hold its {chunk.rows} records")
        expected += len(rows)
    return expected


def main(given: list[str] | None = None) -> int:
    """Run the command; exit status 0 if the output has as many rows as the archive has records."""
    parser = argparse.ArgumentParser(prog="archive.py", description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path, help="a CSV, JSONL or Parquet file, or a folder of them")
    parser.add_argument("--out", type=Path, help="folder of the output; default: beside the archive")
    parser.add_argument("--bundle", type=Path, default=SHIPPED_BUNDLE)
    parser.add_argument("--text-column", default="text", help="several with commas: subject,body")
    parser.add_argument("--id-column", help="default: ticket_id or id, where there is one")
    parser.add_argument("--workers", type=int, help="actors; default: one per core of the cluster")
    parser.add_argument("--compare", type=float, default=5.0, help="seconds for the same job in one process")
    chosen = parser.parse_args(given)
    out: Path = (chosen.out or chosen.data.with_name(chosen.data.stem + "-routed")).resolve()
    columns = chosen.text_column.split(",")
    arguments = {
        "bundle": str(chosen.bundle.resolve()),
        "out": str(out),
        "text_columns": columns,
        "id_column": chosen.id_column,
    }
    try:
        chunks = plan(chosen.data.resolve(), out, chosen.bundle.resolve(), columns, chosen.id_column)
    except (ArchiveError, BundleError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for leftover in out.glob(".part-*.tmp"):
        leftover.unlink()
    waiting = [chunk for chunk in chunks if not part(out, chunk.number).exists()]
    before = sum(chunk.rows for chunk in chunks) - sum(chunk.rows for chunk in waiting)
    if before:
        print(f"{before:,} tickets were routed by an earlier start")
    if waiting and chosen.compare:
        records, seconds = run_here(waiting, arguments, chosen.compare)
        print(f"one process: {records / seconds:,.0f} tickets/s ({records:,} in {seconds:.1f} s)")
    if waiting:
        began = time.perf_counter()
        totals = run_ray(waiting, arguments, chosen.workers)
        seconds = time.perf_counter() - began
        rate = totals["records"] / seconds
        print(f"Ray: {rate:,.0f} tickets/s ({seconds:.1f} s, the start of the cluster included)")
        print(f"route {totals['routed']:,}, review {totals['review']:,}, without text {totals['failed']:,}")
    came_in = sum(chunk.rows for chunk in chunks)
    went_out = count_out(out, chunks)
    print(f"{came_in:,} tickets in, {went_out:,} out: {out}/part-*.parquet")
    return int(came_in != went_out)


if __name__ == "__main__":
    raise SystemExit(main())
