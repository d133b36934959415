"""What goes over the wire: requests are strict, unknown fields are errors, OpenAPI shows examples."""

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
    """Helpdesks number their tickets: 4711 and 4711.0 are the id "4711"."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _empty_if_null(value: Any, info: ValidationInfo) -> Any:
    """A mail with a subject alone has no text; null stands for that only beside a subject."""
    if value is None:
        if not (info.data.get("subject") or "").strip():
            raise ValueError("null is allowed only with a subject: give a text or a subject")
        return ""
    return value


# Limits in characters; the body limit in bytes comes first.
_Number = BeforeValidator(_number_as_text, json_schema_input_type=str | int)
TicketId = Annotated[str, StringConstraints(max_length=200), _Number]
SomeTicketId = Annotated[str, StringConstraints(min_length=1, max_length=200), _Number]
# Which helpdesk a ticket id is from: rt, zammad, desk-2.
Source = Annotated[str, StringConstraints(max_length=50, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
Text = Annotated[str, BeforeValidator(_empty_if_null, json_schema_input_type=str | None)]
# No path of the system holds a NUL.
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
        None, description="Your id, a text or a number; it comes back as text."
    )
    source: Source | None = Field(None, description="The helpdesk that the id is from, if there are several.")
    subject: Subject | None = Field(None, description="The ticket's subject line.")
    text: Text = Field(
        description="The ticket's text. HTML and quoted replies may stay in. null for a subject alone."
    )
    explain: Level = Field("none", description="How much to say about why.")


class TokenCounts(BaseModel):
    """How the ticket looked to the network."""

    count: int = Field(description="Tokens the network read.")
    unknown: int = Field(description="Words outside the vocabulary; they are read in pieces.")
    truncated: bool = Field(description="Whether tokens beyond the limit were left out.")


class ModelName(BaseModel):
    """Which bundle made the answer."""

    name: str
    version: str


class RouteResponse(BaseModel):
    """Where the ticket goes, how sure that is, and which bundle said so."""

    model_config = ConfigDict(json_schema_extra={"examples": [_ANSWER]})

    ticket_id: str | None
    team: str = Field(description="The most probable team.")
    confidence: float = Field(ge=0, le=1, description="Calibrated probability that this team is right.")
    threshold: float | None = Field(
        ge=0, le=1, description="The confidence that a ticket of this team must reach; null: none is enough."
    )
    precision: float = Field(ge=0, le=1, description="The share of routed tickets that should be right.")
    decision: Literal["route", "review"] = Field(description="Route it, or let a person look first.")
    reasons: list[str] = Field(description="Why a person should look; empty for `route`.")
    probabilities: dict[str, float]
    tokens: TokenCounts
    model: ModelName
    explanation: dict[str, Any] | None = Field(None, description="Only when `explain` asked for one.")


class BatchRequest(BaseModel):
    """Several tickets at once; each is judged on its own."""

    model_config = ConfigDict(
        extra="forbid", strict=True, json_schema_extra={"examples": [{"tickets": [_TICKET]}]}
    )

    tickets: list[Any] = Field(description="Objects as POST /route takes them.", min_length=1)


class Problem(BaseModel):
    """An error, as RFC 9457 writes it."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str | None = None
    request_id: str
    errors: list[dict[str, str]] | None = Field(None, description="For 422: field and message, no input.")


class BatchResponse(BaseModel):
    """One result per ticket, in order: an answer, or a problem for this ticket alone."""

    results: list[RouteResponse | Problem]
    routed: int
    failed: int


class ReloadRequest(BaseModel):
    """Which bundle to serve from now on."""

    model_config = ConfigDict(
        extra="forbid", strict=True, json_schema_extra={"examples": [{"bundle": "runs/2026-12"}, {}]}
    )

    bundle: Folder | None = Field(None, description="A folder; left out: the same one again.")
    previous: bool = Field(False, description="Go back to the bundle that was served before.")

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.previous and self.bundle is not None:
            raise ValueError("name a bundle or ask for the previous one, not both")
        return self


class ReloadResponse(BaseModel):
    """The bundle that answers now, and the one before it."""

    model: ModelName
    previous: ModelName | None
    workers: int


class PrecisionChoice(BaseModel):
    """What a precision would route, by the validation tickets."""

    precision: float = Field(description="The share of routed tickets that should be right.")
    coverage: float = Field(description="The share of tickets that is routed.")
    at_least: float = Field(description="Lower bound of the share of routed tickets that are right.")
    wrong_per_hour: float = Field(description="Wrong ones that one more hour of review would find.")


class TeamThreshold(BaseModel):
    """When a ticket of a team is routed; figures are of validation tickets, null where there are none."""

    team: str
    threshold: float | None = Field(description="The confidence to reach; null: none is enough.")
    tickets: int | None = Field(description="Those answered with this team.")
    routed: int | None = Field(description="Of these, those routed.")
    at_least: float | None = Field(description="Lower bound of the share of these that are right.")


class TradeoffResponse(BaseModel):
    """How right routed tickets should be, and what that and other precisions route."""

    precision: float = Field(description="What is asked for now.")
    tickets: int | None = Field(description="Validation tickets; null: the bundle has one threshold only.")
    caution: str = Field(description="What to know about this precision; empty: nothing.")
    reviewed_per_hour: int = Field(description="Tickets that a person is assumed to review in an hour.")
    choices: list[PrecisionChoice] = Field(description="Those that can be shown, in rising order.")
    teams: list[TeamThreshold]


class Health(BaseModel):
    """The process is up."""

    status: Literal["ok"]


class Readiness(BaseModel):
    """Whether tickets are answered, by which bundle, on which provider."""

    status: Literal["ready", "degraded", "loading", "draining"]
    model: ModelName | None = None
    provider: str | None = None


ROUTE_REQUEST: TypeAdapter[RouteRequest] = TypeAdapter(RouteRequest)
