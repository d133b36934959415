"""Text to token ids and back to characters, on the `tokenizers` library.

A token is a lower-cased run of letters, a run of digits, or a single other character. Beyond ASCII:

- text is compared in the form NFKC, so that composed and decomposed accents, ligatures, full-width and
  "mathematical" letters are the same word;
- accented letters are letters and marks stay with the letter they mark: a French word is one token;
- an emoji, like any symbol, is a token of its own.

Offsets count characters of the original text, also where normalization changes its length.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

PADDING, UNKNOWN = "[PAD]", "[UNK]"
PADDING_ID, UNKNOWN_ID = 0, 1
WORDS = r"\p{L}[\p{L}\p{M}]*|\p{Nd}+|[^\s\p{L}\p{Nd}]\p{M}*"


def normalizer() -> normalizers.Normalizer:
    """The normal form in which words are compared: NFKC, lower-cased."""
    return normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])


def word_splitter() -> pre_tokenizers.PreTokenizer:
    """Runs of letters, runs of digits, single other characters; spaces separate and are dropped."""
    return pre_tokenizers.Split(Regex(WORDS), behavior="removed", invert=True)


def words(text: str) -> list[str]:
    """The normalized words of a text."""
    return [word for word, _ in word_splitter().pre_tokenize_str(normalizer().normalize_str(text))]


def build_word_tokenizer(texts: Iterable[str], min_count: int = 2) -> Library:
    """A tokenizer whose vocabulary is every word seen `min_count` times: 0 padding, 1 unknown, then words.

    Words are numbered by falling count, equal counts in alphabetical order, so that the ids do not
    depend on the order of the texts.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(words(text))
    kept = sorted((word for word in counts if counts[word] >= min_count), key=lambda w: (-counts[w], w))
    ids = {PADDING: PADDING_ID, UNKNOWN: UNKNOWN_ID} | {word: i for i, word in enumerate(kept, start=2)}
    return _word_level(ids)


def extend_vocabulary(library: Library, more: Iterable[str]) -> Library:
    """A copy of the word tokenizer with the words of `more` that it lacks appended to its vocabulary."""
    ids = dict(sorted(library.get_vocab().items(), key=lambda entry: entry[1]))
    for word in more:
        ids.setdefault(word, len(ids))
    return _word_level(ids)


def _word_level(ids: dict[str, int]) -> Library:
    library = Library(models.WordLevel(ids, unk_token=UNKNOWN))
    library.normalizer = normalizer()
    library.pre_tokenizer = word_splitter()
    return library


@dataclass(frozen=True, slots=True)
class Encoding:
    """One text as the network reads it.

    `offsets[i]` are the character offsets of token i in `text`, `tokens[i]` its characters. `total` is the
    number of tokens in the text, of which the first `len(ids)` are read; `unknown` counts those of them that
    the vocabulary lacks.
    """

    ids: list[int]
    offsets: Sequence[tuple[int, int]]
    text: str
    unknown: int
    total: int

    @property
    def tokens(self) -> list[str]:
        return [self.text[start:end] for start, end in self.offsets]

    @property
    def count(self) -> int:
        return len(self.ids)

    @property
    def truncated(self) -> bool:
        return self.total > len(self.ids)


class AsciiOffsets(Sequence[tuple[int, int]]):
    """Offsets of the first `count` words of an ASCII text, computed on first access (few need them)."""

    def __init__(self, text: str, count: int) -> None:
        self._text = text
        self._count = count
        self._spans: list[tuple[int, int]] | None = None

    def _found(self) -> list[tuple[int, int]]:
        if self._spans is None:
            words = _ASCII_WORD.finditer(self._text.lower())
            self._spans = [word.span() for word in islice(words, self._count)]
        return self._spans

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return self._found()[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._found() == list(other)

    def __repr__(self) -> str:
        return repr(self._found())


class Tokenizer:
    """A trained tokenizer and the number of tokens that its network reads."""

    def __init__(self, library: Library, max_tokens: int) -> None:
        if library.token_to_id(PADDING) != PADDING_ID or library.token_to_id(UNKNOWN) != UNKNOWN_ID:
            raise ValueError(
                f"the vocabulary must have {PADDING} as id {PADDING_ID} and {UNKNOWN} as {UNKNOWN_ID}"
            )
        if max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, not {max_tokens}")
        library.no_padding()
        library.no_truncation()
        self.library = library
        self.max_tokens = max_tokens
        self.vocab_size: int = library.get_vocab_size()
        # ASCII text is tokenized with a regular expression, in a tenth of the library's time.
        self._ids: dict[str, int] | None = library.get_vocab() if _is_word_tokenizer(library) else None

    @classmethod
    def from_json(cls, json: str, max_tokens: int) -> Tokenizer:
        """Read the content of a tokenizer.json; ValueError where it is not one."""
        try:
            library = Library.from_str(json)
        except Exception as error:  # the library raises bare Exception
            raise ValueError(f"not a tokenizer: {error}") from None
        return cls(library, max_tokens)

    @classmethod
    def from_file(cls, path: str | Path, max_tokens: int) -> Tokenizer:
        return cls.from_json(Path(path).read_text(encoding="utf-8"), max_tokens)

    def encode(self, text: str) -> Encoding:
        if self._ids is not None and text.isascii():
            return self._encode_ascii(text, self._ids)
        return self._encoding(
            text, self.library.encode(_replace_lone_surrogates(text), add_special_tokens=False)
        )

    def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
        encoded = self.library.encode_batch(
            [_replace_lone_surrogates(text) for text in texts], add_special_tokens=False
        )
        return [self._encoding(text, one) for text, one in zip(texts, encoded, strict=True)]

    def _encode_ascii(self, text: str, vocabulary: dict[str, int]) -> Encoding:
        words = _ASCII_WORD.findall(text.lower())
        ids = [vocabulary.get(word, UNKNOWN_ID) for word in words[: self.max_tokens]]
        return Encoding(ids, AsciiOffsets(text, len(ids)), text, ids.count(UNKNOWN_ID), len(words))

    def _encoding(self, text: str, encoded: Any) -> Encoding:
        all_ids: list[int] = encoded.ids
        offsets: list[tuple[int, int]] = encoded.offsets
        ids, offsets = all_ids[: self.max_tokens], offsets[: self.max_tokens]
        if not text.isascii():
            offsets = [(start, _with_marks(text, end)) for start, end in offsets]
        return Encoding(ids, offsets, text, ids.count(UNKNOWN_ID), len(all_ids))


# `WORDS` on lower-cased ASCII; \s would also match the four separators U+001C to U+001F.
_ASCII_WORD = re.compile(r"[a-z]+|[0-9]+|[^a-z0-9 \t\n\r\f\v]")


def _is_word_tokenizer(library: Library) -> bool:
    """Whether the tokenizer was made by `build_word_tokenizer`; a bundle may carry another kind."""
    like = build_word_tokenizer([])
    return (
        type(library.model) is type(like.model)
        and repr(library.normalizer) == repr(like.normalizer)
        and repr(library.pre_tokenizer) == repr(like.pre_tokenizer)
        and library.post_processor is None
        and not library.get_added_tokens_decoder()
    )


_LONE_SURROGATES = re.compile(r"[\ud800-\udfff]")


def _replace_lone_surrogates(text: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode, by U+FFFD."""
    return text if text.isascii() else _LONE_SURROGATES.sub("\ufffd", text)


def _with_marks(text: str, end: int) -> int:
    """The end of a token including its combining marks, which NFKC composition drops from the offsets."""
    while end < len(text) and unicodedata.category(text[end])[0] == "M":
        end += 1
    return end
