"""Tickets of any length: read in overlapping windows, answered by the window that is surest of a team.

A request of ten words in a story of two thousand would drown in the mean over all of them. So a ticket that
is longer than the window is cut into windows that overlap by half; each is scored as a ticket of its own,
and the one with the largest logit speaks for the ticket. A ticket that fits is one window: nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

MOST_ROWS = 64  # windows in one run of the graph: bounds its memory


def windows(tokens: int, window: int) -> list[tuple[int, int]]:
    """(start, end) of each window over that many tokens, all of the same length, overlapping by half or more.

    `window` 0 reads any ticket as a whole.
    """
    if not window or tokens <= window:
        return [(0, tokens)]
    count = 1 + -(-(tokens - window) // (window // 2))
    starts = np.linspace(0, tokens - window, count).round().astype(int).tolist()
    return [(start, start + window) for start in starts]


def strongest(logits: np.ndarray) -> int:
    """Which of (windows, teams) logits speaks for the ticket: the one with the largest."""
    return int(np.argmax(logits.max(axis=1)))


def read_windows(
    run: Callable[[np.ndarray], np.ndarray], input_ids: np.ndarray, window: int
) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Logits (batch, teams) of tickets of any length, and the window of each that they come from.

    `run` maps ids (rows, tokens) to logits (rows, teams); `input_ids` (batch, tokens) is filled up with 0.
    """
    lengths = (input_ids != 0).sum(axis=1).tolist()
    if not window or input_ids.shape[1] <= window:
        return run(input_ids), [(0, length) for length in lengths]
    pieces = [(row, *piece) for row, length in enumerate(lengths) for piece in windows(length, window)]
    rows = np.zeros((len(pieces), min(window, max(lengths))), dtype=np.int64)
    for line, (row, start, end) in zip(rows, pieces, strict=True):
        line[: end - start] = input_ids[row, start:end]
    scored = np.concatenate([run(rows[at : at + MOST_ROWS]) for at in range(0, len(rows), MOST_ROWS)])
    owner = np.array([row for row, _, _ in pieces])
    chosen = [
        int(np.flatnonzero(owner == row)[strongest(scored[owner == row])]) for row in range(len(lengths))
    ]
    return scored[chosen], [pieces[piece][1:] for piece in chosen]
