"""Text to token ids with character offsets, based on the `tokenizers` library.

A token is a lower-cased run of letters, a run of digits, or a single other character. Beyond ASCII:

- text is normalized to NFKC, so that composed and decomposed accents, ligatures, full-width and
  "mathematical" letters give the same word;
- accented letters are letters, and combining marks belong to their letter: a French word is one token;
- an emoji, like any symbol, is a token of its own;
- scripts without spaces (Chinese, Japanese, Thai, ...) are split into characters.

A vocabulary may also contain pieces of words. A word that is not in the vocabulary is then split greedily
into the longest pieces, from left to right ("WordPiece", Wu et al. 2016); a piece inside a word starts with
"##". Without pieces such a word, and in either case an unknown number or symbol, is the unknown token.

Offsets count characters of the original text, also where normalization changes its length.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from string import ascii_lowercase
from typing import Any, cast

from tokenizers import Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Library

from models.dictionaries import Dictionaries

PADDING, UNKNOWN = "[PAD]", "[UNK]"
PADDING_ID, UNKNOWN_ID = 0, 1
INSIDE = "##"  # prefix of a piece that does not begin a word
# Scripts without spaces between words: each character is a token, with its marks.
_NO_SPACES = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_LETTER = rf"[\p{{L}}&&[^{_NO_SPACES}]]"
WORDS = rf"{_LETTER}(?:{_LETTER}|\p{{M}})*|\p{{Nd}}+|[^\s\p{{Nd}}]\p{{M}}*"
SHORTEST_PIECE, LONGEST_PIECE = 2, 6  # letters; single letters are pieces too
FEWEST_WORDS = 3  # different words that a piece must be in
LONGEST_WORD = 100  # letters; a longer one is unknown
FOREIGN_SHARE = (
    0.1  # unknown words per token; with fewer, a text's language is not looked up: that takes time
)


def normalizer() -> normalizers.Normalizer:
    """NFKC, then lower case."""
    return normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])


def word_splitter() -> pre_tokenizers.PreTokenizer:
    """Splits into runs of letters, runs of digits and single other characters, and drops spaces."""
    return pre_tokenizers.Split(Regex(WORDS), behavior="removed", invert=True)


def words(text: str) -> list[str]:
    """The normalized words of a text."""
    return [word for word, _ in word_splitter().pre_tokenize_str(normalizer().normalize_str(text))]


def build_word_tokenizer(texts: Iterable[str], min_count: int = 2) -> Library:
    """A tokenizer whose vocabulary is every word that occurs `min_count` times, after padding and unknown.

    Words are sorted by falling count, then alphabetically, so that the ids do not depend on the order of the
    texts.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(words(text))
    kept = sorted((word for word in counts if counts[word] >= min_count), key=lambda w: (-counts[w], w))
    ids = {PADDING: PADDING_ID, UNKNOWN: UNKNOWN_ID} | {word: i for i, word in enumerate(kept, start=2)}
    return _library(ids)


def build_piece_tokenizer(texts: Sequence[str], min_count: int = 2, pieces: int = 4_000) -> Library:
    """`build_word_tokenizer` with about `pieces` pieces of words after the words.

    Pieces have 2 to 6 letters. Those that save most tokens are chosen: the product of their length - 1 and
    the number of different words with them. All single letters of the texts are also pieces, so that each
    word made of them can be encoded.
    """
    known = build_word_tokenizer(texts, min_count).get_vocab()
    different = sorted({word for text in texts for word in words(text) if word[0].isalpha()})
    held: Counter[str] = Counter()
    for word in different:
        held.update(_pieces_of(word))
    worth = {piece: count * (len(piece.removeprefix(INSIDE)) - 1) for piece, count in held.items()}
    often = (piece for piece, count in held.items() if count >= FEWEST_WORDS)
    chosen = sorted(often, key=lambda piece: (-worth[piece], piece))[:pieces]
    letters = sorted({letter for word in different for letter in word} | set(ascii_lowercase))
    singles = [*letters, *(INSIDE + letter for letter in letters)]
    ids = dict(sorted(known.items(), key=lambda entry: entry[1]))
    for piece in [*singles, *chosen]:
        ids.setdefault(piece, len(ids))
    return _library(ids)


def _pieces_of(word: str) -> set[str]:
    """The pieces of 2 to 6 letters at the beginning of a word and, marked by INSIDE, inside it."""
    return {
        (INSIDE if start else "") + word[start : start + size]
        for size in range(SHORTEST_PIECE, min(LONGEST_PIECE, len(word)) + 1)
        for start in range(len(word) - size + 1)
    }


