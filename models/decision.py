"""From logits to a decision: the team, a calibrated confidence, and whether a person should review it.

The probability of a team falls with the gap between its logit and the largest one, as exp(-(gap /
temperature) ** exponent). With the exponent 1 this is temperature scaling (Guo et al., 2017). The order of
the teams does not change (Rahimi et al., 2020, "Intra order-preserving functions"). A ticket is routed when
the confidence reaches the threshold of its team (`models.tradeoff`) and `models.scope` gives no reason for
review; otherwise it goes to review, with its reasons: `low_confidence`, or that of `models.scope`.
A ticket that was read word by word in English (`models.dictionaries`) goes to review, as
`transferred_language`, unless the bundle's `route_languages` names its language.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from models.scope import Reason, review_reasons

if TYPE_CHECKING:
    from models.bundle import BundleConfig
    from models.tokenizer import Encoding


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer for one ticket; `probabilities` is in the order of the bundle's teams.

    `threshold` is the confidence that a ticket of this team must reach; None if the team is never routed.
    """

    team: str
    confidence: float
    threshold: float | None
    decision: Literal["route", "review"]
    reasons: list[Reason]
    probabilities: dict[str, float]


def calibrated(logits: np.ndarray, temperature: float, exponent: float = 1.0) -> np.ndarray:
    """The probabilities over the last axis, in float64: the softmax of -(gap / temperature) ** exponent.

    The gap of a logit is its distance from the largest one.
    """
    logits = np.asarray(logits, dtype=np.float64)
    gap = (logits.max(axis=-1, keepdims=True) - logits) / temperature
    weights = np.exp(-(gap if exponent == 1 else gap**exponent))
    return weights / weights.sum(axis=-1, keepdims=True)


def decide(logits: np.ndarray, encoding: Encoding, config: BundleConfig) -> Decision:
    """Decide on one ticket from its logits (teams,) and its text."""
    scores: list[float] = logits.tolist()
    largest = max(scores)
    # `calibrated` for one ticket: plain floats are several times as fast as numpy for a few teams.
    weights = [math.exp(-(((largest - score) / config.temperature) ** config.exponent)) for score in scores]
    total = sum(weights)
    probabilities = [weight / total for weight in weights]
    confidence = max(probabilities)
    reasons: list[Reason]
    if encoding.language is None:
        reasons = review_reasons(encoding.text, largest, config.out_of_scope)
    elif encoding.language in config.route_languages:
        reasons = review_reasons(encoding.english, largest, config.out_of_scope)
    else:
        reasons = ["transferred_language"]
    team = probabilities.index(confidence)
    threshold = config.thresholds.of(team)
    if threshold is None or confidence < threshold:
        reasons.append("low_confidence")
    return Decision(
        team=config.teams[team],
        confidence=confidence,
        threshold=threshold,
        decision="review" if reasons else "route",
        reasons=reasons,
        probabilities=dict(zip(config.teams, probabilities, strict=True)),
    )
