"""`POST /feedback`: the helpdesk reports which team solved a ticket.

`install` adds the decision log, which stores what was predicted for each ticket, and the endpoint, which
answers 200 only when the feedback is on disk. This command turns feedback into training data:

    python -m service.feedback export --out corrected.csv --add-to tickets.csv
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic, perf_counter, time
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from models.tickets.columns import team_name
from service.api.schema import SomeTicketId, Source
from service.feedback.decision_log import DecisionLog, opener
from service.feedback.rows import NO_TEAM, Decided, StoreUnavailable
from service.inference.queue import DeadlineExecutor

if TYPE_CHECKING:
    from service.feedback.store import Receipt, Store
    from service.inference.service import Answer, Service

log = logging.getLogger("larkfield.feedback")

T = TypeVar("T")
ANSWER_SECONDS = 15.0  # longer than the database's own limits, which say what was wrong

RequestId = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Outcome = Literal["none_of_these", "not_a_ticket"]
UNKNOWN_TEAM = "unknown_team"  # in metrics, for every team that the bundle does not know
_GIVEN: Any = {"ticket_id": "T-1001", "team": "payment"}
_TAKEN: Any = {
    "status": "created",
    "ticket_id": "T-1001",
    "request_id": "5f0c9b1e2d3a4c5600000017",
    "source": None,
    "team": "payment",
    "known": True,
    "predicted": "returns",
    "correct": False,
}


class TicketName(BaseModel):
    """The ticket that feedback is about."""

    model_config = ConfigDict(extra="forbid", strict=True)

    ticket_id: SomeTicketId | None = Field(None, description="The ticket_id in the request to /route.")
    request_id: RequestId | None = Field(None, description="Or the X-Request-ID of its answer.")
    source: Source | None = Field(None, description="The helpdesk that the id belongs to, as in POST /route.")

    @model_validator(mode="after")
    def _one_name(self) -> Self:
        if (self.ticket_id is None) == (self.request_id is None):
            raise ValueError("name the ticket by ticket_id or by request_id, one of the two")
        return self

    def fields(self) -> dict[str, str | None]:
        """The arguments that identify the ticket in the store."""
        return {"ticket_id": self.ticket_id, "request_id": self.request_id, "source": self.source}


class FeedbackRequest(TicketName):
    """The team that solved a ticket, or the verdict that no team fits."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [_GIVEN]})

    team: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = Field(
        None, description="The team that solved it; it may be one that the bundle does not know."
    )
    outcome: Outcome | None = Field(
        None, description="Instead of a team: no team fits, or it is not a ticket."
    )

    @field_validator("team")
    @classmethod
    def _is_a_team(cls, value: str | None) -> str | None:
        if value is None:
            return None
        name = team_name(value)
        if not name or name.startswith("#"):
            raise ValueError("a team's name must not be empty or begin with #")
        return name

    @model_validator(mode="after")
    def _one_verdict(self) -> Self:
        if (self.team is None) == (self.outcome is None):
            raise ValueError("give the team that solved the ticket, or an outcome, one of the two")
        return self


class FeedbackResponse(BaseModel):
    """The feedback as it is stored."""

    model_config = ConfigDict(json_schema_extra={"examples": [_TAKEN]})

    status: Literal["created", "unchanged", "changed"]
    ticket_id: str | None
    request_id: str | None
    source: str | None
    team: str | None = Field(description="null if an outcome was given.")
    known: bool = Field(description="Whether the bundle knows the team; if not, train again to add it.")
    predicted: str | None = Field(description="The team that was predicted; null if not known.")
    correct: bool | None = Field(description="Whether the prediction was right; null if not known.")


class RemovedFeedback(BaseModel):
    """Whether there was feedback to remove."""

    status: Literal["removed", "unchanged"]


def install(app: FastAPI, service: Service) -> None:
    """Add POST /feedback and the decision log; nothing when LARKFIELD_FEEDBACK_URL is empty."""
    settings = service.settings
    app.state.store = store = opener(settings.feedback_url) if settings.feedback_url else None
    if store is None:
        return
    counter = service.metrics.counter
    dropped = counter("decisions_dropped", "Decisions that could not be written to the database.")
    failures = counter("store_failures", "Failures of the feedback database.")
    decisions = DecisionLog(store, on_dropped=dropped.inc, on_failure=failures.inc)

    def record(answer: Answer) -> None:
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
                answer.ticket.source,
                " ".join(decision.reasons),
            )
        )

    service.observers.append(record)
    service.on_start.append(decisions.start)
    service.on_stop.append(decisions.stop)
    _add_endpoint(app, service, decisions, failures.inc)


