"""`POST /feedback`: the helpdesk reports which team really solved a ticket; and what that is good for.

`install` hangs two things into the service: the decision log, which remembers behind each answer what was
predicted, and the endpoint, which acknowledges only what is durable. Feedback becomes training data with

    python -m service.feedback export --out corrected.csv --add-to tickets.csv

The text of a ticket comes from the service's own database where LARKFIELD_FEEDBACK_STORE_TEXT allowed it to
be kept, otherwise from the helpdesk's own export (`--tickets`), joined by ticket id.
"""

from __future__ import annotations

import argparse
import codecs
import csv
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from fastapi import Depends
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from service.decisions import Decided, DecisionLog, StoreUnavailable, opener

if TYPE_CHECKING:
    from service.app import Application
    from service.core import Answer, Service

log = logging.getLogger("larkfield.feedback")

Identifier = Annotated[str, StringConstraints(min_length=1, max_length=200)]
_GIVEN: Any = {"ticket_id": "T-1001", "team": "payment"}
_TAKEN: Any = {
    "status": "created",
    "ticket_id": "T-1001",
    "request_id": "5f0c9b1e2d3a4c5600000017",
    "team": "payment",
    "predicted": "returns",
    "correct": False,
}


class FeedbackRequest(BaseModel):
    """Who really solved a ticket."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [_GIVEN]})

    ticket_id: Identifier | None = Field(None, description="The id that came with the ticket.")
    request_id: Identifier | None = Field(None, description="Or the X-Request-ID of its answer.")
    team: Identifier = Field(description="The team that solved it; one of the bundle's teams.")

    @model_validator(mode="after")
    def _one_name(self) -> Self:
        if (self.ticket_id is None) == (self.request_id is None):
            raise ValueError("name the ticket by ticket_id or by request_id, one of the two")
        return self


class FeedbackResponse(BaseModel):
    """What is stored now, for good."""

    model_config = ConfigDict(json_schema_extra={"examples": [_TAKEN]})

    status: Literal["created", "unchanged", "changed"]
    ticket_id: str | None
    request_id: str | None
    team: str
    predicted: str | None = Field(description="What was answered; null when that is not known.")
    correct: bool | None = Field(description="Whether that was right.")


def install(app: Application, service: Service) -> None:
    """Add POST /feedback and the decision log; nothing when LARKFIELD_FEEDBACK_URL is empty."""
    settings = service.settings
    app.state.store = store = opener(settings.feedback_url) if settings.feedback_url else None
    if store is None:
        return
    counter = service.metrics.counter
    dropped = counter("decisions_dropped", "Decisions that the database could not take in time.")
    failures = counter("store_failures", "Times that the feedback database could not be used.")
    decisions = DecisionLog(store, on_dropped=dropped.inc, on_failure=failures.inc)

    def remember(answer: Answer) -> None:
        decision, encoding = answer.decision, answer.encoding
        decisions.record(
            Decided(
                answer.request_id,
                answer.ticket.ticket_id,
                decision.team,
                decision.decision,
                decision.confidence,
                answer.runtime.version,
                len(encoding.ids),
                encoding.unknown,
                time(),
                answer.joined.text if settings.feedback_store_text else None,
            )
        )

    service.observers.append(remember)
    service.on_start.append(decisions.start)
    service.on_stop.append(decisions.stop)
    _add_endpoint(app, service, decisions, failures.inc)


class Gate:
    """Shut for a moment after a failure, so that requests do not pile up before a database that hangs."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.opens_at = 0.0
        self.reason = ""

    def enter(self) -> None:
        """StoreUnavailable, at once, while the gate is shut."""
        if monotonic() < self.opens_at:
            raise StoreUnavailable(self.reason)

    def shut(self, reason: str) -> bool:
        """Shut the gate; False if it was shut already, which is no failure of its own."""
        if monotonic() < self.opens_at:
            return False
        self.reason, self.opens_at = reason, monotonic() + self.seconds
        return True


def _add_endpoint(app: Application, service: Service, decisions: DecisionLog, failed: Any) -> None:
    from service.problems import Problem, unavailable
    from service.routes import problem_responses, takes_json

    counter = service.metrics.counter
    given = counter("feedback", "Feedback by team, counted when it is first given.", "predicted", "actual")
    wrong = counter("feedback_wrong", "Feedback that named another team than predicted.", "predicted")

    gate = Gate(service.settings.retry_after_seconds)

    @app.post(
        "/feedback",
        summary="Report the team that solved a ticket",
        tags=["feedback"],
        dependencies=[Depends(takes_json)],
        responses=problem_responses(401, 413, 415, 422, 500, 503),
    )
    def feedback(body: FeedbackRequest) -> FeedbackResponse:
        """Saying it twice counts once; another team later replaces the first. 200 means: durable."""
        teams = service.loaded().config.teams
        if body.team not in teams:
            message = "must be one of: " + ", ".join(teams)
            raise Problem(422, f"team {message}", errors=[{"field": "team", "message": message}])
        try:
            gate.enter()
            decisions.flush()  # the ticket may have been routed this very moment
            receipt = decisions.store().give(body.team, ticket_id=body.ticket_id, request_id=body.request_id)
        except StoreUnavailable as error:
            if gate.shut(str(error)):
                failed()
                log.error("feedback was not stored", extra={"reason": str(error)})
            raise unavailable(
                f"The feedback was not stored: {error}.", service.settings.retry_after_seconds
            ) from None
        if receipt.status == "created":
            given.labels(receipt.predicted or "unknown", receipt.actual).inc()
            if receipt.predicted not in (None, receipt.actual):
                wrong.labels(receipt.predicted).inc()
        return FeedbackResponse(
            status=receipt.status,
            ticket_id=receipt.ticket_id,
            request_id=receipt.request_id,
            team=receipt.actual,
            predicted=receipt.predicted,
            correct=None if receipt.predicted is None else receipt.predicted == receipt.actual,
        )


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
    from service.records import Store
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
    """A CSV, written beside and renamed: `--out` may be the file of `--add-to`."""
    beside = path.with_name(f".{path.name}.writing")
    try:
        with beside.open("w", newline="", encoding="utf-8", errors="replace") as file:
            writer = csv.DictWriter(file, COLUMNS)
            writer.writeheader()
            writer.writerows(tickets)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def day(text: str) -> float:
    """Seconds since 1970 of a day or a moment in ISO form; UTC where it names no other time."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no day such as 2026-11-01") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def main(arguments: list[str] | None = None) -> int:
    """The command line; exit code 2 where something given cannot be used."""
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
    command.add_argument("--tickets", type=Path, help="a CSV of the helpdesk with the texts")
    command.add_argument("--add-to", type=Path, help="a CSV of earlier tickets to keep")
    command.add_argument("--id-column", default="ticket_id", help="their column with the ticket id")
    command.add_argument(
        "--text-column", action="append", help="the column of both with the text; repeatable"
    )
    command.add_argument("--team-column", default="team", help="the column of --add-to with the team")
    chosen = parser.parse_args(arguments)
    try:
        return export(chosen)
    except (ValueError, OSError, StoreUnavailable) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
