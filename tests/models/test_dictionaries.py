"""Tickets in other languages become the ids of English words, at the offsets of their own words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from models.dictionaries import Dictionaries, spellings
from models.tokenizer import UNKNOWN_ID, Tokenizer, build_piece_tokenizer

ENGLISH = "where is my parcel the mower does not start i want to return it please refund me"
CONTENT: dict[str, Any] = {
    "trained": "en",
    "own_words": ENGLISH,
    "languages": {
        "de": {
            "words": "ist mein wo paket rasenmäher zurück möchte ich das große",
            "read_as": "is my where parcel mower return want i the mower",
        },
        "fr": {"words": "où est mon colis tondeuse", "read_as": "where is my parcel mower"},
    },
}


@pytest.fixture
def tokenizer() -> Tokenizer:
    made = Tokenizer(build_piece_tokenizer([ENGLISH, ENGLISH], pieces=20), 100)
    made.dictionaries = Dictionaries(CONTENT, made.library.get_vocab())
    return made


def test_a_german_ticket_is_read_in_english_at_its_own_offsets(tokenizer: Tokenizer) -> None:
    text = "Wo ist mein  Paket?"
    encoding = tokenizer.encode(text)
    assert encoding.language == "de"
    assert encoding.english.split()[:4] == ["where", "is", "my", "parcel"]
    assert encoding.tokens == ["Wo", "ist", "mein", "Paket", "?"]
    assert tokenizer.encode_batch([text])[0] == encoding


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("Mein Rasenmäher ist das", "mower"),
        ("Mein Rasenmaeher ist das", "mower"),
        ("Mein Rasenmaher ist das", "mower"),
        ("Mein Rasenma\u0308her ist das", "mower"),
        ("Mein Rasenmähern ist das", "mower"),
        ("Mein GROSSE ist das", "mower"),
        ("Ou est ma tondeuse mon colis", "where"),
    ],
)
def test_accents_and_endings_may_be_missing(tokenizer: Tokenizer, text: str, word: str) -> None:
    encoding = tokenizer.encode(text)
    assert word in encoding.english.split()
    assert "".join(encoding.tokens) == text.replace(" ", "")


def test_english_tickets_are_not_changed(tokenizer: Tokenizer) -> None:
    plain = Tokenizer(tokenizer.library, 100)
    for text in ("Where is my parcel?", "I want to retrn the mowr please", "", "???", "zxcv qwer tyui"):
        assert tokenizer.encode(text) == plain.encode(text)


def test_a_language_without_a_dictionary_stays_unread(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("Hvor er min pakke? Jeg har ikke hørt fra dere").language is None


def test_a_word_that_no_dictionary_has_is_unknown(tokenizer: Tokenizer) -> None:
    encoding = tokenizer.encode("Wo ist mein Xylophon")
    assert encoding.ids[3] == UNKNOWN_ID
    assert encoding.unknown == 1


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"trained": "en", "own_words": "", "languages": {"xx": {"words": "", "read_as": ""}}},
        {"trained": "en", "own_words": "", "languages": {"de": {"words": "a b", "read_as": "is"}}},
        {"trained": "en", "own_words": "", "languages": {"de": {"words": "a", "read_as": "absent"}}},
        {"trained": "en", "own_words": "", "languages": []},
    ],
)
def test_a_damaged_file_is_refused(tokenizer: Tokenizer, content: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        Dictionaries.from_json(json.dumps(content), tokenizer.library.get_vocab())


def test_spellings() -> None:
    assert spellings("résilier", "fr") == {"resilier"}
    assert spellings("größe", "de") == {"grosse", "groesse", "grösse"}
    assert spellings("łódź", "pl") == {"lodz"}
