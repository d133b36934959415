"""Feedback as training data: the tickets that were reported, with the teams that solved them.

The text of a ticket comes from the service's own database if LARKFIELD_FEEDBACK_STORE_TEXT allowed it to be
kept, otherwise from the helpdesk's own export (`--tickets`), joined by ticket id. Ticket files are read as
training reads them (`models.tickets`).
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from models.files import atomic_write
from models.text import join
from models.tickets.columns import ID_COLUMNS, tidy
from models.tickets.columns import ticket_id as id_in
from models.tickets.faults import Faults
from models.tickets.rows import read_rows

COLUMNS = ("ticket_id", "text", "team")
IDS_SHOWN = 3

Row = dict[str, str]  # by COLUMNS


def read_tickets(
    path: Path, id_column: str | None, text_columns: Sequence[str], team_column: str | None
) -> list[Row]:
    """The tickets of a file with the keys COLUMNS; several text columns are joined by line breaks.

    Rows without an id get one from the file's name and the row number. If `team_column` is None, only texts
    are read. DataError lists what is missing; other faults are printed.
    """
    faults = Faults()
    required = [*text_columns, *([team_column] if team_column else []), *([id_column] if id_column else [])]
    optional = [name for name in ID_COLUMNS if name not in required]
    tickets = []
    for number, values in read_rows(path, required, optional, faults):
        given = id_in(values, id_column)
        texts = [values[column] for column in text_columns if values[column]]
        team = tidy(values[team_column]) if team_column else ""
        tickets.append(
            {"ticket_id": given or f"{path.stem}-{number}", "text": "\n".join(texts), "team": team}
        )
    faults.stop_if_fatal()
    for fault in faults:
        print(fault, file=sys.stderr)
    return tickets


def corrections(rows: Iterable[Any], texts: Mapping[str, str]) -> Iterator[Row]:
    """Feedback for training: id, text and team of each solved ticket, oldest first.

    If the helpdesk sent a source, the id is written source:id. Feedback without a team is left out.
    """
    for row in rows:
        if row.actual.startswith("#"):
            continue
        text = row.text or texts.get(as_text(row.ticket_id))
        if text and text.strip():
            name = row.ticket_id or row.request_id
            yield {
                "ticket_id": f"{row.source}:{name}" if row.source else name,
                "text": text,
                "team": row.actual,
            }


def as_text(ticket_id: str | None) -> str:
    """An id in the form that ids of files are compared in: "1.0", as spreadsheets write numbers, is "1"."""
    return id_in({"ticket_id": ticket_id or ""})


def merged(base: Sequence[Row], fresh: Iterable[Row]) -> list[Row]:
    """Earlier tickets and new ones, which replace earlier ones of the same id.

    If several earlier tickets have one id, only the one with the same text is replaced.
    """
    newer = {row["ticket_id"]: row for row in fresh}
    times = Counter(row["ticket_id"] for row in base)
    rows, met = [], set()
    for row in base:
        new = newer.get(row["ticket_id"])
        if new is not None and (times[row["ticket_id"]] == 1 or same_text(row) == same_text(new)):
            met.add(row["ticket_id"])
            row = new
        rows.append(row)
    return rows + [row for name, row in newer.items() if name not in met]


def one_team_per_text(rows: Iterable[Row], fresh: Iterable[Row]) -> tuple[list[Row], int]:
    """The rows with one team for each text that has feedback, the newest; and how many rows changed."""
    teams = {same_text(row): row["team"] for row in fresh}
    changed = 0
    settled = []
    for row in rows:
        team = teams.get(same_text(row), row["team"])
        changed += team != row["team"]
        settled.append(row | {"team": team})
    return settled, changed


def same_text(row: Row) -> str:
    """The text as the network reads it, so that texts which it cannot tell apart are equal."""
    return " ".join(join(None, row.get("text", "")).text.split()).casefold()


def conflicts(rows: Iterable[Row]) -> int:
    """How many texts have two teams or more."""
    teams: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        teams[same_text(row)].add(row["team"])
    return sum(len(each) > 1 for each in teams.values())


def of_one_source(rows: Sequence[Any], source: str | None) -> Sequence[Any]:
    """The feedback of one helpdesk; ValueError if there are several and `source` names none of them."""
    sources = sorted({row.source for row in rows if row.source})
    if source is not None:
        if source not in sources:
            known = ", ".join(sources) or "none"
            raise ValueError(f"no feedback has the source {source!r}; sources: {known}")
        return [row for row in rows if row.source == source]
    if len({row.source for row in rows}) > 1:
        raise ValueError(
            f"there is feedback from several helpdesks ({', '.join(sources)}), whose ids may be the same: "
            "use --source to name the helpdesk of the file in --tickets"
        )
    return rows


def export(chosen: argparse.Namespace) -> int:
    """Write the CSV and print a summary."""
    from service.feedback.store import Store

    url = database(chosen.url)
    columns = chosen.text_column or ["text"]
    base: list[Row] = []
    if chosen.add_to:
        base = read_tickets(chosen.add_to, chosen.id_column, columns, chosen.team_column)
    store = Store(url)
    rows: Sequence[Any] = store.feedback_with_text(chosen.since)
    store.close()
    if chosen.tickets or chosen.source:
        rows = of_one_source(rows, chosen.source)
    texts: dict[str, str] = {}
    if chosen.tickets:
        tickets = read_tickets(chosen.tickets, chosen.id_column or _id_column(chosen.tickets), columns, None)
        texts = {row["ticket_id"]: row["text"] for row in tickets}
    fresh = list(corrections(rows, texts))
    if not fresh and not base:
        lost = "none of them with a text: see --tickets" if rows else "none in that time"
        _print_unmatched(rows, texts, chosen.tickets)
        raise ValueError(f"nothing to train on: {len(rows)} feedbacks, {lost}; no file was written")
    written, changed = one_team_per_text(merged(base, fresh), fresh)
    write_tickets(chosen.out, written)
    _print_summary(rows, fresh, base, changed)
    _print_unmatched(rows, texts, chosen.tickets)
    if left := conflicts(written):
        print(f"{left} texts have two teams in {chosen.add_to}, and there is no feedback on them")
    print(f"{len(written)} tickets in {chosen.out}; next: make train DATA={chosen.out}")
    return 0


def _print_summary(rows: Sequence[Any], fresh: Sequence[Row], base: Sequence[Row], changed: int) -> None:
    wrong = sum(row.predicted is not None and row.predicted != row.actual for row in rows)
    verdicts = sum(row.actual.startswith("#") for row in rows)
    lost = len(rows) - len(fresh) - verdicts
    print(f"{len(rows)} feedbacks, {wrong} corrected the router, {lost} have no text")
    if verdicts:
        print(f"{verdicts} left out: no team fits, or it is not a ticket")
    if changed:
        print(f"{changed} tickets got the team of the newest feedback on the same text")
    if base:
        earlier = {row["team"] for row in base}
        new = Counter(row["team"] for row in fresh if row["team"] not in earlier)
        if new:
            named = ", ".join(f"{team!r} ({count})" for team, count in new.most_common())
            print(f"teams that the earlier tickets do not have: {named}")
    if lost and not fresh:
        print("no text: name the helpdesk's own export with --tickets, or set LARKFIELD_FEEDBACK_STORE_TEXT")


def _print_unmatched(rows: Sequence[Any], texts: Mapping[str, str], path: Path | None) -> None:
    """Print how many ids the file does not have, with examples of ids from both sides."""
    if path is None:
        return
    wanted = [row.ticket_id for row in rows if not row.text and row.ticket_id]
    missing = [given for given in wanted if as_text(given) not in texts]
    if missing:
        here = ", ".join(repr(one) for one in missing[:IDS_SHOWN])
        there = ", ".join(repr(one) for one in list(texts)[:IDS_SHOWN]) or "none"
        print(
            f"{len(missing)} of {len(wanted)} ticket ids are not in {path.name}: "
            f"feedback has {here}; the file has {there}"
        )


def _id_column(path: Path) -> str | None:
    """None if the file has one of ID_COLUMNS; otherwise the first of them, so that it is reported missing."""
    faults = Faults()
    for name in ID_COLUMNS:
        for _ in read_rows(path, [name], [], faults):
            return None
    return ID_COLUMNS[0]


def database(given: str | None) -> str:
    """The database to use: `given`, or that of the settings; ValueError if there is none to read."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    from service.settings import Settings

    url = given or Settings().feedback_url
    if not url:
        raise ValueError("feedback is switched off: set LARKFIELD_FEEDBACK_URL or name a database with --url")
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise ValueError(
            "the URL of the database is not valid; an example is sqlite:///feedback.db"
        ) from None
    # Opening a database with a mistyped name would create an empty one.
    if parsed.get_backend_name() == "sqlite" and not Path(parsed.database or "").is_file():
        raise ValueError(f"{parsed.database}: there is no such database")
    return url


def write_tickets(path: Path, tickets: Iterable[Mapping[str, str]]) -> None:
    """Write a CSV; `path` may be one of the input files."""
    with atomic_write(path) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", errors="replace", newline="")
        writer = csv.DictWriter(text, COLUMNS)
        writer.writeheader()
        writer.writerows(tickets)
        text.detach()
