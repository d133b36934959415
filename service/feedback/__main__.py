"""`python -m service.feedback`: write feedback as training data; change the version of the database."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from service.feedback.export import database, export
from service.feedback.migrations import VERSION, migrate
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
    commands = parser.add_subparsers(required=True)
    _add_export(commands.add_parser("export", help="write feedback as training data"))
    _add_migrate(commands.add_parser("migrate", help="change the version of the database's schema"))
    chosen = parser.parse_args(arguments)
    try:
        return int(chosen.run(chosen))
    except (ValueError, OSError, StoreUnavailable) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _add_export(command: argparse.ArgumentParser) -> None:
    command.set_defaults(run=export)
    command.add_argument("--out", type=Path, required=True, help="the CSV to write")
    command.add_argument("--url", help="the database; default: LARKFIELD_FEEDBACK_URL")
    command.add_argument(
        "--since",
        type=day,
        default=0.0,
        metavar="DAY",
        help="only feedback received from this day on, e.g. 2026-11-01 (UTC)",
    )
    command.add_argument("--source", help="only feedback of this helpdesk, if there are several")
    command.add_argument("--tickets", type=Path, help="an export of the helpdesk that has the texts")
    command.add_argument("--add-to", type=Path, help="earlier training tickets; they are kept")
    command.add_argument("--id-column", help="the column with the ticket id; default: ticket_id or id")
    command.add_argument("--text-column", action="append", help="the column with the text; repeatable")
    command.add_argument("--team-column", default="team", help="the column of --add-to with the team")


def _add_migrate(command: argparse.ArgumentParser) -> None:
    command.set_defaults(run=migrate_database)
    command.add_argument("--url", help="the database; default: LARKFIELD_FEEDBACK_URL")
    command.add_argument(
        "--to",
        type=int,
        choices=range(1, VERSION + 1),
        default=VERSION,
        help="the version; an older one before you go back to an older release (default: the newest)",
    )


def migrate_database(chosen: argparse.Namespace) -> int:
    """Change the schema and print the versions."""
    from service.feedback.store import connect, reason_of

    engine = connect(database(chosen.url))
    try:
        with engine.begin() as connection:
            before = migrate(connection, chosen.to)
    except SQLAlchemyError as error:
        raise StoreUnavailable(reason_of(error)) from error
    finally:
        engine.dispose()
    print(
        f"schema version {before} -> {chosen.to}"
        if before != chosen.to
        else f"schema version {chosen.to}: nothing to do"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
