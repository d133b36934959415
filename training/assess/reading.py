"""Chooses, on the validation tickets, up to which length a ticket is read whole instead of in windows.

Reading whole is more accurate for mails of two pages about one matter, windows for a short request in a long
text. Which of the two is more frequent differs between helpdesks.
"""

import math

import numpy as np

from models.bundle import Bundle, BundleConfig
from training.assess.evaluation import run_graph
from training.data.batches import TokenIds
from training.data.dataset import Tickets

FURTHER = 2  # times the trained length; tried too, if validation has such tickets


def choose_reading(bundle: Bundle, valid: Tickets, learned: int) -> Bundle:
    """The bundle with its limit for reading whole: one window, `learned` tokens, or FURTHER times as many.

    The limit is raised step by step, until windows get more of the tickets between the two lengths right, by
    more than the root of their number (the sampling error). Without such tickets it is `learned`.
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
        whole, cut = (_right(bundle.with_config(whole=at), tokens, targets[rows]) for at in (longer, limit))
        found.append({"longest": longer, "tickets": len(rows), "whole": whole, "windows": cut})
        if cut - whole > math.sqrt(len(rows)):
            break
        limit = longer
    return bundle.with_config(whole=limit, reading=found)


def _right(bundle: Bundle, tokens: TokenIds, targets: np.ndarray) -> int:
    if not len(tokens):
        return 0
    return int((run_graph(bundle, tokens).argmax(axis=1) == targets).sum())


def chosen(config: BundleConfig) -> str:
    """A sentence about which tickets are read whole."""
    if not config.window:
        return "every ticket is read whole"
    limit = max(config.window, config.whole)
    return f"tickets of up to {limit} tokens are read whole, longer ones in windows of {config.window}"


def described(config: BundleConfig) -> str:
    """A sentence about which tickets are read whole, and why."""
    parts = [
        f"of {one['tickets']:.0f} with up to {one['longest']:.0f} tokens, {one['whole']:.0f} are right "
        f"read whole and {one['windows']:.0f} in windows"
        for one in config.reading
        if one["tickets"]
    ]
    return chosen(config) + (f" (validation tickets: {'; '.join(parts)})" if parts else "")
