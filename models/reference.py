"""The distribution of the validation tickets, as shares of bins, to detect drift.

`training` writes this summary of the validation split into `config.json`; `service.feedback.drift` compares
live traffic with it. It contains only shares, from which no ticket can be reconstructed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

MOST_BINS = 10


def shares(values: Sequence[float], edges: Sequence[float]) -> list[float]:
    """Share of `values` in each of the len(edges) + 1 bins; a value on an edge falls into the bin above."""
    counts = np.bincount(np.searchsorted(edges, values, side="right"), minlength=len(edges) + 1)
    return [float(count) / max(1, len(values)) for count in counts]


def binned(values: Sequence[float]) -> dict[str, list[float]]:
    """Inner edges at the deciles of `values` (equal ones merged) and the share of each bin.

    Deciles put the same weight on each bin, which is where the population stability index resolves best. No
    edge lies at the smallest value, because the bin below it would be empty. If (nearly) all values are the
    smallest one, a single edge separates it from the larger ones.
    """
    numbers = np.asarray(values, dtype=float)
    deciles = np.quantile(numbers, np.linspace(0, 1, MOST_BINS + 1)[1:-1], method="inverted_cdf")
    smallest = numbers.min()
    edges = [float(edge) for edge in np.unique(deciles[deciles > smallest])]
    if not edges:
        larger = numbers[numbers > smallest]
        edges = [float(larger.min() if len(larger) else np.nextafter(smallest, np.inf))]
    return {"edges": edges, "shares": shares(values, edges)}


def reference(
    predicted: Sequence[str],
    confidence: Sequence[float],
    unknown_ratio: Sequence[float],
    length: Sequence[int],
    teams: Sequence[str],
) -> dict[str, Any]:
    """Summary of one split, one entry per ticket: predicted team, confidence, unknown / tokens, tokens.

    ValueError when the split is empty or the lists differ in length.
    """
    sizes = {len(predicted), len(confidence), len(unknown_ratio), len(length)}
    if len(sizes) != 1 or sizes == {0}:
        raise ValueError(f"a reference needs the same number (> 0) of each value, got {sorted(sizes)}")
    return {
        "tickets": len(predicted),
        "team": {team: sum(name == team for name in predicted) / len(predicted) for team in teams},
        "confidence": binned(confidence),
        "unknown_ratio": binned(unknown_ratio),
        "length": binned(length),
    }
