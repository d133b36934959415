"""The accuracy on validation tickets with typing errors, and inside long unrelated text."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from training.data.dataset import Tickets
from training.data.typos import mistype
from training.synthetic import filler

# At most this many tickets are rewritten, for a sampling error of one or two points.
MOST_TICKETS = 1_000
LONG_TICKETS = 100
FILLER_WORDS = 2_000
PLACES = ("start", "middle", "end")

Predict = Callable[[Sequence[str]], Sequence[str]]


@dataclass(frozen=True)
class Robustness:
    """Accuracy of one router on rewritten tickets; shares between 0 and 1."""

    router: str
    tickets: int
    clean: float
    typos: float
    long_tickets: int
    long_clean: float
    long: dict[str, float]  # by place of the ticket in filler text: start, middle or end
    by_length: list[dict[str, float]]  # quarters of the validation tickets by their number of words


def measure(router: str, predict: Predict, valid: Tickets, seed: int = 0) -> Robustness:
    """Accuracy as written, with a typing error in every fifth word, inside filler text, and by length."""
    sample = _sample(valid, MOST_TICKETS, seed)
    generator = random.Random(seed)
    clean = _right(predict, sample.texts, sample)
    typos = _right(predict, [mistype(text, generator) for text in sample.texts], sample)
    few = _sample(valid, LONG_TICKETS, seed)
    long = {
        place: float(
            _right(predict, [in_filler(text, place, n) for n, text in enumerate(few.texts)], few).mean()
        )
        for place in PLACES
    }
    return Robustness(
        router=router,
        tickets=len(sample),
        clean=float(clean.mean()),
        typos=float(typos.mean()),
        long_tickets=len(few),
        long_clean=float(_right(predict, few.texts, few).mean()),
        long=long,
        by_length=_by_length(sample, clean),
    )


def in_filler(text: str, place: str, seed: int = 0, words: int = FILLER_WORDS) -> str:
    """The ticket at the start, in the middle or at the end of paragraphs without a request."""
    paragraphs = filler(words - len(text.split()), seed).split("\n\n")
    at = {"start": 0, "middle": len(paragraphs) // 2, "end": len(paragraphs)}[place]
    return "\n\n".join([*paragraphs[:at], text, *paragraphs[at:]])


def _sample(tickets: Tickets, most: int, seed: int) -> Tickets:
    if len(tickets) <= most:
        return tickets
    rows = np.random.default_rng(seed).choice(len(tickets), most, replace=False)
    return tickets.select(np.sort(rows).tolist())


def _right(predict: Predict, texts: Sequence[str], tickets: Tickets) -> np.ndarray:
    return np.array(predict(texts)) == np.array(tickets.teams)


def _by_length(tickets: Tickets, right: np.ndarray) -> list[dict[str, float]]:
    words = np.array([len(text.split()) for text in tickets.texts])
    quarters = [rows for rows in np.array_split(np.argsort(words, kind="stable"), 4) if len(rows)]
    return [
        {
            "fewest_words": int(words[rows].min()),
            "most_words": int(words[rows].max()),
            "tickets": len(rows),
            "accuracy": float(right[rows].mean()),
        }
        for rows in quarters
    ]
