"""Words of danger raise `urgent`, names of harmless things do not."""

import pytest

from models.tokenizer import Tokenizer, build_piece_tokenizer
from models.urgency import MAX_CHARACTERS, PHRASES, may_be_urgent, urgent_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("There is smoke coming out of the heater", ["smoke"]),
        ("SMOKE everywhere, smoke!", ["smoke"]),
        ("I burned my arm and went to hospital", ["burned", "hospital"]),
        ("got an electric  shock from the plug", ["electric shock"]),
        ("My child swallowed a screw", ["child"]),
        ("Is there a recall for this lamp?", ["recall"]),
        ("You will hear from my lawyer", ["lawyer"]),
        ("was there a data breach in your shop", ["data breach"]),
        ("the toaster exploded", ["exploded"]),
        ("La prise a brûlé et ma fille est blessée", ["brûlé", "blessée"]),
        ("Aus dem Stecker kommt Rauch", ["rauch"]),
        ("Mein Anwalt meldet sich", ["anwalt"]),
        ("Sale humo del aparato", ["humo"]),
        ("Ho preso la scossa", ["scossa"]),
        ("Er komt rook uit de lamp", ["rook"]),
        ("Levei um choque elétrico", ["choque elétrico"]),
        ("Z wtyczki leci dym", ["dym"]),
    ],
)
def test_danger_is_named(text: str, words: list[str]) -> None:
    assert urgent_words(text) == words


@pytest.mark.parametrize(
    "text",
    [
        "Where is my parcel?",
        "The smoke alarm that I ordered is late",
        "I want to return the fire pit",
        "child seat in the wrong colour",
        "I don't recall my password",
        "Kind regards, what brand is it?",
        "Bless you for your help",
        "the spark plug is missing",
        "firewood store, childhood, recaller",
        "",
    ],
)
def test_harmless_words_are_not(text: str) -> None:
    assert urgent_words(text) == []


def test_a_harmless_name_does_not_hide_a_danger_beside_it() -> None:
    assert urgent_words("the smoke alarm did not go off although there was smoke") == ["smoke"]


def test_the_ids_tell_which_texts_have_to_be_searched() -> None:
    texts = ["smoke from the heater", "where is my parcel", "it exploded", "the fire pit is late"] * 2
    tokenizer = Tokenizer(build_piece_tokenizer(texts, min_count=1), 50)
    ids = may_be_urgent(tokenizer.library.get_vocab().items())
    for text in texts:
        encoding = tokenizer.encode(text)
        assert not encoding.unknown
        if urgent_words(text):
            assert not ids.isdisjoint(encoding.ids), text
    assert ids.isdisjoint(tokenizer.encode("where is my parcel").ids)


def test_every_phrase_finds_itself() -> None:
    for language, lines in PHRASES.items():
        for phrase in (one.strip() for line in lines.splitlines() for one in line.split("|")):
            assert urgent_words(f"xx {phrase.replace('*', 'a')} yy"), (language, phrase)


def test_only_the_beginning_of_a_long_text_is_searched() -> None:
    """The search takes time linear in what it reads, and what it reads is bounded."""
    assert urgent_words("a " * MAX_CHARACTERS + "smoke") == []
    assert urgent_words("a " * (MAX_CHARACTERS // 2 - 10) + "smoke") == ["smoke"]
