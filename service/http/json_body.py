"""Parses JSON bodies, also with a byte order mark or a lone surrogate.

Windows programs write a byte order mark before UTF-8; a JSON parser may skip it (RFC 8259, 8.1). A text that
was cut off within an emoji contains a lone surrogate. JSON's grammar allows it, strict parsers do not. It is
replaced by U+FFFD, which is also one character, so positions in the text stay the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from service.api.problems import not_as_expected

T = TypeVar("T")

_MARK = b"\xef\xbb\xbf"
_HIGH, _LOW = rb"[dD][89abAB][0-9a-fA-F]{2}", rb"[dD][c-fC-F][0-9a-fA-F]{2}"
# The escape must follow an even number of backslashes; an odd one escapes the backslash itself.
_HALF = re.compile(rb"(?<!\\)((?:\\\\)*)\\u(?:%b(?!\\u%b)|(?<!\\u%b\\u)%b)" % (_HIGH, _LOW, _HIGH, _LOW))
# An invalid body larger than this is refused without a search for surrogates, which would block the event
# loop.
_MOST_BYTES = 1_048_576


# A ticket has at most five fields. Each value of a body becomes an object, and each wrong one an error:
# without a limit, one body could block the event loop for seconds.
MOST_VALUES = 96
_SMALL_BYTES = 4096


def parsed(parse: Callable[[bytes], T], body: bytes, most_values: int = MOST_VALUES) -> T:
    """`parse(body)`, without byte order mark and, if needed, without lone surrogates.

    ValueError from `parse` if the body is invalid; Problem 422 if it has more than about `most_values`
    values.
    """
    body = body.removeprefix(_MARK)
    if len(body) > _SMALL_BYTES:
        _bound_values(body, most_values)
    try:
        return parse(body)
    except ValueError:
        repaired = replace_lone_surrogates(body) if len(body) <= _MOST_BYTES else body
        if repaired == body:
            raise
    return parse(repaired)


def _bound_values(body: bytes, most: int) -> None:
    """Problem 422 for too many values: count strings and punctuation with fast passes over the bytes."""
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")
    marks = plain.count(b'"') // 2
    if marks <= 2 * most:  # a field is two strings, a colon and a comma
        between = b"".join(plain.split(b'"')[::2])
        marks = sum(map(between.count, (b"[", b"{", b",", b":")))
    if marks > 2 * most:
        raise not_as_expected([{"field": "body", "message": f"has more than {most} fields and values"}])


def replace_lone_surrogates(body: bytes) -> bytes:
    """The JSON with each escaped lone surrogate replaced by an escaped U+FFFD."""
    return _HALF.sub(rb"\1\\ufffd", body)
