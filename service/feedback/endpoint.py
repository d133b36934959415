"""`POST /feedback`: the helpdesk reports which team solved a ticket.

`install` adds the decision log, which stores what was predicted for each ticket, and the endpoint, which
answers 200 only when the feedback is on disk. This command turns feedback into training data:

    python -m service.feedback export --out corrected.csv --add-to tickets.csv
"""

from __future__ import annotations

import logging
from time import monotonic, time
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from service.feedback.decision_log import DecisionLog, opener
from service.feedback.rows import Decided, StoreUnavailable

if TYPE_CHECKING:
    from service.inference.service import Answer, Service

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
    """The team that solved a ticket."""

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
    """The feedback as it is stored."""

    model_config = ConfigDict(json_schema_extra={"examples": [_TAKEN]})

    status: Literal["created", "unchanged", "changed"]
    ticket_id: str | None
    request_id: str | None
    team: str
    predicted: str | None = Field(description="The team that was predicted; null if not known.")
    correct: bool | None = Field(description="Whether the prediction was right; null if not known.")


def install(app: FastAPI, service: Service) -> None:
    """Add POST /feedback and the decision log; nothing when LARKFIELD_FEEDBACK_URL is empty."""
    settings = service.settings
    app.state.store = store = opener(settings.feedback_url) if settings.feedback_url else None
    if store is None:
        return
    counter = service.metrics.counter
    dropped = counter("decisions_dropped", "Decisions that were not written to the database.")
    failures = counter("store_failures", "Times that the feedback database failed.")
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

    @app.post(
        "/feedback",
        summary="Report the team that solved a ticket",
        tags=["feedback"],
        responses=problem_responses(401, 413, 415, 422, 500, 503),
    )
    def feedback(body: FeedbackRequest) -> FeedbackResponse:
        """Repeated feedback counts once; a later team replaces an earlier one. 200: it is on disk."""
        teams = service.loaded().config.teams
        if body.team not in teams:
            message = "must be one of: " + ", ".join(teams)
            raise Problem(422, f"team {message}", errors=[{"field": "team", "message": message}])
        try:
            breaker.check()
            decisions.flush()  # the decision on this ticket may still be queued
            receipt = decisions.store().add_feedback(
                body.team, ticket_id=body.ticket_id, request_id=body.request_id
            )
        except StoreUnavailable as error:
            if breaker.open(str(error)):
                failed()
                log.error("feedback was not stored", extra={"reason": str(error)})
            raise unavailable(
                f"The feedback was not stored: {error}.", service.settings.retry_after_seconds
            ) from None
        if receipt.status == "created":
            received.labels(receipt.predicted or "unknown", receipt.actual).inc()
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
