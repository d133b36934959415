"""`POST /feedback`: the helpdesk reports which team really solved a ticket; and what that is good for.

`install` hangs two things into the service: the decision log, which remembers behind each answer what was
predicted, and the endpoint, which acknowledges only what is durable. Feedback becomes training data with

    python -m service.feedback export --out corrected.csv --add-to tickets.csv

The text of a ticket comes from the service's own database where LARKFIELD_FEEDBACK_STORE_TEXT allowed it to
be kept, otherwise from the helpdesk's own export (`--tickets`), joined by ticket id.
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


def install(app: FastAPI, service: Service) -> None:
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


def _add_endpoint(app: FastAPI, service: Service, decisions: DecisionLog, failed: Any) -> None:
    from service.api.problems import Problem, unavailable
    from service.http.routes import problem_responses

    counter = service.metrics.counter
    given = counter("feedback", "Feedback by team, counted when it is first given.", "predicted", "actual")
    wrong = counter("feedback_wrong", "Feedback that named another team than predicted.", "predicted")

    gate = Gate(service.settings.retry_after_seconds)

    @app.post(
        "/feedback",
        summary="Report the team that solved a ticket",
        tags=["feedback"],
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
