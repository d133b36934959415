"""Whether a ticket looks like what the router knows, told from its words and from the size of its logits.

`training.assess.scope` writes down, from training and validation tickets, what is usual; `objections`
compares one ticket with that. Four things speak against leaving a ticket to the
router, each for a reason a person can check:

- `unknown_language`: its script, or the short words that hold it together, are of a language that the
  training tickets are not in;
- `mostly_unknown_words`: most of its words stand in no training ticket;
- `too_short`: a few words, which hardly tell the teams apart;
- `out_of_scope`: no team gets a large logit (Hendrycks et al., 2022), its words hardly tell the teams apart,
  and they are rare in training tickets: each of the three is compared with the validation tickets, and the
  tail probabilities are multiplied (Fisher's method), so that no one of them decides alone.

Telling and rarity see through one typing error in a word; a language and unknown words are told as written.
"""

from __future__ import annotations

import base64
import math
import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from models.languages import FUNCTION_WORDS, languages_of_words, script

Reason = Literal["low_confidence", "out_of_scope", "mostly_unknown_words", "too_short", "unknown_language"]

MOST_WORDS_MISTYPED = 5_000  # of the commonest words a typing error is recognized
# Looking for slips takes the square of a word's length, and a ticket may be one "word" of 200,000 letters.
LONGEST_MISTYPED = 40
SHORT = 8  # words
PASSAGE = 20  # words that carry the meaning
STEPS_PER_NAT = {"telling": 32, "rarity": 16}
_WORD = re.compile(r"[^\W\d_]{2,}+")
_ASCII_WORD = re.compile(r"[a-z]{2,}+")  # the same, found in half the time


