"""The word tokenizer: how text is cut, what is a word beyond ASCII, and offsets into the text given."""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.tokenizer import (
    PADDING_ID,
    UNKNOWN_ID,
    Tokenizer,
    build_piece_tokenizer,
    build_word_tokenizer,
    words,
)

TEXTS = [
    "My lamp arrived broken. I'd like a new lamp, please!",
    "Order LK-482913: the café table. My order, my table",
    "l'écran est cassé, l'écran de ma lampe est cassé",
]
LETTERS_DIGITS_OTHERS = re.compile(r"[a-z]+|[0-9]+|[^\sa-z0-9]")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(build_word_tokenizer(TEXTS), max_tokens=120)


def test_padding_unknown_then_words_by_count() -> None:
    library = build_word_tokenizer(["b a b", "c a b"], min_count=2)
    assert library.get_vocab() == {"[PAD]": PADDING_ID, "[UNK]": UNKNOWN_ID, "b": 2, "a": 3}


def test_ids_do_not_depend_on_the_order_of_the_texts() -> None:
    backwards = build_word_tokenizer(reversed(TEXTS))
    assert backwards.to_str() == build_word_tokenizer(TEXTS).to_str()


def test_cuts_ascii_as_the_course_does_on_every_larkfield_ticket(
    larkfield: dict[str, list[dict[str, str]]],
) -> None:
    rows = [row["text"] for split in larkfield.values() for row in split]
    tokenizer = Tokenizer(build_word_tokenizer(rows[:100]), max_tokens=10_000)
    assert len(rows) == 5296
    for text, encoding in zip(rows, tokenizer.encode_batch(rows), strict=True):
        assert text.isascii()
        expected = list(LETTERS_DIGITS_OTHERS.finditer(text.lower()))
        assert encoding.offsets == [match.span() for match in expected]
        assert [token.lower() for token in encoding.tokens] == [match[0] for match in expected]


@given(st.text(st.characters(max_codepoint=127), max_size=60))
def test_cuts_any_ascii_as_the_course_does(text: str) -> None:
    separators = "\x1c\x1d\x1e\x1f"  # Python takes these controls for spaces; nobody types them
    text = text.translate(dict.fromkeys(map(ord, separators), " "))
    encoding = Tokenizer(build_word_tokenizer(TEXTS), 1000).encode(text)
    assert encoding.offsets == [match.span() for match in LETTERS_DIGITS_OTHERS.finditer(text.lower())]


def test_counts_and_offsets(tokenizer: Tokenizer) -> None:
    encoding = tokenizer.encode("My lamp: 2 zebras")
    assert encoding.tokens == ["My", "lamp", ":", "2", "zebras"]
    assert encoding.offsets == [(0, 2), (3, 7), (7, 8), (9, 10), (11, 17)]
    assert encoding.ids[0] == tokenizer.library.token_to_id("my")
    assert encoding.ids[2:] == [UNKNOWN_ID] * 3
    assert (encoding.count, encoding.unknown, encoding.total, encoding.truncated) == (5, 3, 5, False)


def test_reads_no_more_than_its_limit() -> None:
    tokenizer = Tokenizer(build_word_tokenizer(TEXTS), max_tokens=3)
    encoding = tokenizer.encode("my lamp zebra zebra zebra")
    assert encoding.tokens == ["my", "lamp", "zebra"]
    assert (encoding.count, encoding.unknown, encoding.total, encoding.truncated) == (3, 1, 5, True)
    assert not tokenizer.encode("my lamp order").truncated


def test_nothing_to_read(tokenizer: Tokenizer) -> None:
    for text in ("", " \n\t"):
        encoding = tokenizer.encode(text)
        assert (encoding.ids, encoding.offsets, encoding.tokens, encoding.total) == ([], [], [], 0)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("l'écran cassé", ["l", "'", "écran", "cassé"]),
        ("Großmutters Gartenstühle", ["Großmutters", "Gartenstühle"]),
        ("don’t “panic”", ["don", "’", "t", "“", "panic", "”"]),
        ("late 😡🚚!", ["late", "😡", "🚚", "!"]),
        ("ﬁle ｏｒｄｅｒ", ["ﬁle", "ｏｒｄｅｒ"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        ("٣ أيام", ["٣", "أيام"]),
        ("İstanbul", ["İstanbul"]),
        ("2x4m", ["2", "x", "4", "m"]),
        ("打印机 VPN不行", ["打", "印", "机", "VPN", "不", "行"]),
        ("プリンタが", ["プ", "リ", "ン", "タ", "が"]),
        ("ใช้ไม่ได้", ["ใ", "ช้", "ไ", "ม่", "ไ", "ด้"]),
    ],
)
def test_beyond_ascii(tokenizer: Tokenizer, text: str, tokens: list[str]) -> None:
    assert tokenizer.encode(text).tokens == tokens


@pytest.mark.parametrize("text", ["l'écran est cassé", "Ärger mit Åke", "Việt Nam", "é\u0323 x"])
def test_composed_and_decomposed_accents_are_the_same_words(text: str) -> None:
    composed, decomposed = (unicodedata.normalize(form, text) for form in ("NFC", "NFD"))
    tokenizer = Tokenizer(build_word_tokenizer([composed], min_count=1), 120)
    one, other = tokenizer.encode(composed), tokenizer.encode(decomposed)
    assert words(composed) == words(decomposed)
    assert one.ids == other.ids
    assert one.unknown == 0
    assert [unicodedata.normalize("NFC", token) for token in other.tokens] == one.tokens


