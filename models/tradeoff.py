"""The trade-off between precision and coverage: how right routed tickets must be, and how many that routes.

A bundle holds the whole trade-off as its validation tickets showed it (`training.assess.tradeoff`), so that
who runs the desk chooses the precision when serving, without training anew. A ticket is routed when its
score reaches that of the wanted precision. The score is the log-odds of the confidence plus a shift for the
team that is answered: a team that is right more often than its confidence says has a positive shift, and so
a lower threshold. Teams with few tickets have shifts close to 0.
"""

from __future__ import annotations

import math
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

# A person reads a ticket and names its team in three minutes. The tables of hours rest on this.
REVIEWED_PER_HOUR = 20
DEFAULT_PRECISIONS = (0.99, 0.98, 0.95, 0.90)
LOWEST_PRECISION, HIGHEST_PRECISION = 0.5, 0.999  # that can be asked for
FEWEST_ROUTED = 0.1  # of the validation tickets: a precision that routes fewer is no default

Share = Annotated[float, Field(ge=0, le=1)]


class PrecisionError(ValueError):
    """A precision that was asked for and cannot be had; the message says which can."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Thresholds(_Strict):
    """When a ticket may be routed without a person.

    `confidence` is what a ticket must reach, or None where no confidence is enough; `teams`, in the order of
    the bundle's teams, holds what it must reach for each one, and is empty where that is the same.
    `precision` is the share of routed tickets that should be right, `at_least` its lower bound and
    `coverage` the share of validation tickets that is routed. In bundles without a trade-off `precision`
    is the lower bound.
    """

    confidence: Share | None
    teams: list[Share] = []
    precision: Share = 0.99
    at_least: Share | None = None
    coverage: Share | None = None

    def of(self, team: int) -> float | None:
        """The confidence that a ticket of this team (its place in the bundle) must reach; None: no such."""
        return self.teams[team] if self.teams else self.confidence


class Choice(_Strict):
    """One wanted precision: the score that a ticket must reach for it, and what that means.

    `score` is None where the validation tickets cannot show the precision. `coverage`: share of the
    validation tickets that is routed. `at_least`: lower bound of the share of routed tickets that are right;
    all bounds of a trade-off hold together with a probability of 95 %. `doubtful`: expected share of wrong
    ones among the least sure routed tickets. `team_routed`: validation tickets routed to each team;
    `team_at_least`: lower bound for each, which holds for one team at a time.
    """

    precision: Share
    score: float | None = None
    coverage: Share = 0.0
    at_least: Share = 0.0
    doubtful: Share = 0.0
    team_routed: list[int] = []
    team_at_least: list[Share] = []


class Tradeoff(_Strict):
    """What each precision costs: `choices` in rising order of precision.

    `tickets`: validation tickets; `team_tickets`: of these, those answered with each team, in the order of
    the bundle's teams; `shifts`: for each team, empty where all are 0.
    """

    tickets: Annotated[int, Field(ge=1)]
    team_tickets: list[int]
    shifts: list[float] = []
    choices: Annotated[list[Choice], Field(min_length=1)]

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        wanted = [choice.precision for choice in self.choices]
        if wanted != sorted(set(wanted)):
            raise ValueError("choices must be in rising order of precision")
        if self.shifts and len(self.shifts) != len(self.team_tickets):
            raise ValueError("shifts must have one number for each team")
        for choice in self.choices:
            if choice.score is not None and not (
                len(choice.team_routed) == len(choice.team_at_least) == len(self.team_tickets)
            ):
                raise ValueError("every choice must have figures for each team")
        return self

    @property
    def shown(self) -> list[Choice]:
        """The choices that the validation tickets can show, in rising order of precision."""
        return [choice for choice in self.choices if choice.score is not None]

    def choice(self, precision: float) -> Choice:
        """The lowest choice of at least this precision; PrecisionError beyond the highest."""
        enough = [choice for choice in self.choices if choice.precision >= precision - 1e-9]
        if not enough:
            raise PrecisionError(
                f"a precision of {precision:g} is more than validation tickets can show; "
                f"the highest to ask for is {self.choices[-1].precision:g}"
            )
        return enough[0]

    def default(self) -> float:
        """The highest of .99, .98, .95 and .90 that routes at least a tenth of the validation tickets.

        The lowest of them where none does: what else could be routed is for a person to decide.
        """
        return next(
            (
                precision
                for precision in DEFAULT_PRECISIONS
                if self.choice(precision).score is not None
                and self.choice(precision).coverage >= FEWEST_ROUTED
            ),
            DEFAULT_PRECISIONS[-1],
        )

    def thresholds(self, precision: float) -> Thresholds:
        """The confidence to reach for a precision; none is enough where it cannot be shown."""
        choice = self.choice(precision)
        if choice.score is None:
            return Thresholds(confidence=None, precision=precision, at_least=0.0, coverage=0.0)
        return Thresholds(
            confidence=_share(choice.score),
            teams=[_share(choice.score - shift) for shift in self.shifts],
            precision=precision,
            at_least=choice.at_least,
            coverage=choice.coverage,
        )

    def alternatives(self, precision: float) -> str:
        """What lower precisions would route, in words."""
        lower = [choice for choice in reversed(self.shown) if choice.precision < precision - 1e-9]
        if not lower:
            return "none"
        told, coverage = [lower[0]], lower[0].coverage
        for choice in lower[1:]:
            # Tell of those that route clearly more than the one before.
            if choice.coverage >= max(1.3 * coverage, coverage + 0.05):
                told.append(choice)
                coverage = choice.coverage
        return "; ".join(f"{choice.precision:g} routes {choice.coverage:.1%}" for choice in told[:4])

    def caution(self, precision: float) -> str:
        """What to know before asking for this precision; empty where it routes a tenth or more."""
        choice = self.choice(precision)
        if choice.score is None:
            return (
                f"{self.tickets:,} validation tickets cannot show a precision of {precision:g}; they can: "
                f"{self.alternatives(precision)}"
            )
        if choice.coverage < FEWEST_ROUTED:
            return (
                f"a precision of {precision:g} routes only {choice.coverage:.1%} of the tickets; "
                f"lower ones: {self.alternatives(precision)}"
            )
        return ""


def _share(log_odds: float) -> float:
    """The share with these log-odds: 1 / (1 + exp(-log_odds)), without overflow."""
    if log_odds < 0:
        return math.exp(log_odds) / (1 + math.exp(log_odds))
    return 1 / (1 + math.exp(-log_odds))
