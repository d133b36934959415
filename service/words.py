"""The words of a ticket as it was sent: tokens put together again, with places in the customer's own text."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from models.text import Joined
from models.tokenizer import Encoding, word_splitter

_SPLITTER = word_splitter()


@dataclass(slots=True)
class Word:
    """Characters [start, end) of a field as it was sent, and the numbers of the tokens inside.

    `plain` is the word as the network's text has it; `wordy` whether it holds a letter or a digit.
    """

    field: str
    start: int
    end: int
    tokens: list[int]
    plain: str

    @property
    def wordy(self) -> bool:
        return any(character.isalnum() for character in self.plain)


def words_of(joined: Joined, encoding: Encoding) -> list[Word]:
    """The words that the network read, in order; they never overlap.

    A word is what the word tokenizer would make one token. Tokens that are smaller are put together, a token
    that is larger, or several that came from one character (an ellipsis), make one word of all they cover.
    Tokens without characters belong to no word.
    """
    text = joined.text
    splits = [end for _, (_, end) in _SPLITTER.pre_tokenize_str(text)]
    fields = iter(joined.fields)
    name, offset, cleaned = next(fields)
    limit = offset + len(cleaned.text)
    found: list[Word] = []
    before: Word | None = None
    covered = -1  # the last of the word tokenizer's words that a token so far reached into
    for token, (start, end) in enumerate(encoding.offsets):
        while start < end and text[start].isspace():  # a subword may carry the space before it
            start += 1
        if start >= end:
            continue
        while start >= limit:
            name, offset, cleaned = next(fields)
            limit = offset + len(cleaned.text)
            before = None
        begin, finish = cleaned.starts[start - offset], cleaned.ends[min(end, limit) - offset - 1]
        first = bisect_right(splits, start)
        if before and (first <= covered or begin < before.end):
            before.tokens.append(token)
            before.end = max(before.end, finish)
            before.plain += text[start:end]
        else:
            before = Word(name, begin, finish, [token], text[start:end])
            found.append(before)
        covered = max(covered, bisect_right(splits, end - 1))
    return found


def cut(field: str, text: str | None, words: Iterable[Word]) -> str | None:
    """A field without the words that stand in it."""
    if text is None:
        return None
    kept, at = "", 0
    for word in sorted((word for word in words if word.field == field), key=lambda word: word.start):
        kept += text[at : word.start]
        at = word.end
    return kept + text[at:]


def token_words(words: Sequence[Word], count: int) -> list[int | None]:
    """For each of `count` tokens the number of its word, or None."""
    numbers: list[int | None] = [None] * count
    for number, word in enumerate(words):
        for token in word.tokens:
            numbers[token] = number
    return numbers