def test_letters_in_fancy_dress_are_the_same_word(tokenizer: Tokenizer) -> None:
    plain = tokenizer.encode("my lamp").ids
    for text in ("ｍｙ ｌａｍｐ", "𝗺𝘆 𝗹𝗮𝗺𝗽", "MY LAMP"):
        assert tokenizer.encode(text).ids == plain


def test_upper_case_beyond_ascii(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("L'ÉCRAN").ids == tokenizer.encode("l'écran").ids


ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=60)


@given(ANY_TEXT)
def test_offsets_of_any_text_lie_in_it_in_order(text: str) -> None:
    encoding = Tokenizer(build_word_tokenizer(TEXTS), 1000).encode(text)
    before = 0
    for (start, end), token in zip(encoding.offsets, encoding.tokens, strict=True):
        assert before <= start < end <= len(text)
        assert token
        before = start
    assert len(encoding.ids) == len(encoding.offsets) == encoding.total


def test_half_a_character_is_read_as_unknown(tokenizer: Tokenizer) -> None:
    encoding = tokenizer.encode("my \ud83d lamp")
    assert encoding.offsets == [(0, 2), (3, 4), (5, 9)]
    assert encoding.unknown == 1


def test_a_batch_reads_as_one_by_one(tokenizer: Tokenizer) -> None:
    texts = [*TEXTS, "", "cafe\u0301", "\udfff"]
    assert tokenizer.encode_batch(texts) == [tokenizer.encode(text) for text in texts]


def test_survives_its_file(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer.library.to_str(), encoding="utf-8")
    assert Tokenizer.from_file(path, 120).encode(TEXTS[1]) == tokenizer.encode(TEXTS[1])


def test_padding_and_truncation_in_the_file_do_not_count(tokenizer: Tokenizer) -> None:
    library = build_word_tokenizer(TEXTS)
    library.enable_truncation(2)
    library.enable_padding(length=50)
    loaded = Tokenizer.from_json(library.to_str(), 120)
    assert loaded.encode(TEXTS[0]) == tokenizer.encode(TEXTS[0])


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"version": "1.0"}', "not json"])
def test_refuses_what_is_not_a_tokenizer(content: str) -> None:
    with pytest.raises(ValueError, match="not a tokenizer"):
        Tokenizer.from_json(content, 120)


def test_refuses_other_ids_for_padding_and_unknown() -> None:
    content = json.loads(build_word_tokenizer(TEXTS).to_str())
    content["model"]["vocab"] |= {"[PAD]": 1, "[UNK]": 0}
    with pytest.raises(ValueError, match="must have"):
        Tokenizer.from_json(json.dumps(content), 120)


def test_refuses_to_read_nothing() -> None:
    with pytest.raises(ValueError, match="max_tokens"):
        Tokenizer(build_word_tokenizer(TEXTS), 0)


# ------------------------------------------------------------------------------------------------- pieces

COMPOUNDS = [
    "Gartentisch Gartenstuhl Gartenhaus Gartenbank Gartenzaun",
    "Tischplatte Stuhlbein Hausdach Bankdrücken Zaunpfahl Tischbein Tischdecke",
    "my lamp, my table 4711",
]


@pytest.fixture(scope="module")
def pieces() -> Tokenizer:
    return Tokenizer(build_piece_tokenizer(COMPOUNDS, min_count=1, pieces=40), max_tokens=120)


def test_a_known_word_is_one_token_and_another_is_cut_into_its_longest_pieces(pieces: Tokenizer) -> None:
    encoding = pieces.encode("Mein Gartentisch, my gartenlampe 0815 ☂")
    assert encoding.tokens[encoding.tokens.index("Gartentisch") + 1] == ","
    assert "".join(encoding.tokens) == "MeinGartentisch,mygartenlampe0815☂"
    assert "garten" in encoding.tokens
    assert encoding.unknown == 4  # Mein, gartenlampe, 0815, ☂
    assert encoding.ids[-2:] == [UNKNOWN_ID, UNKNOWN_ID]
    assert encoding.ids.count(UNKNOWN_ID) == 2


def test_pieces_stand_behind_the_words_and_do_not_depend_on_the_order(pieces: Tokenizer) -> None:
    known = build_word_tokenizer(COMPOUNDS, 1).get_vocab()
    vocabulary = pieces.library.get_vocab()
    assert {word: vocabulary[word] for word in known} == known
    assert build_piece_tokenizer(COMPOUNDS[::-1], 1, 40).to_str() == pieces.library.to_str()


def test_a_word_without_end_is_unknown(pieces: Tokenizer) -> None:
    for text in ("x" * 101, "ü" * 101):
        assert pieces.encode(text).ids == [UNKNOWN_ID]
    assert pieces.encode("x" * 100).count == 100


@given(ANY_TEXT)
def test_pieces_of_any_text_lie_in_it_in_order(pieces: Tokenizer, text: str) -> None:
    encoding = pieces.encode(text)
    before = 0
    for start, end in encoding.offsets:
        assert before <= start < end <= len(text)
        before = start
    assert len(encoding.ids) == len(encoding.offsets)
    assert encoding.unknown <= encoding.count
