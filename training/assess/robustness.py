"""What typing errors and long stories around the request cost, on the validation tickets."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from training.data.dataset import Tickets
from training.data.typos import mistype
from training.synthetic import filler

# At most this many tickets are rewritten: enough for a figure within a point or two.
MOST_TICKETS = 1_000
LONG_TICKETS = 100
STORY_WORDS = 2_000
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
    long: dict[str, float]  # request at the start, middle or end of a story of 2,000 words
    by_length: list[dict[str, float]]  # quarters of the validation tickets by their number of words


def measure(router: str, predict: Predict, valid: Tickets, seed: int = 0) -> Robustness:
    """Accuracy as written, with one slip in every five words, inside a long story, and by length."""
    sample = _sample(valid, MOST_TICKETS, seed)
    generator = random.Random(seed)
    clean = _right(predict, sample.texts, sample)
    typos = _right(predict, [mistype(text, generator) for text in sample.texts], sample)
    few = _sample(valid, LONG_TICKETS, seed)
    long = {
        place: float(
            _right(predict, [in_story(text, place, n) for n, text in enumerate(few.texts)], few).mean()
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


def in_story(text: str, place: str, seed: int = 0, words: int = STORY_WORDS) -> str:
    """The ticket at the start, in the middle or at the end of a story that asks for nothing."""
    story = filler(words - len(text.split()), seed).split("\n\n")
    at = {"start": 0, "middle": len(story) // 2, "end": len(story)}[place]
    return "\n\n".join([*story[:at], text, *story[at:]])


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
