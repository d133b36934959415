"""Cleaning and tokenizing take linear time, whatever a text repeats: 16 times the text, 16 times the work.

Each family repeats one thing to 16 kB and to 256 kB. The processor time of this thread is compared, the best
of several rounds: other processes can make a round slower, never faster. Twice linear is allowed, because
256 kB no longer fit the caches (up to 1.4 was seen); a step that is quadratic takes 256 times as long.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from itertools import count, product
from time import thread_time

import pytest

from models.text import clean
from models.tokenizer import Tokenizer, build_word_tokenizer

SMALL, LARGE = 16_384, 262_144
ROUNDS = 8
TOKENIZER = Tokenizer(build_word_tokenizer(["my parcel is late", "my card"], min_count=1), 600)
NAMES = ["".join(letters) for letters in product(string.ascii_lowercase, repeat=4)]


def repeated(piece: str) -> Callable[[int], str]:
    return lambda size: (piece * (size // len(piece) + 1))[:size]


def numbered(make: Callable[[int], str], head: str = "<p>") -> Callable[[int], str]:
    """A head and ever new pieces, to the size."""

    def text(size: int) -> str:
        pieces, length = [head], 0
        for number in count():
            pieces.append(make(number))
            length += len(pieces[-1])
            if length >= size:
                return "".join(pieces)[:size]
        raise AssertionError

    return text


def nested(opening: str, closing: str) -> Callable[[int], str]:
    def text(size: int) -> str:
        depth = size // (len(opening) + len(closing))
        return opening * depth + "x" + closing * depth

    return text


CHARACTERS = [*string.punctuation, "\n", "\r", "\t", " ", "\x00", "\xa0", "\u200b", "\ufdfa", "é", "漢", "😀"]
PIECES = [
    *(
        "<p>",
        "<p",
        "</p>",
        "<br>",
        "<!--",
        "-->",
        "<script>",
        "</script",
        "<a href='",
        '<a b="',
        "<div id=x ",
    ),
    *("<head>", "<td>", "<o:p>", "&lt;p&gt;", "&amp;", "&#", "&#769;", "&#x200b;", "<style", "<![CDATA["),
    *("\n> ", ">> a\n", "\n-- \n", "--\n", "\n-----Original Message-----\n", "\n---- ", "On 2020 ", "On a\n"),
    *(
        "On 1:00 wrote:\n",
        "\nOn 10:15, a@b wrote:\n",
        "Am 10:15 schrieb ",
        "From: a\n",
        "From: a\nTo: b\nCc: c\n",
    ),
    *(
        "\nSubject: x\n",
        "\nSent from my ",
        "\nThis message confidential ",
        "\nregards,\n",
        "\nThanks\n",
        "[cid:",
    ),
    *(
        "<mailto:",
        "\n_____\n",
        "_____",
        "this e-mail\n",
        "\nPlease consider the environment",
        "+1 234 567 89 ",
    ),
    *(
        "a\u0301",
        "\u0344",
        "か\u3099",
        "\ud800",
        "\r\n",
        "email came from outside ",
        "\u0301\u200b\u0323",
        "\\u",
        "data:a/b;base64,A ",
        ";base64,",
    ),
]
HIDDEN = ' style="display:none">'
FAMILIES = {
    **{f"character {character!a}": repeated(character) for character in CHARACTERS},
    **{f"a word and {character!a}": repeated("ab" + character) for character in CHARACTERS},
    **{f"repeated {piece!a}": repeated(piece) for piece in PIECES},
    **{f"markup and {piece!a}": numbered(lambda _, piece=piece: piece) for piece in PIECES},
    "other hidden tags": numbered(lambda number: f"<{NAMES[number]}{HIDDEN}"),
    "other quoted tags": numbered(lambda number: f"<{NAMES[number]} class=gmail_quote>a"),
    "hidden and closed": numbered(lambda number: f"<{NAMES[number]}{HIDDEN}a</{NAMES[number]}>"),
    "hidden within hidden": nested(f"<div{HIDDEN}", "</div>"),
    "hidden and never closed": nested(f"<div{HIDDEN}", ""),
    "nested blocks": nested("<div>", "</div>"),
    "nested quotes": nested("<blockquote type=cite>", "</blockquote>"),
    "two orders of marks": lambda size: "a" + "\u0301" * (size // 2) + "\u0323" * (size // 2),
    "marks as entities": lambda size: "a" + "&#769;" * (size // 12) + "&#803;" * (size // 12),
    "marks and what nobody sees": lambda size: (
        "a" + "\u0301\u200b" * (size // 4) + "\u0323\u200b" * (size // 4)
    ),
}


def seconds(text: str) -> float:
    began = thread_time()
    TOKENIZER.encode(clean(text).text)
    return thread_time() - began


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_sixteen_times_the_text_is_sixteen_times_the_work(family: Callable[[int], str]) -> None:
    small, large = family(SMALL), family(LARGE)
    growth = len(large) / len(small)
    fastest_small = fastest_large = float("inf")
    for _ in range(ROUNDS):
        fastest_small = min(fastest_small, *(seconds(small) for _ in range(4)))
        fastest_large = min(fastest_large, seconds(large))
        if fastest_large <= 2.0 * growth * fastest_small:
            return
    raise AssertionError(
        f"{fastest_large / fastest_small:.1f} times the work for {growth:.1f} times the text"
    )
