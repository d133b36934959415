"""Words of danger raise `urgent`, names of harmless things do not."""

import pytest

from models.tokenizer import Tokenizer, build_piece_tokenizer
from models.urgency import MAX_CHARACTERS, PHRASES, UrgentWords, urgent_words


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


def test_tickets_are_found_by_their_tokens_as_by_their_text() -> None:
    texts = [
        "smoke from the heater",
        "where is my parcel, I got it not",
        "it exploded, and got me a shock",
        "the fire pit is late",
        "I got a shock",
        "scalding water burned me",
        "zzz qqq smouldering explosionlike",
        "Aus dem Stecker kommt Rauch",
        "nothing wrong here",
    ]
    for known in (texts, texts[:4], texts[1:2]):
        tokenizer = Tokenizer(build_piece_tokenizer(known, min_count=1), 50)
        urgent = UrgentWords(tokenizer.library.get_vocab())
        for text in texts:
            encoding = tokenizer.encode(text)
            assert urgent.find(text, encoding.ids, encoding.unknown) == urgent_words(text), text


def test_common_words_of_a_phrase_are_not_searched_for() -> None:
    tokenizer = Tokenizer(build_piece_tokenizer(["got it", "got it", "got a shock"], min_count=1), 50)
    urgent = UrgentWords(tokenizer.library.get_vocab())
    assert urgent._ids.isdisjoint(tokenizer.encode("got it").ids)
    assert not urgent._ids.isdisjoint(tokenizer.encode("got a shock").ids)


def test_every_phrase_finds_itself() -> None:
    nothing_known = UrgentWords({})
    for language, lines in PHRASES.items():
        for phrase in (one.strip() for line in lines.splitlines() for one in line.split("|")):
            text = f"xx {phrase.replace('*', 'a')} yy"
            assert urgent_words(text), (language, phrase)
            assert nothing_known.find(text, [1], unknown=1), (language, phrase)


def test_only_the_beginning_of_a_long_text_is_searched() -> None:
    """The search takes time linear in what it reads, and what it reads is bounded."""
    assert urgent_words("a " * MAX_CHARACTERS + "smoke") == []
    assert urgent_words("a " * (MAX_CHARACTERS // 2 - 10) + "smoke") == ["smoke"]
