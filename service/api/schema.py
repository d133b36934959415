"""Schemas of requests and responses. Requests are strict: an unknown field is an error."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    TypeAdapter,
    ValidationInfo,
    model_validator,
)

Level = Literal["none", "tokens", "heads", "full"]


def _number_as_text(value: Any) -> Any:
    """Convert a numeric ticket id to text: 4711 and 4711.0 become "4711"."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _empty_if_null(value: Any, info: ValidationInfo) -> Any:
    """Accept null as an empty text if there is a subject, as in a mail without a body."""
    if value is None:
        if not (info.data.get("subject") or "").strip():
            raise ValueError("null is allowed only with a subject: give a text or a subject")
        return ""
    return value


# Limits in characters. The limit of the body, in bytes, is checked before.
_Number = BeforeValidator(_number_as_text, json_schema_input_type=str | int)
TicketId = Annotated[str, StringConstraints(max_length=200), _Number]
SomeTicketId = Annotated[str, StringConstraints(min_length=1, max_length=200), _Number]
# The helpdesk that a ticket id belongs to: rt, zammad, desk-2.
Source = Annotated[str, StringConstraints(max_length=50, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
Text = Annotated[str, BeforeValidator(_empty_if_null, json_schema_input_type=str | None)]
# A path cannot contain NUL.
Folder = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^[^\x00]*$")]
Subject = Annotated[str, StringConstraints(max_length=2_000)]

_TICKET: dict[str, JsonValue] = {
    "ticket_id": "T-1001",
    "subject": "Billed two times",
    "text": "My card shows the same order twice. Please send one of the two amounts back.",
}
_ANSWER: dict[str, JsonValue] = {
    "ticket_id": "T-1001",
    "team": "payment",
    "confidence": 0.97,
    "threshold": 0.84,
    "precision": 0.95,
    "decision": "route",
    "reasons": [],
    "language": "en",
    "urgent": False,
    "urgent_words": [],
    "probabilities": {
        "delivery": 0.005,
        "returns": 0.015,
        "payment": 0.97,
        "warranty": 0.004,
        "account": 0.006,
    },
    "tokens": {"count": 21, "unknown": 0, "truncated": False},
    "model": {"name": "larkfield", "version": "1"},
}


class RouteRequest(BaseModel):
    """One ticket to route."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [_TICKET]})

    ticket_id: TicketId | None = Field(
        None, description="Your id of the ticket, a text or a number; the answer returns it as text."
    )
    source: Source | None = Field(
        None, description="The helpdesk that the id belongs to, if you have several."
    )
    subject: Subject | None = Field(None, description="The ticket's subject line.")
    text: Text = Field(
        description="The ticket's text; may contain HTML and quoted replies. null if there is only a subject."
    )
    explain: Level = Field("none", description="Which explanation to add to the answer.")


class TokenCounts(BaseModel):
    """Token counts of the ticket."""

    count: int = Field(description="Tokens that the network read.")
    unknown: int = Field(description="Words outside the vocabulary; they are split into pieces.")
    truncated: bool = Field(description="Whether tokens beyond the limit were cut off.")


class ModelName(BaseModel):
    """The bundle that made the answer."""

    name: str
    version: str


class RouteResponse(BaseModel):
    """The team of a ticket, its confidence and decision, and the bundle that made them."""

    model_config = ConfigDict(json_schema_extra={"examples": [_ANSWER]})

    ticket_id: str | None
    team: str = Field(description="The most probable team.")
    confidence: float = Field(ge=0, le=1, description="Calibrated probability that this team is right.")
    threshold: float | None = Field(
        ge=0, le=1, description="Confidence needed to route to this team; null: no confidence is enough."
    )
    precision: float = Field(ge=0, le=1, description="The share of routed tickets that should be right.")
    decision: Literal["route", "review"] = Field(description="Route it, or let a person review it first.")
    reasons: list[str] = Field(description="Why a person should review it; empty for `route`.")
    language: str | None = Field(
        None,
        description="Code of the ticket's language (fr); null: unknown, or the bundle has no dictionaries.",
    )
    urgent: bool = Field(
        description="The text names a danger or a legal threat: a person should see it first."
    )
    urgent_words: list[str] = Field(description="The words that say so.")
    probabilities: dict[str, float]
    tokens: TokenCounts
    model: ModelName
    explanation: dict[str, Any] | None = Field(None, description="Present if the request asked for one.")


class BatchRequest(BaseModel):
    """Several tickets; each is routed independently."""

    model_config = ConfigDict(
        extra="forbid", strict=True, json_schema_extra={"examples": [{"tickets": [_TICKET]}]}
    )

    tickets: list[Any] = Field(description="Objects as in POST /route.", min_length=1)


class Problem(BaseModel):
    """An error in the format of RFC 9457."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str | None = None
    request_id: str
    errors: list[dict[str, str]] | None = Field(None, description="For 422: field and message of each error.")


class BatchResponse(BaseModel):
    """One result per ticket, in order: an answer, or a problem if this ticket failed."""

    results: list[RouteResponse | Problem]
    routed: int
    failed: int


class ReloadRequest(BaseModel):
    """The bundle to switch to."""

    model_config = ConfigDict(
        extra="forbid", strict=True, json_schema_extra={"examples": [{"bundle": "runs/2026-12"}, {}]}
    )

    bundle: Folder | None = Field(None, description="The bundle's folder; default: reload the present one.")
    previous: bool = Field(False, description="Switch back to the bundle that was served before.")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.previous and self.bundle is not None:
            raise ValueError("name a bundle or ask for the previous one, not both")
        return self


class ReloadResponse(BaseModel):
    """The bundle that is served now, and the one before it."""

    model: ModelName
    previous: ModelName | None
    workers: int


class PrecisionChoice(BaseModel):
    """Coverage and errors at one precision, measured on the validation tickets."""

    precision: float = Field(description="The share of routed tickets that should be right.")
    coverage: float = Field(description="The share of tickets that are routed.")
    at_least: float = Field(description="Lower bound of the share of routed tickets that are right.")
    wrong_per_hour: float = Field(
        description="Wrongly routed tickets that one more hour of review would find."
    )


class TeamThreshold(BaseModel):
    """The threshold of one team, with figures of the validation tickets; null where there are none."""

    team: str
    threshold: float | None = Field(description="Confidence needed; null: no confidence is enough.")
    tickets: int | None = Field(description="Tickets for which this team was predicted.")
    routed: int | None = Field(description="How many of these were routed.")
    at_least: float | None = Field(description="Lower bound of the share of routed ones that are right.")


class TradeoffResponse(BaseModel):
    """The present precision, and the coverage at this and other precisions."""

    precision: float = Field(
        description="The precision in use: share of routed tickets that should be right."
    )
    tickets: int | None = Field(description="Validation tickets; null: the bundle has one threshold only.")
    caution: str = Field(description="A warning about this precision; empty if there is none.")
    reviewed_per_hour: int = Field(description="Tickets that a person is assumed to review in an hour.")
    choices: list[PrecisionChoice] = Field(description="Precisions that validation supports, ascending.")
    teams: list[TeamThreshold]


class Health(BaseModel):
    """The process is running."""

    status: Literal["ok"]


class Readiness(BaseModel):
    """Whether the service answers tickets, with which bundle and provider."""

    status: Literal["ready", "degraded", "loading", "draining"]
    model: ModelName | None = None
    provider: str | None = None


ROUTE_REQUEST: TypeAdapter[RouteRequest] = TypeAdapter(RouteRequest)
