"""Repeated tickets: the same text, or the same template with other numbers.

A monitoring system sends one alert a thousand times, each time with another host, id or date. Such tickets
stay on one side of a split, and figures can count each template once. A ticket's template depends on its own
text only.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

# Tokens that vary between the tickets of a template: addresses, and everything with a digit.
_VARIES = re.compile(r"\d|://|@")
_WORD = re.compile(r"[^\W\d_]+")
_MONTHS_AND_DAYS = frozenset(
    re.findall(
        r"\w+",
        """january february march april may june july august september october november december
        jan feb mar apr jun jul aug sep sept oct nov dec
        monday tuesday wednesday thursday friday saturday sunday mon tue wed thu fri sat sun
        januar februar märz mai juni juli oktober dezember dez
        montag dienstag mittwoch donnerstag freitag samstag sonntag
        janvier février mars avril juin juillet août septembre octobre novembre décembre
        lundi mardi mercredi jeudi vendredi samedi dimanche
        enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre
        lunes martes miércoles jueves viernes sábado domingo""",
    )
)


def text_key(text: str) -> bytes:
    """Equal for texts that differ only in case and white space."""
    return _digest(" ".join(text.casefold().split()))


def template_key(text: str) -> bytes:
    """Equal for texts with the same words, ignoring numbers, ids, addresses, months and days."""
    stays = " ".join(token for token in text.casefold().split() if not _VARIES.search(token))
    words = [word for word in _WORD.findall(stays) if word not in _MONTHS_AND_DAYS]
    return _digest(" ".join(words)) if words else text_key(text)


def group_numbers(keys: Iterable[bytes]) -> np.ndarray:
    """(tickets,) int64: equal keys get the same number; numbers start at 0, in order of appearance."""
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.int64)


def each_group_once(groups: np.ndarray) -> np.ndarray:
    """(tickets,) weights that add up to 1 in each group, so that a weighted mean counts each group once."""
    return 1 / np.bincount(groups)[groups] if len(groups) else np.zeros(0)


def first_of_each(groups: np.ndarray) -> np.ndarray:
    """(groups,) the first ticket of each group, in order: for bounds that need independent tickets."""
    return np.sort(np.unique(groups, return_index=True)[1])


@dataclass(frozen=True)
class Repetition:
    """How many tickets of a file are repetitions."""

    tickets: int
    same_text: int  # tickets with the text of an earlier one
    same_template: int  # tickets with the template of an earlier one, including those with the same text
    largest_template: int  # tickets of the most frequent template


def repetition(text_groups: np.ndarray, template_groups: np.ndarray) -> Repetition:
    tickets = len(text_groups)
    sizes = np.bincount(template_groups) if tickets else np.zeros(1, dtype=np.int64)
    return Repetition(
        tickets=tickets,
        same_text=tickets - len(np.unique(text_groups)),
        same_template=tickets - len(np.unique(template_groups)),
        largest_template=int(sizes.max()),
    )


def positions(keys: Sequence[bytes]) -> np.ndarray:
    """(tickets,) numbers from 0 to 1, uniform over different keys and equal for equal keys."""
    return np.array([int.from_bytes(key[:8], "big") / 2**64 for key in keys])


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=12).digest()
