"""Simulated typing errors: a slip swaps two letters, drops one, doubles one, or hits a neighbouring key."""

import random
import re
from collections.abc import Callable

WORD = re.compile(r"[^\W\d_]{2,}")
KEYBOARD = ("qwertyuiop", "asdfghjkl", "zxcvbnm")


def mistype(text: str, generator: random.Random, share: float = 0.2) -> str:
    """The text with a slip in `share` of its words (runs of at least two letters), in at least one."""
    words = list(WORD.finditer(text))
    if not words:
        return text
    chosen = generator.sample(words, max(1, round(share * len(words))))
    for word in sorted(chosen, key=lambda match: match.start(), reverse=True):
        text = text[: word.start()] + slip(word.group(), generator) + text[word.end() :]
    return text


def slip(word: str, generator: random.Random) -> str:
    """The word, of at least two letters, with one slip that changes it."""
    kinds = list(SLIPS)
    generator.shuffle(kinds)
    for kind in kinds:
        places = list(range(len(word)))
        generator.shuffle(places)
        for place in places:
            changed = SLIPS[kind](word, place, generator)
            if changed and changed != word:
                return changed
    return word


def _swap(word: str, at: int, generator: random.Random) -> str:
    return word[:at] + word[at + 1 : at + 2] + word[at] + word[at + 2 :]


def _drop(word: str, at: int, generator: random.Random) -> str:
    return word[:at] + word[at + 1 :]


def _double(word: str, at: int, generator: random.Random) -> str:
    return word[: at + 1] + word[at:]


def _neighbour(word: str, at: int, generator: random.Random) -> str:
    beside = neighbours(word[at])
    return word[:at] + generator.choice(beside) + word[at + 1 :] if beside else ""


def neighbours(letter: str) -> str:
    """The keys left and right of a letter on an English keyboard, in its case; "" for other characters."""
    for row in KEYBOARD:
        at = row.find(letter.lower())
        if at >= 0:
            keys = row[max(0, at - 1) : at] + row[at + 1 : at + 2]
            return keys.upper() if letter.isupper() else keys
    return ""


SLIPS: dict[str, Callable[[str, int, random.Random], str]] = {
    "swap": _swap,
    "drop": _drop,
    "double": _double,
    "neighbour": _neighbour,
}
