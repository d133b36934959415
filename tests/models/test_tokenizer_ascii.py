"""The fast path for ASCII text gives the same tokens as the library."""

from __future__ import annotations

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import models, pre_tokenizers

from models.tokenizer import Encoding, Tokenizer, build_piece_tokenizer, build_word_tokenizer

TEXTS = [
    "My card shows order 4711 twice, why?",
    "the kettle's lid -- broken on arrival",
    "card order the why",
]


@pytest.fixture(scope="module", params=["words", "pieces"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    build = build_piece_tokenizer if request.param == "pieces" else build_word_tokenizer
    return Tokenizer(build(TEXTS, min_count=1), max_tokens=12)


def by_library(tokenizer: Tokenizer, text: str) -> Encoding:
    return tokenizer.encode_batch([text])[0]


def same(one: Encoding, other: Encoding) -> bool:
    return (one.ids, list(one.offsets), one.unknown, one.total, one.tokens) == (
        other.ids,
        list(other.offsets),
        other.unknown,
        other.total,
        other.tokens,
    )


@given(st.text(st.characters(max_codepoint=127), max_size=80))
@settings(max_examples=500, deadline=None)
def test_any_ascii_text(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer._ids is not None
    assert same(tokenizer.encode(text), by_library(tokenizer, text))


@pytest.mark.parametrize("text", [*TEXTS, "", " ", string.printable, "".join(map(chr, range(128)))])
def test_chosen_texts(tokenizer: Tokenizer, text: str) -> None:
    assert same(tokenizer.encode(text), by_library(tokenizer, text))


def test_every_ticket(tokenizer: Tokenizer, larkfield: dict[str, list[dict[str, str]]]) -> None:
    texts = [row["text"] for split in larkfield.values() for row in split]
    for text, expected in zip(texts, tokenizer.encode_batch(texts), strict=True):
        assert same(tokenizer.encode(text), expected)


def test_offsets_behave_like_a_list(tokenizer: Tokenizer) -> None:
    offsets = tokenizer.encode("order 4711 twice").offsets
    assert offsets == [(0, 5), (6, 10), (11, 16)]
    assert offsets[1] == (6, 10)
    assert offsets[-2:] == [(6, 10), (11, 16)]
    assert len(offsets) == 3
    assert list(offsets) == [(0, 5), (6, 10), (11, 16)]


def test_another_kind_of_tokenizer_keeps_its_own_way() -> None:
    library = Library(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "a-b": 2}, unk_token="[UNK]"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = Tokenizer(library, max_tokens=5)
    assert tokenizer.encode("a-b").ids == [2]
