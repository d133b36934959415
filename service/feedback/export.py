"""Feedback as training data: the tickets that were reported, with the teams that solved them.

The text of a ticket comes from the service's own database where LARKFIELD_FEEDBACK_STORE_TEXT allowed it to
be kept, otherwise from the helpdesk's own export (`--tickets`), joined by ticket id.
"""

from __future__ import annotations

import argparse
import codecs
import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from models.files import atomic_write

COLUMNS = ("ticket_id", "text", "team")
MOST_CHARACTERS = 10_000_000  # of one field; more is a quote that never closes


def read_tickets(
    path: Path, id_column: str, text_columns: Sequence[str], team_column: str | None
) -> list[dict[str, str]]:
    """The tickets of a CSV (comma, semicolon, tab or bar) under the names that `make train` expects.

    Several text columns are put below each other. Rows without an id are named after the file and their row.
    ValueError names a column that is missing or there twice, and a file or line that cannot be read.
    """
    csv.field_size_limit(MOST_CHARACTERS)
    with path.open("rb") as start:
        wide = start.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    with path.open(newline="", encoding="utf-16" if wide else "utf-8-sig") as file:
        try:
            header = file.readline()
            file.seek(0)
            reader = csv.DictReader(file, delimiter=max(",;\t|", key=header.count), strict=True)
            names = list(reader.fieldnames or ())
            # Texts without a team are there to be found by their id.
            _check_columns(path, names, (team_column or id_column, *text_columns))
            return [
                {
                    "ticket_id": row.get(id_column) or f"{path.stem}-{number}",
                    "text": "\n".join(row[column] for column in text_columns if row[column]),
                    "team": (row[team_column] or "") if team_column else "",
                }
                for number, row in enumerate(reader, start=2)
            ]
        except UnicodeError:
            raise ValueError(f"{path.name} is no CSV in UTF-8: save it as one") from None
        except csv.Error as error:
            raise ValueError(f"{path.name} is no sound CSV: {error} (line {reader.line_num})") from None


def _check_columns(path: Path, names: list[str], needed: Iterable[str]) -> None:
    missing = [repr(column) for column in needed if column not in names]
    if missing:
        there = ", ".join(names)[:1_000] or "nothing"
        raise ValueError(f"{path.name} has no column {' and no column '.join(missing)}; it has: {there}")
    twice = [column for column in needed if names.count(column) > 1]
    if twice:
        raise ValueError(f"{path.name} has {names.count(twice[0])} columns {twice[0]!r}: rename all but one")


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
    from service.feedback.store import Store
    from service.settings import Settings

    url = chosen.url or Settings().feedback_url
    if not url:
        raise ValueError("feedback is switched off: set LARKFIELD_FEEDBACK_URL or name a database with --url")
    columns = chosen.text_column or ["text"]
    base: list[dict[str, str]] = []
    if chosen.add_to:
        base = read_tickets(chosen.add_to, chosen.id_column, columns, chosen.team_column)
    texts = {}
    if chosen.tickets:
        tickets = read_tickets(chosen.tickets, chosen.id_column, columns, None)
        texts = {row["ticket_id"]: row["text"] for row in tickets}
    expect_database(url)
    store = Store(url)
    rows = store.feedback_with_text(chosen.since)
    store.close()
    fresh = list(corrections(rows, texts))
    written = list(merged(base, fresh))
    if not written:
        lost = "none of them with a text: see --tickets" if rows else "none was given in that time"
        raise ValueError(f"nothing to train on: {len(rows)} feedbacks, {lost}; no file was written")
    write_tickets(chosen.out, written)
    wrong = sum(row.predicted is not None and row.predicted != row.actual for row in rows)
    print(f"{len(rows)} feedbacks, {wrong} corrected the router, {len(rows) - len(fresh)} have no text")
    if rows and not fresh:
        print("no text: name the helpdesk's own export with --tickets, or set LARKFIELD_FEEDBACK_STORE_TEXT")
    print(f"{len(written)} tickets in {chosen.out}; next: make train DATA={chosen.out}")
    return 0


def expect_database(url: str) -> None:
    """ValueError where there is none to read; reading would else make an empty one of a mistyped name."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parsed = make_url(url)
    except ArgumentError:
        raise ValueError("the address of the database cannot be read; one is sqlite:///feedback.db") from None
    if parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").is_file():
        raise ValueError(f"{parsed.database}: there is no such database")


def write_tickets(path: Path, tickets: Iterable[Mapping[str, str]]) -> None:
    """Write a CSV; `path` may be a file that was read before."""
    with atomic_write(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", errors="replace", newline="")
        writer = csv.DictWriter(text, COLUMNS)
        writer.writeheader()
        writer.writerows(tickets)
        text.detach()
