"""From logits to a decision: which team, how sure, and whether a person should look first.

The confidence is a probability, calibrated with one temperature (Guo et al., 2017). A ticket is routed
when the confidence clears the bundle's threshold and nothing else speaks against it; otherwise it goes
to review, with every reason named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from models.bundle import BundleConfig
    from models.tokenizer import Encoding

Reason = Literal["low_confidence", "out_of_scope", "mostly_unknown_words", "too_short", "unknown_language"]


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer for one ticket; `probabilities` is in the order of the bundle's teams."""

    team: str
    confidence: float
    decision: Literal["route", "review"]
    reasons: list[Reason]
    probabilities: dict[str, float]


def calibrated(logits: np.ndarray, temperature: float) -> np.ndarray:
    """softmax(logits / temperature) over the last axis, in float64."""
    scaled = np.asarray(logits, dtype=np.float64) / temperature
    scaled -= scaled.max(axis=-1, keepdims=True)
    weights = np.exp(scaled)
    return weights / weights.sum(axis=-1, keepdims=True)


def decide(logits: np.ndarray, encoding: Encoding, config: BundleConfig) -> Decision:
    """Decide on one ticket from its logits (teams,)."""
    probabilities = calibrated(logits, config.temperature).tolist()
    confidence = max(probabilities)
    reasons: list[Reason] = []
    if confidence < config.thresholds.confidence:
        reasons.append("low_confidence")
    return Decision(
        team=config.teams[probabilities.index(confidence)],
        confidence=confidence,
        decision="review" if reasons else "route",
        reasons=reasons,
        probabilities=dict(zip(config.teams, probabilities, strict=True)),
    )
