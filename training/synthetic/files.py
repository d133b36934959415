"""Synthetic tickets as a CSV file with the columns of the Larkfield data."""

import csv
from collections.abc import Iterable
from dataclasses import astuple, fields
from pathlib import Path

from training.synthetic.tickets import Ticket


def write_csv(path: Path, tickets: Iterable[Ticket]) -> None:
    """Write ticket_id, text, team, style; the same bytes on every system (UTF-8, line feeds)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in fields(Ticket)])
        writer.writerows(astuple(ticket) for ticket in tickets)
