"""`python -m service.feedback export`: write feedback as training data."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from service.feedback.export import export
from service.feedback.rows import StoreUnavailable


def day(text: str) -> float:
    """A date or time in ISO form as seconds since 1970; UTC unless it has an offset."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a date such as 2026-11-01") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def main(arguments: list[str] | None = None) -> int:
    """Run the command; exit status 2 if an argument, a file or the database cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m service.feedback")
    command = parser.add_subparsers(required=True).add_parser(
        "export", help="write feedback as training data"
    )
    command.add_argument("--out", type=Path, required=True, help="the CSV to write")
    command.add_argument("--url", help="the database; default: LARKFIELD_FEEDBACK_URL")
    command.add_argument(
        "--since",
        type=day,
        default=0.0,
        metavar="DAY",
        help="only feedback received from this day on, e.g. 2026-11-01 (UTC)",
    )
    command.add_argument("--tickets", type=Path, help="an export of the helpdesk that has the texts")
    command.add_argument("--add-to", type=Path, help="earlier training tickets; they are kept")
    command.add_argument("--id-column", default="ticket_id", help="the column with the ticket id")
    command.add_argument("--text-column", action="append", help="the column with the text; repeatable")
    command.add_argument("--team-column", default="team", help="the column of --add-to with the team")
    chosen = parser.parse_args(arguments)
    try:
        return export(chosen)
    except (ValueError, OSError, StoreUnavailable) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
