"""Out-of-scope detection, from a ticket's words and its largest logit.

`training.assess.scope` records the distribution of training and validation tickets; `review_reasons` compares
a ticket with it. It gives one of these reasons for review:

- `unknown_language`: its script or its function words are of a language that the training tickets are not in;
- `mostly_unknown_words`: most of its words occur in no training ticket;
- `automatic_reply`: it is worded as an absence notice or as a bounce (`models.automatic_reply`);
- `too_short`: it is atypical, as below, has a few words, and they carry little information about the team;
- `out_of_scope`: the ticket is atypical in three measures: the largest logit (Hendrycks et al., 2022), the
  informativeness of its words about the team, and their mean inverse document frequency (idf). Each is
  compared with the validation tickets, and the tail probabilities are multiplied (Fisher's method).

Informativeness and idf tolerate one typing error in a word; the language and the share of unknown words do
not.
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
from typing import Literal, NamedTuple, Self

import numpy as np
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator

from models.automatic_reply import is_automatic_reply
from models.languages import FUNCTION_WORDS, languages_of_words, script

Reason = Literal[
    "low_confidence",
    "out_of_scope",
    "mostly_unknown_words",
    "too_short",
    "unknown_language",
    "transferred_language",
    "automatic_reply",
]

MAX_WORDS_CORRECTED = 5_000  # typing errors are recognised in this many of the commonest words
# Correction takes time quadratic in a word's length, and a ticket may be one "word" of 200,000 letters.
MAX_LETTERS_CORRECTED = 40
MIN_LETTERS_CORRECTED = 4
SHORT_WORDS = 8  # a ticket of at most this many words can be too short
PASSAGE_WORDS = 20  # function words not counted
STEPS_PER_NAT = {"informativeness": 32, "idf": 16}
_WORD = re.compile(r"[^\W\d_]{2,}+")
_ASCII_WORD = re.compile(r"[a-z]{2,}+")  # the same for ASCII, twice as fast


class Scope(BaseModel):
    """The statistics of training and validation tickets; the default is empty and gives no reason.

    `words` occur in at least two training tickets, the commonest first; `informativeness` and `idf` hold one
    byte for each of them (base64), in steps of 1/32 and 1/16 nat. `unknown_idf` is the idf of an unknown
    word, in nats. `languages` and `scripts` are those of the training tickets. `quantiles` are sorted values
    of validation tickets, one list each for the largest logit, the informativeness and the negated idf.
    `min_typicality` is the lowest log tail probability within scope, `max_unknown_share` the largest share of
    unknown words, and `min_informativeness` the least information, in nats, that a short ticket needs.

    The aliases are the names of these fields in bundles of earlier versions.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    words: str = ""
    informativeness: str = Field("", validation_alias=AliasChoices("informativeness", "telling"))
    idf: str = Field("", validation_alias=AliasChoices("idf", "rarity"))
    unknown_idf: float = Field(0.0, validation_alias=AliasChoices("unknown_idf", "rarest"))
    languages: list[str] = []
    scripts: list[str] = []
    quantiles: list[list[float]] = Field(
        [], max_length=3, validation_alias=AliasChoices("quantiles", "usual")
    )
    min_typicality: float | None = Field(None, validation_alias=AliasChoices("min_typicality", "least_usual"))
    max_unknown_share: float = Field(
        1.0, ge=0, le=1, validation_alias=AliasChoices("max_unknown_share", "most_unknown")
    )
    min_informativeness: float = Field(
        0.0, ge=0, validation_alias=AliasChoices("min_informativeness", "least_telling")
    )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        count = len(self.words.split())
        if not len(_bytes(self.informativeness)) == len(_bytes(self.idf)) == count:
            raise ValueError("informativeness and idf must have one byte for each of words")
        if self.min_typicality is not None and (len(self.quantiles) != 3 or not all(self.quantiles)):
            raise ValueError("quantiles must have values of three measures")
        if unknown := [name for name in self.languages if name not in FUNCTION_WORDS]:
            raise ValueError(f"languages has {unknown[0]!r}; known are: {', '.join(FUNCTION_WORDS)}")
        return self


class Word(NamedTuple):
    """Informativeness and idf in nats (idf None: a function word); `known`: found without correction."""

    informativeness: float
    idf: float | None
    known: bool


class Vocabulary(dict[str, Word]):
    """The words of a scope; finds words with up to one typing error, and caches MAX_CACHED lookups."""

    MAX_CACHED = 50_000

    def __init__(
        self, words: str, informativeness: str, idf: str, unknown_idf: float, languages: tuple[str, ...]
    ) -> None:
        listed = words.split()
        function_words = {word for name in languages for word in FUNCTION_WORDS[name].split()}
        nats = (
            (_bytes(text) / step).tolist()
            for text, step in zip((informativeness, idf), STEPS_PER_NAT.values(), strict=True)
        )
        self.listed = {
            word: Word(informativeness, None if word in function_words else idf, True)
            for word, informativeness, idf in zip(listed, *nats, strict=True)
        }
        self.unknown = Word(0.0, unknown_idf, False)
        self.misspellings = {
            shortened: word
            for word in reversed(listed[:MAX_WORDS_CORRECTED])
            if MIN_LETTERS_CORRECTED <= len(word) <= MAX_LETTERS_CORRECTED
            for shortened in _deletions(word)
        }

    def __missing__(self, word: str) -> Word:
        if len(word) > MAX_LETTERS_CORRECTED:
            return self.listed.get(word, self.unknown)
        if len(self) >= self.MAX_CACHED:
            self.clear()
        found = self[word] = self.listed.get(word) or self._correct(word)
        return found

    def _correct(self, word: str) -> Word:
        """The listed word with one letter inserted, dropped or replaced, or two swapped; else unknown."""
        if len(word) < MIN_LETTERS_CORRECTED:
            return self.unknown
        shortened = _deletions(word)
        candidates = [
            self.misspellings.get(word),
            *(one for one in shortened if one in self.listed and len(one) >= MIN_LETTERS_CORRECTED),
        ]
        candidates += [self.misspellings.get(one) for one in shortened]
        for candidate in candidates:
            if candidate:
                return self.listed[candidate]._replace(known=False)
        return self.unknown


