"""Feedback becomes training data: `python -m service.feedback export` writes a CSV that `make train` reads.

    python -m service.feedback export --out corrected.csv --add-to tickets.csv

The text of a ticket comes from the service's own database where LARKFIELD_FEEDBACK_STORE_TEXT allowed it to
be kept, otherwise from the helpdesk's own export (`--tickets`), joined by ticket id.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from service.records import Store, StoreUnavailable

COLUMNS = ("ticket_id", "text", "team")


def texts_by_id(path: Path, id_column: str, text_column: str) -> dict[str, str]:
    """Ticket id -> text of a CSV; ValueError names a column that is missing."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        for column in (id_column, text_column):
            if column not in (reader.fieldnames or ()):
                raise ValueError(f"{path.name} has no column {column!r}, only {reader.fieldnames}")
        return {row[id_column]: row[text_column] for row in reader}


def corrections(rows: Iterable[Any], texts: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """Feedback that can be trained on: the solved ticket's id, text and real team."""
    for row in rows:
        text = row.text or texts.get(row.ticket_id or "")
        if text and text.strip():
            yield {"ticket_id": row.ticket_id or row.request_id, "text": text, "team": row.actual}


def merged(base: Iterable[dict[str, str]], fresh: Iterable[dict[str, str]]) -> Iterator[dict[str, str]]:
    """Earlier tickets and new ones; where both have a ticket id, the new team counts."""
    newer = {row["ticket_id"]: row for row in fresh}
    met = set()
    for row in base:
        met.add(row["ticket_id"])
        yield newer.get(row["ticket_id"], row)
    yield from (row for ticket_id, row in newer.items() if ticket_id not in met)


def export(chosen: argparse.Namespace) -> int:
    """Write the CSV and print what went into it."""
    url = chosen.url
    if url is None:
        from service.settings import Settings

        url = Settings().feedback_url
    if not url:
        raise ValueError("feedback is switched off: set LARKFIELD_FEEDBACK_URL or name a database with --url")
    texts = texts_by_id(chosen.tickets, chosen.id_column, chosen.text_column) if chosen.tickets else {}
    since = datetime.fromisoformat(chosen.since).replace(tzinfo=UTC).timestamp() if chosen.since else 0.0
    store = Store(url)
    rows = store.feedback_with_text(since)
    store.close()
    fresh = list(corrections(rows, texts))
    base: list[dict[str, str]] = []
    if chosen.add_to:
        with chosen.add_to.open(newline="", encoding="utf-8-sig") as file:
            base = [{name: row.get(name) or "" for name in COLUMNS} for row in csv.DictReader(file)]
    written = list(merged(base, fresh))
    with chosen.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(written)
    wrong = sum(row.predicted is not None and row.predicted != row.actual for row in rows)
    print(f"{len(rows)} feedbacks, {wrong} corrected the router, {len(rows) - len(fresh)} have no text")
    print(f"{len(written)} tickets in {chosen.out}; next: make train DATA={chosen.out}")
    if rows and not fresh:
        print("no text: name the helpdesk's own export with --tickets, or set LARKFIELD_FEEDBACK_STORE_TEXT")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m service.feedback")
    command = parser.add_subparsers(required=True).add_parser(
        "export", help="write feedback as training data"
    )
    command.add_argument("--out", type=Path, required=True, help="the CSV to write")
    command.add_argument("--url", help="the database; default: LARKFIELD_FEEDBACK_URL")
    command.add_argument("--since", help="only feedback received from this day on, e.g. 2026-11-01 (UTC)")
    command.add_argument("--tickets", type=Path, help="a CSV of the helpdesk with the texts")
    command.add_argument("--id-column", default="ticket_id", help="its column with the ticket id")
    command.add_argument("--text-column", default="text", help="its column with the text")
    command.add_argument("--add-to", type=Path, help="earlier tickets (ticket_id, text, team) to keep")
    chosen = parser.parse_args(arguments)
    try:
        return export(chosen)
    except (ValueError, OSError, StoreUnavailable) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    raise SystemExit(main())
