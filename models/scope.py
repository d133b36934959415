"""Whether a ticket looks like what the router knows, told from its words and from the size of its logits.

`fit` writes down, from training and validation tickets, what is usual; `objections` compares one ticket
with that. Four things speak against leaving a ticket to the router, each for a reason a person can check:

- `out_of_scope`: no team gets a large logit (Hendrycks et al., 2022, maximum logit score), or many words
  together tell the teams less apart than those of nearly any ticket;
- `mostly_unknown_words`: most of its words stand in no training ticket;
- `unknown_language`: its script, or the short words that hold it together, are of a language that the
  training tickets are not in;
- `too_short`: a few words, none of which tells the teams apart.
"""

from __future__ import annotations

import base64
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, field_validator

from models.languages import languages_of_words, script

Reason = Literal["low_confidence", "out_of_scope", "mostly_unknown_words", "too_short", "unknown_language"]

MOST_WORDS_KEPT = 30_000
TELLING_STEPS = 32  # per nat
SHORT = 8  # words
_ENTRY = np.dtype([("hash", "<u4"), ("telling", "u1")])
_WORD = re.compile(r"[^\W\d_]{2,}+")
_ASCII_WORD = re.compile(r"[a-z]{2,}+")  # the same, found in half the time


class Scope(BaseModel):
    """What is usual; as made by default, nothing is known and no ticket is objected to.

    `max_logit`: the largest logit that a ticket must reach. `most_unknown`: the share of words that may be
    unknown. `least_telling`: nats, summed over the words of a ticket; a third is enough for a short one.
    `words`: base64 of one little-endian uint32 (CRC-32 of a word) and one uint8 (1/32 nat) for each known
    word. `languages`, `scripts`: those of the training tickets.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    max_logit: float | None = None
    most_unknown: Annotated[float, Field(ge=0, le=1)] = 1.0
    least_telling: Annotated[float, Field(ge=0)] = 0.0
    languages: list[str] = []
    scripts: list[str] = []
    words: str = ""

    @field_validator("words")
    @classmethod
    def _is_a_table(cls, words: str) -> str:
        np.frombuffer(base64.b64decode(words, validate=True), _ENTRY)  # ValueError where it is none
        return words


class _Telling(dict[str, float | None]):
    """`Scope.words` by word; remembers the words that it was asked for, up to a limit."""

    MOST_REMEMBERED = 50_000

    def __init__(self, words: str) -> None:
        table = np.frombuffer(base64.b64decode(words), _ENTRY)
        nats = (table["telling"] / TELLING_STEPS).tolist()
        self.by_hash: dict[int, float] = dict(zip(table["hash"].tolist(), nats, strict=True))

    def __missing__(self, word: str) -> float | None:
        if len(self) >= self.MOST_REMEMBERED:
            self.clear()
        nats = self[word] = self.by_hash.get(zlib.crc32(word.encode()))
        return nats


@lru_cache(maxsize=8)
def telling_words(words: str) -> _Telling:
    """`Scope.words` as a mapping: nats that each word says about the team, None for an unknown word."""
    return _Telling(words)


@dataclass(frozen=True, slots=True)
class Reading:
    """What one ticket's words say: their number, how many are unknown, what they tell, whose they are."""

    words: int
    unknown: int
    telling: float
    foreign: str | None  # a language or script

    @property
    def unknown_share(self) -> float:
        return self.unknown / self.words if self.words else 0.0


def objections(text: str, logits: np.ndarray, scope: Scope) -> list[Reason]:
    """The reasons against routing a ticket, from its text and logits (teams,)."""
    reasons: list[Reason] = []
    if scope.max_logit is not None and float(logits.max()) < scope.max_logit:
        reasons.append("out_of_scope")
    if scope.words:
        reasons += [r for r in _objections_to_words(read(text, scope), scope) if r not in reasons]
    return reasons


def _objections_to_words(ticket: Reading, scope: Scope) -> list[Reason]:
    """At most one: each of these reasons would often bring the next one with it."""
    if ticket.foreign:
        return ["unknown_language"]
    if ticket.unknown_share > scope.most_unknown:
        return ["mostly_unknown_words"]
    if ticket.words == 0 or (ticket.words <= SHORT and ticket.telling < scope.least_telling / 3):
        return ["too_short"]
    if ticket.words > SHORT and ticket.telling < scope.least_telling:
        return ["out_of_scope"]
    return []