def extend_vocabulary(library: Library, more: Iterable[str]) -> Library:
    """A copy of the tokenizer with the words of `more` appended to its vocabulary."""
    ids = dict(sorted(library.get_vocab().items(), key=lambda entry: entry[1]))
    for word in more:
        ids.setdefault(word, len(ids))
    return _library(ids)


def _library(ids: dict[str, int]) -> Library:
    """A tokenizer with this vocabulary: word-level, or WordPiece if the vocabulary has pieces."""
    if any(entry.startswith(INSIDE) for entry in ids):
        model: models.Model = models.WordPiece(
            ids,
            unk_token=UNKNOWN,
            max_input_chars_per_word=LONGEST_WORD,
            continuing_subword_prefix=INSIDE,
        )
    else:
        model = models.WordLevel(ids, unk_token=UNKNOWN)
    library = Library(model)
    library.normalizer = normalizer()
    library.pre_tokenizer = word_splitter()
    return library


@dataclass(frozen=True, slots=True)
class Encoding:
    """The tokens of one text.

    `offsets[i]` are the character offsets of token i in `text`, `tokens[i]` its characters. `total` is the
    number of tokens in the text, of which the first `len(ids)` are read; `unknown` counts the words among
    these that are not in the vocabulary, split into pieces or not. `language` is the code of the foreign
    language whose words were read in English (`models.dictionaries`), else None; `english` is what was read,
    one vocabulary entry per token, separated by spaces.
    """

    ids: list[int]
    offsets: Sequence[tuple[int, int]]
    text: str
    unknown: int
    total: int
    language: str | None = None
    english: str = ""

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
    """Offsets of the first `count` tokens of an ASCII text, computed on first access (few need them).

    `sizes` are the numbers of characters of the tokens; None if each token is a whole word.
    """

    def __init__(self, text: str, count: int, sizes: Sequence[int] | None = None) -> None:
        self._text = text
        self._count = count
        self._sizes = sizes
        self._spans: list[tuple[int, int]] | None = None

    @property
    def are_words(self) -> bool:
        return self._sizes is None

    def _found(self) -> list[tuple[int, int]]:
        if self._spans is None:
            words = (word.span() for word in _ASCII_WORD.finditer(self._text.lower()))
            self._spans = list(islice(words if self._sizes is None else self._pieces(words), self._count))
        return self._spans

    def _pieces(self, words: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        sizes = iter(self._sizes or ())
        for start, end in words:
            while start < end:
                size = next(sizes, end - start)
                yield start, start + size
                start += size

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return self._found()[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._found() == list(other)

    def __repr__(self) -> str:
        return repr(self._found())


class Tokenizer:
    """A tokenizer and the number of tokens that its network reads."""

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
        self.vocabulary: dict[str, int] = library.get_vocab()
        self.vocab_size: int = library.get_vocab_size()
        self.dictionaries: Dictionaries | None = None
        # ASCII text is tokenized with a regular expression, in a tenth of the library's time.
        self._ids: dict[str, int] | None = self.vocabulary if _is_word_tokenizer(library) else None
        self._inside = {
            number
            for entry, number in self.vocabulary.items()
            if entry.startswith(INSIDE) and entry != INSIDE
        }

    @classmethod
    def from_json(cls, json: str, max_tokens: int) -> Tokenizer:
        """A tokenizer from the content of tokenizer.json; ValueError if it is invalid."""
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
            encoding = self._encode_ascii(text, self._ids)
        else:
            encoded = self.library.encode(_replace_lone_surrogates(text), add_special_tokens=False)
            encoding = self._encoding(text, encoded)
        return self._read_foreign(encoding) if self._may_be_foreign(encoding) else encoding

    def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
        encoded = self.library.encode_batch(
            [_replace_lone_surrogates(text) for text in texts], add_special_tokens=False
        )
        encodings = [self._encoding(text, one) for text, one in zip(texts, encoded, strict=True)]
        return [self._read_foreign(one) if self._may_be_foreign(one) else one for one in encodings]

    def _may_be_foreign(self, encoding: Encoding) -> bool:
        return self.dictionaries is not None and encoding.unknown >= FOREIGN_SHARE * encoding.count > 0

    def _read_foreign(self, encoding: Encoding) -> Encoding:
        """The encoding itself, or the one in English if the text is in a language with a dictionary."""
        assert self.dictionaries is not None
        spans: list[tuple[int, int]] = []
        ids: list[int] = []
        for number, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if number in self._inside and spans:  # the word goes on, so it is not in the vocabulary
                spans[-1] = (spans[-1][0], end)
                ids[-1] = UNKNOWN_ID
            else:
                spans.append((start, end))
                ids.append(number)
        words = [unicodedata.normalize("NFKC", encoding.text[start:end]).lower() for start, end in spans]
        language = self.dictionaries.language(words)
        if language is None:
            return encoding
        read = self.dictionaries.read(language, words, ids, UNKNOWN_ID)
        total = encoding.total - (encoding.count - len(read))
        english = " ".join(self.library.id_to_token(number) or UNKNOWN for number in read)
        return Encoding(read, spans, encoding.text, read.count(UNKNOWN_ID), total, language, english)

    def _encode_ascii(self, text: str, vocabulary: dict[str, int]) -> Encoding:
        words = _ASCII_WORD.findall(text.lower())
        if not self._inside:
            ids = [vocabulary.get(word, UNKNOWN_ID) for word in words[: self.max_tokens]]
            return Encoding(ids, AsciiOffsets(text, len(ids)), text, ids.count(UNKNOWN_ID), len(words))
        found = list(map(vocabulary.get, words))
        if None not in found:
            ids = cast(list[int], found[: self.max_tokens])
            return Encoding(ids, AsciiOffsets(text, len(ids)), text, 0, len(words))
        ids, sizes = [], []
        for word, number in zip(words, found, strict=True):
            if number is None:
                pieces = self._pieces(word, vocabulary)
                ids += [piece for piece, _ in pieces]
                sizes += [size for _, size in pieces]
            else:
                ids.append(number)
                sizes.append(len(word))
        total, unknown = len(ids), found.count(None)
        if total > self.max_tokens:
            ids = ids[: self.max_tokens]
            unknown = self._unknown(ids)
        return Encoding(ids, AsciiOffsets(text, len(ids), sizes), text, unknown, total)

    def _pieces(self, word: str, vocabulary: dict[str, int]) -> list[tuple[int, int]]:
        """(id, letters) of a word's pieces, from the left; one unknown token if it has none."""
        found: list[tuple[int, int]] = []
        start, prefix = 0, ""
        while start < len(word):
            end = len(word) if len(word) <= LONGEST_WORD else start
            while end > start and prefix + word[start:end] not in vocabulary:
                end -= 1
            if end == start:
                return [(UNKNOWN_ID, len(word))]
            found.append((vocabulary[prefix + word[start:end]], end - start))
            start, prefix = end, INSIDE
        return found

    def _unknown(self, ids: Sequence[int]) -> int:
        """The number of words in `ids` that are unknown or split into pieces."""
        inside = [number in self._inside for number in ids]
        in_pieces = sum(goes_on and not before for before, goes_on in pairwise(inside))
        return ids.count(UNKNOWN_ID) + in_pieces

    def _encoding(self, text: str, encoded: Any) -> Encoding:
        all_ids: list[int] = encoded.ids
        offsets: list[tuple[int, int]] = encoded.offsets
        ids, offsets = all_ids[: self.max_tokens], offsets[: self.max_tokens]
        if not text.isascii():
            offsets = [(start, _with_marks(text, end)) for start, end in offsets]
        return Encoding(ids, offsets, text, self._unknown(ids), len(all_ids))


# `WORDS` on lower-cased ASCII; \s would also match the four separators U+001C to U+001F.
_ASCII_WORD = re.compile(r"[a-z]+|[0-9]+|[^a-z0-9 \t\n\r\f\v]")


def _is_word_tokenizer(library: Library) -> bool:
    """Whether the tokenizer splits and normalizes as those of this module; a bundle may have another kind."""
    like = build_word_tokenizer([])
    return (
        (type(library.model) is models.WordLevel or _is_of_pieces(library.model))
        and repr(library.normalizer) == repr(like.normalizer)
        and repr(library.pre_tokenizer) == repr(like.pre_tokenizer)
        and library.post_processor is None
        and not library.get_added_tokens_decoder()
    )


def _is_of_pieces(model: Any) -> bool:
    return (
        type(model) is models.WordPiece
        and model.continuing_subword_prefix == INSIDE
        and model.max_input_chars_per_word == LONGEST_WORD
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