class CircuitBreaker:
    """Fails calls at once for some seconds after a failure, so that they do not queue for a hanging database.

    As in M. Nygard, "Release It!" (2007): open means that calls fail, closed that they go through.
    """

    def __init__(self, open_seconds: float) -> None:
        self.open_seconds = open_seconds
        self.closes_at = 0.0
        self.reason = ""

    def check(self) -> None:
        """Raise StoreUnavailable, with the reason of the failure, while the breaker is open."""
        if monotonic() < self.closes_at:
            raise StoreUnavailable(self.reason)

    def open(self, reason: str) -> bool:
        """Open the breaker after a failure; False if it was open already, so that no failure counts twice."""
        if monotonic() < self.closes_at:
            return False
        self.reason, self.closes_at = reason, monotonic() + self.open_seconds
        return True


def _add_endpoint(app: FastAPI, service: Service, decisions: DecisionLog, failed: Any) -> None:
    from service.api.problems import Problem, unavailable
    from service.http.routes import problem_responses

    counter = service.metrics.counter
    received = counter("feedback", "Feedback by team; repeated feedback counts once.", "predicted", "actual")
    wrong = counter("feedback_wrong", "Feedback that names another team than the predicted one.", "predicted")
    breaker = CircuitBreaker(service.settings.retry_after_seconds)
    responses = problem_responses(401, 413, 415, 422, 500, 503)

    @contextmanager
    def stored() -> Iterator[Store]:
        """The database with every queued decision in it; Problem 503 if it fails."""
        try:
            breaker.check()
            decisions.flush()  # the decision on this ticket may still be queued
            yield decisions.store()
        except StoreUnavailable as error:
            if breaker.open(str(error)):
                failed()
                log.error("feedback was not stored", extra={"reason": str(error)})
            raise unavailable(
                f"The feedback was not stored: {error}.", service.settings.retry_after_seconds
            ) from None

    def add(actual: str, body: FeedbackRequest) -> Receipt:
        with stored() as store:
            return store.add_feedback(actual, **body.fields())

    def delete(body: TicketName) -> bool:
        with stored() as store:
            return store.remove_feedback(**body.fields())

    executor = DeadlineExecutor("feedback", service.metrics)
    service.on_stop.append(executor.close)

    async def in_time(work: Callable[[], T]) -> T:
        """The result of `work()`; Problem 503 if the database hangs."""
        with service.admission.feedback() as permit:
            try:
                return await executor.run(work, perf_counter() + ANSWER_SECONDS, permit)
            except Problem as problem:
                if problem.status != 504:
                    raise
        breaker.open("the database does not answer")
        failed()
        raise unavailable(
            "The database does not answer. The feedback may not have been stored: send it again.",
            service.settings.retry_after_seconds,
        )

    @app.post(
        "/feedback", summary="Report the team that solved a ticket", tags=["feedback"], responses=responses
    )
    async def feedback(body: FeedbackRequest) -> FeedbackResponse:
        """Repeated feedback counts once; a later team replaces an earlier one. 200 means: stored on disk.

        A team that the bundle does not know is stored and counted as wrong.
        """
        known = body.team is None or body.team in service.loaded().config.teams
        actual = body.team or NO_TEAM[body.outcome or "none_of_these"]
        receipt = await in_time(lambda: add(actual, body))
        if receipt.status == "created":
            label = UNKNOWN_TEAM if not known else actual.removeprefix("#")
            received.labels(receipt.predicted or "unknown", label).inc()
            if receipt.predicted not in (None, receipt.actual):
                wrong.labels(receipt.predicted).inc()
        return FeedbackResponse(
            status=receipt.status,
            ticket_id=receipt.ticket_id,
            request_id=receipt.request_id,
            source=receipt.source,
            team=body.team,
            known=known,
            predicted=receipt.predicted,
            correct=None if receipt.predicted is None else receipt.predicted == receipt.actual,
        )

    @app.post("/feedback/remove", summary="Remove feedback", tags=["feedback"], responses=responses)
    async def remove(body: TicketName) -> RemovedFeedback:
        """Remove the feedback on a ticket, as if it had never been given."""
        removed = await in_time(lambda: delete(body))
        return RemovedFeedback(status="removed" if removed else "unchanged")