def read(text: str, scope: Scope) -> Reading:
    """Look every word of a text up in the training tickets and, where unknown, among the languages."""
    found = split(text)
    known = telling_words(scope.words)
    nats = [known[word] for word in found]
    strangers = [word for word, value in zip(found, nats, strict=True) if value is None]
    telling = sum([value for value in nats if value is not None])
    foreign = _foreign_script(text, scope) or _foreign_language(found, strangers, scope)
    return Reading(len(found), len(strangers), telling, foreign)


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


# -------------------------------------------------------------------------------------------------- fit


def fit(
    texts: Sequence[str],
    teams: Sequence[str],
    valid_texts: Sequence[str],
    valid_logits: np.ndarray,
    *,
    kept: float = 0.98,
) -> Scope:
    """What is usual in the training tickets (`texts`, `teams`) and the validation tickets.

    `valid_logits` (tickets, teams) are the network's. `kept` is the share of validation tickets that
    reach `max_logit`. The other limits let at least 199 of 200 validation tickets through.
    """
    scope = Scope(
        max_logit=float(np.quantile(valid_logits.max(axis=1), 1 - kept)),
        languages=_languages(texts),
        scripts=_scripts(texts),
        words=_telling_words(texts, teams),
    )
    readings = [read(text, scope) for text in valid_texts]
    unknown = [reading.unknown_share for reading in readings]
    telling = [reading.telling for reading in readings]
    return scope.model_copy(
        update={
            "most_unknown": max(0.5, float(np.quantile(unknown, 0.995))),
            "least_telling": float(np.quantile(telling, 0.005)),
        }
    )


def _languages(texts: Sequence[str]) -> list[str]:
    """The languages that one ticket in twenty is in, going by its short words."""
    users = languages_of_words()
    tickets: Counter[str] = Counter()
    for text in texts:
        hits = Counter(language for word in split(text) for language in users.get(word, ()))
        best = max(hits.values(), default=0)
        if best >= 2:
            tickets.update(language for language, count in hits.items() if count == best)
    return sorted(language for language, count in tickets.items() if 20 * count >= len(texts))


def _scripts(texts: Sequence[str]) -> list[str]:
    """The scripts that one letter in a thousand is of."""
    letters = Counter(letter for text in texts for letter in text if letter.isalpha())
    scripts: Counter[str] = Counter()
    for letter, count in letters.items():
        scripts[script(letter)] += count
    return sorted(name for name, count in scripts.items() if 1000 * count >= scripts.total())


def _telling_words(texts: Sequence[str], teams: Sequence[str]) -> str:
    """The commonest words that two tickets have, with what each says about the team, as `Scope.words`.

    What a word says is the divergence, in nats, of the teams of its tickets from those of all tickets:
    KL(P(team | word) || P(team)), where two imagined tickets of all teams temper the word's own.
    """
    tickets = Counter(word for text in texts for word in set(split(text)))
    shared = sorted((word for word, count in tickets.items() if count >= 2), key=lambda w: (-tickets[w], w))
    row = {word: number for number, word in enumerate(shared[:MOST_WORDS_KEPT])}
    names = sorted(set(teams))
    column = {team: number for number, team in enumerate(names)}
    counts = np.zeros((len(row), len(names)))
    for text, team in zip(texts, teams, strict=True):
        counts[[row[word] for word in set(split(text)) if word in row], column[team]] += 1
    of_all = np.array([teams.count(team) for team in names]) / len(teams)
    tempered = (counts + 2 * of_all) / (counts.sum(axis=1, keepdims=True) + 2)
    nats = (tempered * np.log(tempered / of_all)).sum(axis=1)
    table = np.zeros(len(row), _ENTRY)
    table["hash"] = [zlib.crc32(word.encode()) for word in row]
    table["telling"] = np.minimum(255, np.round(nats * TELLING_STEPS))
    return base64.b64encode(np.sort(table, order="hash").tobytes()).decode()
