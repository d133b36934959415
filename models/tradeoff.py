"""The trade-off between precision (share of routed tickets that are right) and coverage (share routed).

A bundle contains the trade-off on its validation tickets (`training.assess.thresholds`), so that the
precision can be chosen when serving, without training again. A ticket is routed if its score reaches the
threshold of the chosen precision. The score is the log-odds of the confidence plus a shift for the predicted
team: a team that is right more often than its confidence has a positive shift, and so a lower threshold.
Teams with few tickets have shifts close to 0.
"""

from __future__ import annotations

import math
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

# Assumes three minutes per ticket; the tables of working hours use this.
REVIEWED_PER_HOUR = 20
DEFAULT_PRECISIONS = (0.99, 0.98, 0.95, 0.90)
LOWEST_PRECISION, HIGHEST_PRECISION = 0.5, 0.999  # that can be chosen
FEWEST_ROUTED = 0.1  # share of the validation tickets; a precision that routes fewer is never the default

Share = Annotated[float, Field(ge=0, le=1)]


class PrecisionError(ValueError):
    """The requested precision cannot be guaranteed; the message says which can."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Thresholds(_Strict):
    """The confidence from which a ticket is routed without a person.

    `confidence` is the threshold, or None if nothing is routed; `teams` are the thresholds of the teams, in
    the bundle's order, and empty if they are all the same. `precision` is the share of routed tickets that
    should be right, `at_least` its lower bound, and `coverage` the share of validation tickets that is
    routed. In bundles without a trade-off `precision` is the lower bound.
    """

    confidence: Share | None
    teams: list[Share] = []
    precision: Share = 0.99
    at_least: Share | None = None
    coverage: Share | None = None

    def of(self, team: int) -> float | None:
        """The threshold of a team, given its index in the bundle; None if nothing is routed."""
        return self.teams[team] if self.teams else self.confidence


class Choice(_Strict):
    """A precision that can be chosen: its threshold and its figures on the validation tickets.

    `score` is the threshold, None if too few validation tickets are right to show this precision. `coverage`:
    share of the validation tickets that is routed. `at_least`: lower bound of the share of routed tickets
    that are right; all bounds of a trade-off hold at once with a probability of 95 %. `doubtful`: expected
    share of wrong ones among the routed tickets with the lowest scores. `team_routed`: validation tickets
    routed to each team; `team_at_least`: lower bound for each team, not simultaneous.
    """

    precision: Share
    score: float | None = None
    coverage: Share = 0.0
    at_least: Share = 0.0
    doubtful: Share = 0.0
    team_routed: list[int] = []
    team_at_least: list[Share] = []


class Tradeoff(_Strict):
    """The coverage of each precision: `choices` in rising order of precision.

    `tickets`: validation tickets; `team_tickets`: how many of them were predicted for each team, in the
    bundle's order; `shifts`: for each team, empty if all are 0.
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
        """The choices that route at least one ticket, in rising order of precision."""
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
        """The highest of .99, .98, .95 and .90 that routes a tenth of the validation tickets, else .90."""
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
        """The thresholds for a precision; those of a precision that cannot be shown route nothing."""
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
        """The coverage of some lower precisions, as text."""
        lower = [choice for choice in reversed(self.shown) if choice.precision < precision - 1e-9]
        if not lower:
            return "none"
        told, coverage = [lower[0]], lower[0].coverage
        for choice in lower[1:]:
            # Skip those that route hardly more than the one before.
            if choice.coverage >= max(1.3 * coverage, coverage + 0.05):
                told.append(choice)
                coverage = choice.coverage
        return "; ".join(f"{choice.precision:g} routes {choice.coverage:.1%}" for choice in told[:4])

    def caution(self, precision: float) -> str:
        """A warning about this precision; empty if it routes a tenth of the tickets or more."""
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
