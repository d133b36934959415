"""Payloads of inline images are found in text and in JSON, and no words are taken for them."""

from __future__ import annotations

import base64
import json
import random

import pytest

from models.inline_images import payloads, size_without_payloads
from models.text import clean, join

PICTURE = base64.b64encode(random.Random(0).randbytes(9_001)).decode()
WRAPPED = "\r\n".join(PICTURE[at : at + 76] for at in range(0, len(PICTURE), 76))
HEADER = "data:image/png;base64,"
WORDS = "the kettle leaks"


@pytest.mark.parametrize("payload", [PICTURE, WRAPPED, WRAPPED.replace("\r\n", "\n    ")])
@pytest.mark.parametrize("around", [f'<p>{WORDS}</p><img src="{{}}"><p>help</p>', f"{WORDS} {{}}\n\nhelp"])
def test_the_payload_is_found_and_nothing_else(payload: str, around: str) -> None:
    text = around.format(HEADER + payload)
    ((start, end),) = payloads(text)
    assert text[start:end] == payload
    assert clean(text).text.split() == f"{WORDS} help".split()


@pytest.mark.parametrize(
    "text",
    [
        f"{WORDS};base64,{PICTURE}",
        f"the metadata:image;base64,{PICTURE}",
        f"data: see;base64,{PICTURE}",
        HEADER,
        f"{HEADER} {WORDS}",
    ],
)
def test_other_text_is_counted(text: str) -> None:
    assert payloads(text) == []
    body = json.dumps({"text": text}).encode()
    assert size_without_payloads(body) == len(body)


def test_words_below_a_picture_are_counted() -> None:
    text = HEADER + PICTURE + "\nplease\nsend\na\nnew\none" * 1000
    ((_, end),) = payloads(text)
    assert text[end:].startswith("\nplease")


@pytest.mark.parametrize(
    "escaped",
    [
        lambda body: body,
        lambda body: body.replace(b"/", b"\\/"),
        lambda body: body.replace(b"+", b"\\u002B").replace(b"=", b"\\u003d"),
        lambda body: body.replace(b"+", b"\\u002b").replace(b"=", b"\\u003D"),
    ],
    ids=["as Python writes it", "PHP", ".NET", "Java"],
)
@pytest.mark.parametrize("payload", [PICTURE, WRAPPED])
def test_json_is_counted_as_programs_escape_it(escaped, payload: str) -> None:
    def size(picture: str) -> int:
        return size_without_payloads(
            escaped(json.dumps({"text": f"{WORDS} {HEADER}{picture} {WORDS}"}).encode())
        )

    assert size(payload) == size("")
    assert size(f"{payload} {payload}") == size(f" {payload}")
    assert size(f"{payload} {HEADER}{payload}") == size(f" {HEADER}")


def test_a_word_below_a_picture_is_found_where_it_was_sent() -> None:
    text = f'<img src="{HEADER}{PICTURE}"><p>the kettle leaks</p>'
    joined = join("Kettle", text)
    at = joined.text.index("kettle")
    assert joined.locate(at, at + 6) == ("text", text.index("kettle"), text.index("kettle") + 6)


@pytest.mark.parametrize("text", [HEADER + PICTURE, f'<img src="{HEADER}{PICTURE}">'])
def test_a_ticket_of_a_picture_alone_is_not_empty_and_short(text: str) -> None:
    assert 0 < len(clean(text).text) < 100
