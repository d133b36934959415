"""The text that the network reads: a ticket as it was sent, cleaned, with the way back to every character.

Training and serving call the same `join`, so that a network never meets text in a form it was not
trained on. Plain ASCII text comes through unchanged. Every character that stays knows where it stood
in the ticket as it was sent, which is what lets an explanation mark the customer's own words.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

Edit = tuple[int, int, str]  # replace text[start:end] by this string


@dataclass(frozen=True, slots=True)
class Cleaned:
    """Cleaned text; character i of it came from `original[starts[i]:ends[i]]`."""

    text: str
    starts: Sequence[int]
    ends: Sequence[int]

    @property
    def spans(self) -> list[tuple[int, int]]:
        """(start, end) in the original for each character of `text`."""
        return list(zip(self.starts, self.ends, strict=True))

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Where `text[start:end]` stood in the original; an empty slice gives an empty place."""
        if start >= end:
            place = self.starts[start] if start < len(self.text) else self.ends[-1] if self.text else 0
            return place, place
        return self.starts[start], self.ends[end - 1]


@dataclass(frozen=True, slots=True)
class Joined:
    """The fields of one ticket as one text, and the way back to the field a character came from."""

    text: str
    fields: tuple[tuple[str, int, Cleaned], ...] = field(default=())  # (name, where it begins, cleaned)

    def locate(self, start: int, end: int) -> tuple[str, int, int]:
        """`text[start:end]` as (field, start, end) in that field as it was sent."""
        begins = [begin for _, begin, _ in self.fields]
        name, begin, cleaned = self.fields[max(0, bisect_right(begins, start) - 1)]
        first, last = (min(max(place - begin, 0), len(cleaned.text)) for place in (start, end))
        return name, *cleaned.span(first, last)


def join(subject: str | None, text: str) -> Joined:
    """Clean both fields of a ticket and put the subject on a line of its own above the text."""
    fields: list[tuple[str, int, Cleaned]] = []
    joined = ""
    for name, value in (("subject", subject), ("text", text)):
        if name == "subject" and not (value and value.strip()):
            continue
        cleaned = clean(value or "")
        joined += "\n" if joined else ""
        fields.append((name, len(joined), cleaned))
        joined += cleaned.text
    return Joined(joined, tuple(fields))


def clean(text: str) -> Cleaned:
    """Fold typographic characters to the plain ones and drop those that no reader sees."""
    same = Cleaned(text, range(len(text)), range(1, len(text) + 1))
    if not _NOT_PLAIN.search(text):
        return same
    return _apply(same, _character_edits(text))


def _apply(cleaned: Cleaned, edits: list[Edit]) -> Cleaned:
    """Make sorted, non-overlapping edits; a replacement stands for the whole stretch it replaces."""
    if not edits:
        return cleaned
    pieces: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    at = 0
    for start, end, replacement in [*edits, (len(cleaned.text), len(cleaned.text), "")]:
        pieces += cleaned.text[at:start], replacement
        starts.extend(cleaned.starts[at:start])
        ends.extend(cleaned.ends[at:start])
        if replacement:
            starts.extend([cleaned.starts[start]] * len(replacement))
            ends.extend([cleaned.ends[end - 1]] * len(replacement))
        at = end
    return Cleaned("".join(pieces), starts, ends)


def _fold(characters: str, replacement: str) -> dict[str, str]:
    return dict.fromkeys(characters, replacement)


# What a keyboard types for each typographic character; anything not listed stays as it is.
_PLAIN = {
    **_fold("\u2018\u2019\u201a\u201b\u2032\u02bc\u02b9\u00b4\uff07", "'"),
    **_fold("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb\uff02", '"'),
    **_fold("\u2010\u2011\u2012\u2013\u2014\u2015\u2212\u2022\u00b7", "-"),
    **_fold("\u2026", "..."),
    **_fold(
        "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000",
        " ",
    ),
    **_fold("\r\u2028\u2029\u0085", "\n"),
    "\r\n": "\n",
}
# No reader sees these: controls, soft hyphen, zero-width, bidi marks, variation selectors, tags, and
# the skin tones that would make one emoji into many.
_UNSEEN = (
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    r"\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb\U0001f3fb-\U0001f3ff"
    r"\U000e0000-\U000e0fff]"
)
_LONE_SURROGATE = r"[\ud800-\udfff]"
_TO_FOLD = re.compile(
    f"(?P<unseen>{_UNSEEN}+)|(?P<broken>{_LONE_SURROGATE})|\r\n|[{''.join(c for c in _PLAIN if len(c) == 1)}]"
)
_NOT_PLAIN = re.compile(r"[^\x20-\x7e\t\n]")


def _character_edits(text: str) -> list[Edit]:
    edits: list[Edit] = []
    for match in _TO_FOLD.finditer(text):
        kept = "" if match["unseen"] else "\ufffd" if match["broken"] else _PLAIN[match[0]]
        edits.append((match.start(), match.end(), kept))
    return edits
