"""Joins tokens to words and finds the words in the ticket as it was sent."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from models.text import Joined
from models.tokenizer import AsciiOffsets, Encoding, word_splitter

_SPLITTER = word_splitter()
# This many tokens beyond each end are read too, to find words that cross it.
_AROUND = 4


@dataclass(slots=True)
class Word:
    """Characters [start, end) of a field as it was sent, and the positions of its tokens.

    `plain` is the word in the cleaned text. `wordy` tells whether it has a letter or a digit.
    """

    field: str
    start: int
    end: int
    tokens: list[int]
    plain: str

    @property
    def wordy(self) -> bool:
        return any(character.isalnum() for character in self.plain)


def words_of(joined: Joined, encoding: Encoding, first: int = 0, end: int | None = None) -> list[Word]:
    """The words of tokens [first, end) in order, without overlaps.

    A word is what the word tokenizer makes one token. Smaller tokens are joined. A larger token, or several
    that come from one character (an ellipsis), make one word. Tokens without characters belong to no word. A
    word that crosses either end is left out.
    """
    last = encoding.count if end is None else end
    at = max(0, first - _AROUND)
    every = _joined_tokens(joined, encoding, at, encoding.offsets[at : last + _AROUND])
    if at == 0 and last == encoding.count and first == 0:
        return every
    return [word for word in every if first <= word.tokens[0] and word.tokens[-1] < last]


def _joined_tokens(
    joined: Joined, encoding: Encoding, at: int, offsets: Sequence[tuple[int, int]]
) -> list[Word]:
    """The words of the tokens from position `at` on."""
    text = joined.text
    # Each token is a word, so that no word boundaries are needed.
    are_words = isinstance(encoding.offsets, AsciiOffsets) and encoding.offsets.are_words
    splits = [] if are_words else [end for _, (_, end) in _SPLITTER.pre_tokenize_str(text)]
    fields = iter(joined.fields)
    name, offset, cleaned = next(fields)
    limit, starts, ends = offset + len(cleaned.text), cleaned.starts, cleaned.ends
    found: list[Word] = []
    before: Word | None = None
    covered = -1  # number of the last word, as the word tokenizer splits, that a token has characters of
    for token, (start, end) in enumerate(offsets, at):
        if not are_words:
            while start < end and text[start].isspace():  # a subword may carry the space before it
                start += 1
            if start >= end:
                continue
        while start >= limit:
            name, offset, cleaned = next(fields)
            limit, starts, ends = offset + len(cleaned.text), cleaned.starts, cleaned.ends
            before = None
        begin, finish = int(starts[start - offset]), int(ends[(end if end < limit else limit) - offset - 1])
        continues = not are_words and bisect_right(splits, start) <= covered
        if before is not None and (continues or begin < before.end):
            before.tokens.append(token)
            before.end = max(before.end, finish)
            before.plain += text[start:end]
        else:
            before = Word(name, begin, finish, [token], text[start:end])
            found.append(before)
        if not are_words:
            covered = max(covered, bisect_right(splits, end - 1))
    return found


def cut(field: str, text: str | None, words: Iterable[Word]) -> str | None:
    """The text of a field without these words."""
    if text is None:
        return None
    kept, at = "", 0
    for word in sorted((word for word in words if word.field == field), key=lambda word: word.start):
        kept += text[at : word.start]
        at = word.end
    return kept + text[at:]


def token_words(words: Sequence[Word], count: int) -> list[int | None]:
    """For each of `count` tokens the index of its word, or None."""
    numbers: list[int | None] = [None] * count
    for number, word in enumerate(words):
        for token in word.tokens:
            numbers[token] = number
    return numbers
