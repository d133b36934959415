"""Long tickets: read whole up to a limit, and beyond it in overlapping windows, one of which is selected.

In a mean over two thousand words, a request of ten words is lost. A ticket longer than the limit is therefore
cut into windows that overlap by half. Each window is scored like a ticket, and the ticket gets the logits of
the window with the largest logit. A mail of two pages about one matter, however, is read better whole. The
limit, at least one window, is therefore chosen on validation tickets (`training.assess.reading`).

A ticket of more than three windows is mostly background. It is cut into windows of half the length, and the
median logit of each team over the windows, an estimate of the background's score, is subtracted before the
windows are compared.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

LONG_TICKET_WINDOWS = 3  # a ticket of more windows is treated as mostly background
# A long ticket's score is a maximum over windows and so overconfident: its logits are divided by this, which
# was measured on tickets embedded in text that training had not seen (docs/recipe.md).
LONG_TICKET_TEMPERATURE = 5.0
MAX_TOKENS = 10_240  # in one run of the graph, with padding; bounds its memory


def windows(tokens: int, window: int, whole: int = 0) -> list[tuple[int, int]]:
    """(start, end) of each window over `tokens` tokens; all of equal length, overlapping by half or more.

    Up to `whole` tokens, or with `window` 0, a ticket is one window.
    """
    if not window or tokens <= max(window, whole):
        return [(0, tokens)]
    count = 1 + -(-(tokens - window) // (window // 2))
    starts = np.linspace(0, tokens - window, count).round().astype(int).tolist()
    return [(start, start + window) for start in starts]


def select_window(logits: np.ndarray, is_long: bool) -> tuple[int, np.ndarray]:
    """The index of the selected window and the ticket's logits (teams,), from `logits` (windows, teams).

    For a long ticket, each team's median (centred over the teams) is subtracted, the window with the largest
    margin of its best team over the mean is selected, and its logits are divided by LONG_TICKET_TEMPERATURE.
    """
    if not is_long:
        chosen = int(np.argmax(logits.max(axis=1)))
        return chosen, logits[chosen]
    background = np.median(logits, axis=0)
    logits = logits - (background - background.mean())
    chosen = int(np.argmax(logits.max(axis=1) - logits.mean(axis=1)))
    return chosen, logits[chosen] / LONG_TICKET_TEMPERATURE


def read_windows(
    run: Callable[[np.ndarray], np.ndarray], input_ids: np.ndarray, window: int, whole: int = 0
) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Logits (batch, teams) of tickets of any length, and the window that was selected for each.

    `run` maps ids (rows, tokens) to logits (rows, teams); `input_ids` (batch, tokens) is padded with 0.
    """
    lengths = (input_ids != 0).sum(axis=1).tolist()
    if not window or input_ids.shape[1] <= max(window, whole):
        return run(input_ids), [(0, length) for length in lengths]
    is_long = [length > max(LONG_TICKET_WINDOWS * window, whole) for length in lengths]
    pieces = [
        (row, *piece)
        for row, length in enumerate(lengths)
        for piece in windows(length, window // 2 if is_long[row] else window, whole)
    ]
    scored = _score(run, input_ids, pieces)
    owner = np.array([row for row, _, _ in pieces])
    logits: list[np.ndarray] = []
    chosen: list[tuple[int, int]] = []
    for row in range(len(lengths)):
        own = np.flatnonzero(owner == row)
        selected, ticket = select_window(scored[own], is_long[row])
        logits.append(ticket)
        chosen.append(pieces[int(own[selected])][1:])
    return np.stack(logits).astype(np.float32), chosen


def _score(
    run: Callable[[np.ndarray], np.ndarray], input_ids: np.ndarray, pieces: list[tuple[int, int, int]]
) -> np.ndarray:
    """Logits (pieces, teams) of pieces (row, start, end), run in batches of similar length."""
    order = sorted(range(len(pieces)), key=lambda number: pieces[number][2] - pieces[number][1])
    scored: list[np.ndarray] = []
    while len(scored) < len(order):
        batch = [pieces[order[len(scored)]]]
        for number in order[len(scored) + 1 :]:
            length = pieces[number][2] - pieces[number][1]
            if (len(batch) + 1) * length > MAX_TOKENS:
                break
            batch.append(pieces[number])
        rows = np.zeros((len(batch), max(1, batch[-1][2] - batch[-1][1])), dtype=np.int64)
        for line, (row, start, end) in zip(rows, batch, strict=True):
            line[: end - start] = input_ids[row, start:end]
        scored += list(run(rows))
    places = np.argsort(np.array(order))
    return np.stack(scored)[places]
