"""Tickets of any length: read in overlapping windows, answered by the window that stands out most for a team.

A request of ten words in a story of two thousand would drown in the mean over all of them. So a ticket that
is longer than the window is cut into windows that overlap by half; each is scored as a ticket of its own,
and the one with the largest logit speaks for the ticket. A ticket that fits is one window: nothing changes.

A ticket of more than three windows is mostly story. It is cut into windows half as long, and what its story
happens to give each team, the median over its windows, is taken off before they are compared.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

STORY = 3  # windows; a longer ticket is taken to be mostly story
# What speaks for a story was the most of many: it is this much less sure than it looks, as measured on
# tickets in prose that training had not seen (docs/recipe.md).
STORY_DOUBT = 5.0
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


def spokesman(logits: np.ndarray, of_story: bool) -> tuple[int, np.ndarray]:
    """Which of (windows, teams) logits speaks for the ticket, and the ticket's logits (teams,).

    Of a story the median is taken off each team, less its mean over the teams; then the window speaks in
    which a team stands out most above the others, and its logits are made less sure.
    """
    if not of_story:
        chosen = int(np.argmax(logits.max(axis=1)))
        return chosen, logits[chosen]
    background = np.median(logits, axis=0)
    logits = logits - (background - background.mean())
    chosen = int(np.argmax(logits.max(axis=1) - logits.mean(axis=1)))
    return chosen, logits[chosen] / STORY_DOUBT


def read_windows(
    run: Callable[[np.ndarray], np.ndarray], input_ids: np.ndarray, window: int
) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Logits (batch, teams) of tickets of any length, and the window of each that they come from.

    `run` maps ids (rows, tokens) to logits (rows, teams); `input_ids` (batch, tokens) is filled up with 0.
    """
    lengths = (input_ids != 0).sum(axis=1).tolist()
    if not window or input_ids.shape[1] <= window:
        return run(input_ids), [(0, length) for length in lengths]
    of_story = [length > STORY * window for length in lengths]
    pieces = [
        (row, *piece)
        for row, length in enumerate(lengths)
        for piece in windows(length, window // 2 if of_story[row] else window)
    ]
    rows = np.zeros((len(pieces), max(end - start for _, start, end in pieces)), dtype=np.int64)
    for line, (row, start, end) in zip(rows, pieces, strict=True):
        line[: end - start] = input_ids[row, start:end]
    scored = np.concatenate([run(rows[at : at + MOST_ROWS]) for at in range(0, len(rows), MOST_ROWS)])
    owner = np.array([row for row, _, _ in pieces])
    logits: list[np.ndarray] = []
    chosen: list[tuple[int, int]] = []
    for row in range(len(lengths)):
        own = np.flatnonzero(owner == row)
        which, ticket = spokesman(scored[own], of_story[row])
        logits.append(ticket)
        chosen.append(pieces[int(own[which])][1:])
    return np.stack(logits).astype(np.float32), chosen