class Scope(BaseModel):
    """What is usual; as made by default, nothing is known and no ticket is objected to.

    `words`: those of at least two training tickets, the commonest first; `telling` and `rarity`: base64 of
    one byte for each of them, in 1/32 and 1/16 nat. `rarest`: nats, of an unknown word. `languages` and
    `scripts`: those of the training tickets. `usual`: for the largest logit, telling and rarity (negated),
    values of validation tickets in rising order. `least_usual`: the log of the product of the tail
    probabilities that a ticket must reach. `most_unknown`: the share of words that may be unknown.
    `least_telling`: nats, summed over the words, that a short ticket must reach.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    words: str = ""
    telling: str = ""
    rarity: str = ""
    rarest: float = 0.0
    languages: list[str] = []
    scripts: list[str] = []
    usual: Annotated[list[list[float]], Field(max_length=3)] = []
    least_usual: float | None = None
    most_unknown: Annotated[float, Field(ge=0, le=1)] = 1.0
    least_telling: Annotated[float, Field(ge=0)] = 0.0

    @model_validator(mode="after")
    def _has_figures_for_each_word(self) -> Self:
        count = len(self.words.split())
        if not len(_bytes(self.telling)) == len(_bytes(self.rarity)) == count:
            raise ValueError("telling and rarity must have one byte for each of words")
        if self.least_usual is not None and (len(self.usual) != 3 or not all(self.usual)):
            raise ValueError("usual must have values of three measures")
        if unknown := [name for name in self.languages if name not in FUNCTION_WORDS]:
            raise ValueError(f"languages has {unknown[0]!r}; known are: {', '.join(FUNCTION_WORDS)}")
        return self


class Word(NamedTuple):
    """One word: nats about the team, nats of rarity (None: not counted), whether it is known as written."""

    telling: float
    rarity: float | None
    known: bool


class _Words(dict[str, Word]):
    """The words of a scope; remembers those that it was asked for, up to a limit."""

    MOST_REMEMBERED = 50_000

    def __init__(
        self, words: str, telling: str, rarity: str, rarest: float, languages: tuple[str, ...]
    ) -> None:
        listed = words.split()
        holding_together = {word for name in languages for word in FUNCTION_WORDS[name].split()}
        nats = (
            (_bytes(text) / step).tolist()
            for text, step in zip((telling, rarity), STEPS_PER_NAT.values(), strict=True)
        )
        self.listed = {
            word: Word(told, None if word in holding_together else rare, True)
            for word, told, rare in zip(listed, *nats, strict=True)
        }
        self.unknown = Word(0.0, rarest, False)
        self.mistyped = {
            left: word
            for word in reversed(listed[:MOST_WORDS_MISTYPED])
            if 4 <= len(word) <= LONGEST_MISTYPED
            for left in _without_a_letter(word)
        }

    def __missing__(self, word: str) -> Word:
        if len(word) > LONGEST_MISTYPED:
            return self.listed.get(word, self.unknown)
        if len(self) >= self.MOST_REMEMBERED:
            self.clear()
        found = self[word] = self.listed.get(word) or self._meant(word)
        return found

    def _meant(self, word: str) -> Word:
        """The commonest known word that is one typing error away: a letter more, less, other or swapped."""
        if len(word) < 4:
            return self.unknown
        shorter = _without_a_letter(word)
        meant = [
            self.mistyped.get(word),
            *(left for left in shorter if left in self.listed and len(left) >= 4),
        ]
        meant += [self.mistyped.get(left) for left in shorter]
        for candidate in meant:
            if candidate:
                return self.listed[candidate]._replace(known=False)
        return self.unknown


def _without_a_letter(word: str) -> list[str]:
    return [word[:at] + word[at + 1 :] for at in range(len(word))]


def _bytes(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text, validate=True), np.uint8)


@lru_cache(maxsize=8)
def _words(words: str, telling: str, rarity: str, rarest: float, languages: tuple[str, ...]) -> _Words:
    return _Words(words, telling, rarity, rarest, languages)


def known_words(scope: Scope) -> _Words:
    """What the scope knows of any word."""
    return _words(scope.words, scope.telling, scope.rarity, scope.rarest, tuple(scope.languages))


class Reading(NamedTuple):
    """What one ticket's words say.

    `words` is their number and `unknown` how many of them stand in fewer than two training tickets;
    `telling`, in nats, adds up over the words, `rarity` is the mean over those that carry the meaning (in a
    long ticket, over those of its most usual passage); `foreign` is a language or script.
    """

    words: int
    unknown: int
    telling: float
    rarity: float
    foreign: str | None

    @property
    def unknown_share(self) -> float:
        return self.unknown / self.words if self.words else 0.0


def objections(text: str, largest_logit: float, scope: Scope) -> list[Reason]:
    """The reason against routing a ticket, from its text and its largest logit: none or one.

    One, because each would often bring the next one with it: a foreign ticket is out of scope, too.
    """
    if not scope.words:
        return []
    ticket = read(text, scope)
    if ticket.foreign:
        return ["unknown_language"]
    if ticket.unknown_share > scope.most_unknown:
        return ["mostly_unknown_words"]
    if ticket.words == 0 or (ticket.words <= SHORT and ticket.telling < scope.least_telling):
        return ["too_short"]
    if scope.least_usual is not None and usualness(ticket, largest_logit, scope) < scope.least_usual:
        return ["out_of_scope"]
    return []


def usualness(ticket: Reading, largest_logit: float, scope: Scope) -> float:
    """log P(a validation ticket's logit is no larger) + the same for telling and for rarity."""
    measures = (largest_logit, ticket.telling, -ticket.rarity)
    return sum(
        [
            math.log((bisect_right(values, measure) + 0.5) / (len(values) + 1))
            for values, measure in zip(scope.usual, measures, strict=True)
        ]
    )


def read(text: str, scope: Scope) -> Reading:
    """Look every word of a text up in the training tickets and, where unknown, among the languages."""
    found = split(text)
    if not found:
        return Reading(0, 0, 0.0, scope.rarest, _foreign_script(text, scope))
    # map and zip go through the words without a step of the interpreter for each: this runs for every ticket.
    telling, rarity, listed = zip(*map(known_words(scope).__getitem__, found), strict=True)
    strangers = [] if all(listed) else [word for word, one in zip(found, listed, strict=True) if not one]
    return Reading(
        words=len(found),
        unknown=len(strangers),
        telling=sum(telling),
        rarity=_rarity([nats for nats in rarity if nats is not None], scope.rarest),
        foreign=_foreign_script(text, scope) or _foreign_language(found, strangers, scope),
    )


def _rarity(nats: list[float], rarest: float) -> float:
    """The mean; of many words, that of the most usual passage: a story may stand around a request."""
    if len(nats) < 2 * PASSAGE:
        return sum(nats) / len(nats) if nats else rarest
    passages = (nats[at : at + PASSAGE] for at in range(0, len(nats) - PASSAGE + 1, PASSAGE // 2))
    return min(sum(passage) for passage in passages) / PASSAGE


def split(text: str) -> list[str]:
    """The words of at least two letters, in the form in which they are compared."""
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    whole = unicodedata.normalize("NFKC", text).encode("utf-8", "replace").decode()
    return _WORD.findall(whole.lower())


def _foreign_language(found: Sequence[str], strangers: Sequence[str], scope: Scope) -> str | None:
    """A language whose short words outweigh those of the known languages, among many unknown words.

    Two short words of it must be unknown to the training tickets: English has "die" and "me", too.
    """
    if len(strangers) < 2 or 3 * len(strangers) < len(found):
        return None
    users = languages_of_words()
    counts = Counter(language for word in strangers for language in users.get(word, ()))
    for language in scope.languages:
        counts.pop(language, None)
    if not counts:
        return None
    language, hits = counts.most_common(1)[0]
    native = sum(any(known in users.get(word, ()) for known in scope.languages) for word in found)
    return language if hits >= 2 and hits > native else None


def _foreign_script(text: str, scope: Scope) -> str | None:
    """A script that most letters are of and the training tickets are not in."""
    if text.isascii():
        return None
    scripts = Counter(script(letter) for letter in text[:2000] if letter.isalpha())
    if not scripts:
        return None
    name, letters = scripts.most_common(1)[0]
    return name if 2 * letters > scripts.total() and name not in scope.scripts else None
