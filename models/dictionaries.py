"""Tickets in languages that the network was not trained on, read word by word in English.

A bundle may contain `dictionaries.json`. It lists, for each language, frequent words and for each of them the
entry of the network's vocabulary whose meaning is nearest (`training.dictionaries`). A ticket in such a
language becomes the ids of these entries, at the offsets of its own words. The network then reads it like an
English ticket with foreign word order. Tickets in the training language are not changed.

A ticket's language is the one under which its words are most probable: a word at place r of a language's list
has a probability proportional to 1 / (r + 30) (Zipf's law). A text counts as foreign if one of its words is
not in the vocabulary, most of its words are in the other language's list, and that language is clearly more
probable than the training language.
"""

from __future__ import annotations

import json
import math
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from models.languages import languages_of_words

NAMES = {
    "de": "German",
    "en": "English",
    "es": "Spanish",
    "fr": "French",
    "it": "Italian",
    "nl": "Dutch",
    "pl": "Polish",
    "pt": "Portuguese",
    "ru": "Russian",
    "tr": "Turkish",
}
MOST_WORDS = 200  # of a text, by which its language is found
LEAST_SHARE = 0.5  # of the words that must be in the language's list
MARGIN = 2.0  # nats by which a foreign language must be more probable than the training language
RANK_OFFSET, UNSEEN = 30, 100_000  # a word that is in no list counts as the one at place UNSEEN
SHORTEST_STEM = 5  # letters
LONGEST_ENDING = 3  # letters
GERMAN = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss"})


class Dictionary:
    """The words of one language, the commonest first, and the vocabulary ids that they are read as."""

    def __init__(self, code: str, words: Sequence[str], ids: Sequence[int]) -> None:
        self.code = code
        self.ids = ids
        self.ranks = {word: rank for rank, word in reversed(list(enumerate(words)))}
        for rank, word in enumerate(words):
            if not word.isascii():
                for spelling in spellings(word, code):
                    self.ranks.setdefault(spelling, rank)

    def rank(self, word: str) -> int | None:
        """The place of a word, or of its beginning if only the ending is unknown."""
        found = self.ranks.get(word)
        if found is None and word.isalpha():
            for size in range(len(word) - 1, max(SHORTEST_STEM, len(word) - LONGEST_ENDING) - 1, -1):
                if (found := self.ranks.get(word[:size])) is not None:
                    break
        return found

    def evidence(self, words: Sequence[str]) -> tuple[float, int]:
        """The log-probability of words above that of unseen words, and how many of them are listed."""
        ranks = [rank for word in words if (rank := self.ranks.get(word)) is not None]
        return sum(math.log(UNSEEN / (rank + RANK_OFFSET)) for rank in ranks), len(ranks)


class Dictionaries:
    """The dictionaries of a bundle. `vocabulary` maps the entries of its tokenizer to ids."""

    def __init__(self, content: Mapping[str, Any], vocabulary: Mapping[str, int]) -> None:
        """ValueError if the content is not that of a dictionaries.json for this vocabulary."""
        self.native = str(content["trained"])
        self.foreign: dict[str, Dictionary] = {}
        for code, listed in content["languages"].items():
            if code not in NAMES:
                raise ValueError(f"unknown language {code!r}; known are: {', '.join(NAMES)}")
            words, read_as = listed["words"].split(), listed["read_as"].split()
            if len(words) != len(read_as):
                raise ValueError(f"{code} has {len(words)} words, but {len(read_as)} words in read_as")
            try:
                ids = [vocabulary[word] for word in read_as]
            except KeyError as missing:
                raise ValueError(f"{code} reads a word as {missing}, which the vocabulary lacks") from None
            self.foreign[code] = Dictionary(code, words, ids)
        self.own = Dictionary(self.native, content["own_words"].split(), ())

    @classmethod
    def from_json(cls, data: str, vocabulary: Mapping[str, int]) -> Dictionaries:
        """ValueError if `data` is not a dictionaries.json for this vocabulary."""
        try:
            return cls(json.loads(data), vocabulary)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a file of dictionaries: {error!r}") from None

    def language(self, words: Sequence[str]) -> str | None:
        """The code of the foreign language that the words are in, or None."""
        letters = [word for word in words[:MOST_WORDS] if word.isalpha()]
        if not letters:
            return None
        evidence = {code: each.evidence(letters) for code, each in self.foreign.items()}
        code = max(evidence, key=lambda each: evidence[each][0])
        nats, listed = evidence[code]
        if listed < LEAST_SHARE * len(letters) or nats < self.own.evidence(letters)[0] + MARGIN:
            return None
        return None if self._is_another(letters, code) else code

    def _is_another(self, words: Sequence[str], code: str) -> bool:
        """Whether a language without a dictionary has more function words among `words`."""
        users = languages_of_words()
        counts = Counter(language for word in words for language in users.get(word, ()))
        known = max(counts[NAMES[code]], counts[NAMES[self.native]])
        others = [count for name, count in counts.items() if name not in NAMES.values()]
        return max(others, default=0) > known

    def read(self, code: str, words: Sequence[str], ids: Sequence[int], unknown: int) -> list[int]:
        """The ids that words in language `code` are read as; `ids` are their own ids, or `unknown`."""
        dictionary = self.foreign[code]
        read = []
        for word, number in zip(words, ids, strict=True):
            rank = dictionary.ranks.get(word) if number != unknown else dictionary.rank(word)
            read.append(number if rank is None else dictionary.ids[rank])
        return read


def spellings(word: str, code: str) -> set[str]:
    """A word as it is typed without accents; in German also with ae, oe, ue and ss."""
    plain = "".join(
        letter for letter in unicodedata.normalize("NFD", word) if unicodedata.category(letter) != "Mn"
    )
    found = {plain.replace("ß", "ss").replace("ł", "l").replace("ı", "i")}
    if code == "de":
        found |= {word.translate(GERMAN), word.replace("ß", "ss")}
    return found - {word}
