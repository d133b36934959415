"""How long a ticket may be to be read as a whole, by what is right on the validation tickets.

Whole or in windows: on real mails of two pages a whole reading knows more, on a request in a long story the
windows do. Which of the two a desk writes, its validation tickets tell.
"""

import math

import numpy as np

from models.bundle import Bundle, BundleConfig
from training.assess.evaluation import run_graph
from training.data.batches import TokenIds
from training.data.dataset import Tickets

FURTHER = 2  # times what the network learned to read at a time may be tried, where there are such tickets


def choose_reading(bundle: Bundle, valid: Tickets, learned: int) -> Bundle:
    """The bundle with its limit: one window, `learned` tokens, or FURTHER times as many.

    A limit is raised unless the validation tickets that it concerns are right more often in windows, by more
    than the root of their number, which luck may give; where there are none, only to what was learned.
    """
    window = bundle.config.window
    if not window or learned <= window:
        return bundle
    number = {team: place for place, team in enumerate(bundle.config.teams)}
    encodings = bundle.tokenizer.encode_batch(valid.texts)
    counts = np.array([encoding.count for encoding in encodings])
    targets = np.array([number[team] for team in valid.teams])
    limit = window
    found: list[dict[str, float]] = []
    for longer in (learned, FURTHER * learned):
        rows = np.flatnonzero((counts > limit) & (counts <= longer))
        if not len(rows) and longer > learned:
            break
        tokens = TokenIds.from_rows(encodings[row].ids for row in rows)
        whole, cut = (_right(_reading(bundle, at), tokens, targets[rows]) for at in (longer, limit))
        found.append({"longest": longer, "tickets": len(rows), "whole": whole, "windows": cut})
        if cut - whole > math.sqrt(len(rows)):
            break
        limit = longer
    return _reading(bundle, limit, found)


def _reading(bundle: Bundle, whole: int, reading: list[dict[str, float]] | None = None) -> Bundle:
    changes = {"whole": whole, "reading": reading or []}
    config = BundleConfig.model_validate({**dict(bundle.config), **changes})
    return Bundle(bundle.folder, config, bundle.tokenizer, bundle.session)


def _right(bundle: Bundle, tokens: TokenIds, targets: np.ndarray) -> int:
    if not len(tokens):
        return 0
    return int((run_graph(bundle, tokens).argmax(axis=1) == targets).sum())


def described(config: BundleConfig) -> str:
    """How long tickets are read, and why, in words."""
    if not config.window:
        return "every ticket is read as a whole"
    limit = max(config.window, config.whole)
    parts = [
        f"of {one['tickets']:.0f} of up to {one['longest']:.0f} tokens, {one['whole']:.0f} are right "
        f"when read whole and {one['windows']:.0f} in windows"
        for one in config.reading
        if one["tickets"]
    ]
    why = f" (validation tickets: {'; '.join(parts)})" if parts else ""
    return (
        f"tickets of up to {limit} tokens are read as a whole, longer ones in windows of {config.window}{why}"
    )
