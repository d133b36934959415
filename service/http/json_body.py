"""Bodies as programs really send them: JSON with a byte order mark, or with half of an emoji.

Windows programs put the mark before UTF-8, which a reader of JSON may skip (RFC 8259, 8.1). A text that was
cut off in the middle of an emoji holds half a surrogate pair, which JSON's grammar allows and strict parsers
do not; it is read as U+FFFD, one character as before, so that places in the text stay what they were.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from service.api.problems import not_as_expected

T = TypeVar("T")

_MARK = b"\xef\xbb\xbf"
_HIGH, _LOW = rb"[dD][89abAB][0-9a-fA-F]{2}", rb"[dD][c-fC-F][0-9a-fA-F]{2}"
# Behind an even number of backslashes, which are characters of the text.
_HALF = re.compile(rb"(?<!\\)((?:\\\\)*)\\u(?:%b(?!\\u%b)|(?<!\\u%b\\u)%b)" % (_HIGH, _LOW, _HIGH, _LOW))
# A larger body that is no JSON is refused at once: looking through it would keep other tickets waiting.
_MOST_BYTES = 1_048_576


# A ticket has five fields at most. A body with many more values, each of which becomes an object and each
# wrong one an error, would keep the event loop busy for seconds.
MOST_VALUES = 96
_SMALL_BYTES = 4096


def parsed(parse: Callable[[bytes], T], body: bytes, most_values: int = MOST_VALUES) -> T:
    """What `parse` makes of a body; its ValueError where it cannot and nothing could be mended.

    Problem 422 for a body with more than about `most_values` values.
    """
    body = body.removeprefix(_MARK)
    if len(body) > _SMALL_BYTES:
        _bound_values(body, most_values)
    try:
        return parse(body)
    except ValueError:
        mended = without_halves(body) if len(body) <= _MOST_BYTES else body
        if mended == body:
            raise
    return parse(mended)


def _bound_values(body: bytes, most: int) -> None:
    """Count strings and the marks between them, by whole passes over the bytes, which may be megabytes."""
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"")
    marks = plain.count(b'"') // 2
    if marks <= 2 * most:  # a field is two strings, a colon and a comma
        between = b"".join(plain.split(b'"')[::2])
        marks = sum(map(between.count, (b"[", b"{", b",", b":")))
    if marks > 2 * most:
        raise not_as_expected([{"field": "body", "message": f"has more than {most} fields and values"}])


def without_halves(body: bytes) -> bytes:
    """JSON with an escaped U+FFFD for each escaped surrogate that has no other half."""
    return _HALF.sub(rb"\1\\ufffd", body)