def _deletions(word: str) -> list[str]:
    return [word[:at] + word[at + 1 :] for at in range(len(word))]


def _bytes(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text, validate=True), np.uint8)


@lru_cache(maxsize=8)
def _vocabulary(
    words: str, informativeness: str, idf: str, unknown_idf: float, languages: tuple[str, ...]
) -> Vocabulary:
    return Vocabulary(words, informativeness, idf, unknown_idf, languages)


def vocabulary(scope: Scope) -> Vocabulary:
    """The scope's `Vocabulary`, built once."""
    return _vocabulary(
        scope.words, scope.informativeness, scope.idf, scope.unknown_idf, tuple(scope.languages)
    )


class Reading(NamedTuple):
    """The statistics of a ticket's words.

    `words` is their number, `unknown` how many of them occur in fewer than two training tickets.
    `informativeness` is their sum in nats; `idf` the mean without function words (in a long ticket, that of
    the passage with the lowest mean). `foreign_language` is a language or script, or None.
    """

    words: int
    unknown: int
    informativeness: float
    idf: float
    foreign_language: str | None

    @property
    def unknown_share(self) -> float:
        return self.unknown / self.words if self.words else 0.0


def review_reasons(text: str, largest_logit: float, scope: Scope) -> list[Reason]:
    """The reason for which a person should review the ticket, or an empty list.

    Only the most specific reason is given; a ticket in a foreign language, say, is also out of scope.
    """
    if is_automatic_reply(text):
        return ["automatic_reply"]
    if not scope.words:
        return []
    ticket = read(text, scope)
    if ticket.foreign_language:
        return ["unknown_language"]
    if ticket.unknown_share > scope.max_unknown_share:
        return ["mostly_unknown_words"]
    if ticket.words == 0:
        return ["too_short"]
    limit = scope.min_typicality
    if limit is not None and typicality(ticket, largest_logit, scope) >= limit:
        return []
    if ticket.words <= SHORT_WORDS and ticket.informativeness < scope.min_informativeness:
        return ["too_short"]
    return [] if limit is None else ["out_of_scope"]


def typicality(ticket: Reading, largest_logit: float, scope: Scope) -> float:
    """The sum of the log tail probabilities of logit, informativeness and -idf among validation tickets."""
    measures = (largest_logit, ticket.informativeness, -ticket.idf)
    return sum(
        [
            math.log((bisect_right(values, measure) + 0.5) / (len(values) + 1))
            for values, measure in zip(scope.quantiles, measures, strict=True)
        ]
    )


def read(text: str, scope: Scope) -> Reading:
    """The statistics of a text's words."""
    found = split(text)
    if not found:
        return Reading(0, 0, 0.0, scope.unknown_idf, _foreign_script(text, scope))
    # map and zip avoid a Python loop over the words: this runs for every ticket.
    informativeness, idf, listed = zip(*map(vocabulary(scope).__getitem__, found), strict=True)
    unknown = [] if all(listed) else [word for word, one in zip(found, listed, strict=True) if not one]
    return Reading(
        words=len(found),
        unknown=len(unknown),
        informativeness=sum(informativeness),
        idf=_mean_idf([nats for nats in idf if nats is not None], scope.unknown_idf),
        foreign_language=_foreign_script(text, scope) or _foreign_language(found, unknown, scope),
    )


def _mean_idf(nats: list[float], unknown_idf: float) -> float:
    """The mean; in a long ticket the lowest mean of a passage, as most of it may be background."""
    if len(nats) < 2 * PASSAGE_WORDS:
        return sum(nats) / len(nats) if nats else unknown_idf
    passages = (
        nats[at : at + PASSAGE_WORDS] for at in range(0, len(nats) - PASSAGE_WORDS + 1, PASSAGE_WORDS // 2)
    )
    return min(sum(passage) for passage in passages) / PASSAGE_WORDS


def split(text: str) -> list[str]:
    """The normalized words of at least two letters."""
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    whole = unicodedata.normalize("NFKC", text).encode("utf-8", "replace").decode()
    return _WORD.findall(whole.lower())


def _foreign_language(found: Sequence[str], unknown: Sequence[str], scope: Scope) -> str | None:
    """A language with more function words in the ticket than the training languages have, or None.

    At least a third of the ticket's words must be unknown, and at least two of these function words of that
    language, because some words ("die", "me") belong to several languages.
    """
    if len(unknown) < 2 or 3 * len(unknown) < len(found):
        return None
    users = languages_of_words()
    counts = Counter(language for word in unknown for language in users.get(word, ()))
    for language in scope.languages:
        counts.pop(language, None)
    if not counts:
        return None
    language, hits = counts.most_common(1)[0]
    native = sum(any(known in users.get(word, ()) for known in scope.languages) for word in found)
    return language if hits >= 2 and hits > native else None


def _foreign_script(text: str, scope: Scope) -> str | None:
    """The script of most letters if it does not occur in the training tickets, else None."""
    if text.isascii():
        return None
    scripts = Counter(script(letter) for letter in text[:2000] if letter.isalpha())
    if not scripts:
        return None
    name, letters = scripts.most_common(1)[0]
    return name if 2 * letters > scripts.total() and name not in scope.scripts else None
