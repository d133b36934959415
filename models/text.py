"""Cleans a ticket's text for the network, and keeps the original offset of every character.

Training and serving call the same `join`, so that text has the same form in both. One line of plain ASCII is
unchanged. In real mail, markup, quoted replies and signatures are dropped (`models.mail`), typographic
characters become those of a keyboard, and invisible characters are dropped. The offsets allow an explanation
to mark words in the ticket as it was sent.

Each step takes linear time, and a ticket with text is never empty after cleaning.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np

from models import mail
from models.inline_images import payloads
from models.mail import Edit


@dataclass(frozen=True, slots=True)
class Cleaned:
    """Cleaned text; character i of it came from `original[starts[i]:ends[i]]`."""

    text: str
    starts: Sequence[int] | np.ndarray
    ends: Sequence[int] | np.ndarray

    @property
    def spans(self) -> list[tuple[int, int]]:
        """(start, end) in the original for each character of `text`."""
        return [(int(start), int(end)) for start, end in zip(self.starts, self.ends, strict=True)]

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The original (start, end) of `text[start:end]`; equal ones for an empty slice."""
        if start < end:
            return int(self.starts[start]), int(self.ends[end - 1])
        place = self.starts[start] if start < len(self.text) else self.ends[-1] if self.text else 0
        return int(place), int(place)


@dataclass(frozen=True, slots=True)
class Joined:
    """The fields of a ticket as one text, and where each field begins in it."""

    text: str
    fields: tuple[tuple[str, int, Cleaned], ...]  # (name, where it begins in `text`, the field)

    def locate(self, start: int, end: int) -> tuple[str, int, int]:
        """`text[start:end]` as (field, start, end) in that field as it was sent."""
        begins = [begin for _, begin, _ in self.fields]
        name, begin, cleaned = self.fields[max(0, bisect_right(begins, start) - 1)]
        first, last = (min(max(place - begin, 0), len(cleaned.text)) for place in (start, end))
        return name, *cleaned.span(first, last)


def join(subject: str | None, text: str) -> Joined:
    """Clean both fields of a ticket and put the subject on its own line above the text."""
    fields: list[tuple[str, int, Cleaned]] = []
    joined = ""
    for name, value in (("subject", subject), ("text", text)):
        if name == "subject" and not (value and value.strip()):
            continue
        cleaned = clean(value or "", is_forward=mail.is_forward_subject(subject or ""))
        joined += "\n" if joined else ""
        fields.append((name, len(joined), cleaned))
        joined += cleaned.text
    return Joined(joined, tuple(fields))


def clean(text: str, is_forward: bool | None = None) -> Cleaned:
    """Drop markup, quoted replies and signatures from a text, and replace typographic characters.

    `is_forward`: True if the subject is that of a forward, whose forwarded message is then the ticket; False
    if it is that of a reply, whose quotes are dropped; None if it is neither.
    """
    cleaned = Cleaned(text, range(len(text)), range(1, len(text) + 1))
    cleaned = whole = _apply(cleaned, [(start, end, "") for start, end in payloads(text)])
    if _is_plain(whole.text):
        return cleaned
    for ways in _steps(whole.text, is_forward):
        for way, fewest_words in ways:
            changed = _apply(cleaned, way(cleaned.text))
            if _is_enough(changed.text, cleaned.text, fewest_words):
                cleaned = changed
                break
    if not cleaned.text.strip():  # nothing but markup and invisible characters: keep the markup
        folded = _apply(whole, fold_characters(whole.text))
        cleaned = folded if folded.text.strip() else cleaned
    return _apply(cleaned, drop_excess_marks(cleaned.text))  # last, because entities may decode to marks


def _is_plain(text: str) -> bool:
    """Whether no step can change the text; most tickets are plain, so this has to be fast."""
    if _NOT_PLAIN.search(text):
        return False
    lowered = text.lower()
    return not any(mark in lowered for mark in _NOT_PLAIN_MARKS)


def _is_enough(changed: str, before: str, fewest_words: int) -> bool:
    """Whether a step left at least `fewest_words` words, or text if there were no words before."""
    if fewest_words == 0 or mail.has_words(changed, fewest_words):
        return True
    return bool(changed.strip()) and not mail.has_words(before, 1)


def drop_excess_marks(text: str) -> list[Edit]:
    """Drop combining marks after the first 30 in a row, the limit of the stream-safe form of UAX #15.

    No language needs more, and the time of normalization grows with the square of their number.
    """
    edits: list[Edit] = []
    for run in _MAYBE_MARKS.finditer(text):
        marks = 0
        for place in range(*run.span()):
            marks = marks + 1 if unicodedata.combining(text[place]) else 0
            if marks > MOST_MARKS:
                edits.append((place, place + 1, ""))
    return edits


def fold_characters(text: str) -> list[Edit]:
    """Replace typographic characters by those of a keyboard, and drop invisible ones."""
    edits: list[Edit] = []
    has_escapes = "_x000" in text
    for match in (_TO_FOLD_WITH_ESCAPES if has_escapes else _TO_FOLD).finditer(text):
        if match["unseen"]:
            kept = ""
        elif match["broken"]:
            kept = "\ufffd"
        else:
            kept = "\n" if has_escapes and match["escaped"] else _PLAIN[match[0]]
        edits.append((match.start(), match.end(), kept))
    return edits


def _apply(cleaned: Cleaned, edits: list[Edit]) -> Cleaned:
    """Apply sorted edits without overlaps; each new character gets the offsets of its whole edit."""
    if not edits:
        return cleaned
    count = len(edits)
    starts = np.fromiter((edit[0] for edit in edits), np.int64, count)
    ends = np.fromiter((edit[1] for edit in edits), np.int64, count)
    # Kept and new pieces alternate: where each begins and ends in the text, and its new size.
    begins, stops, sizes = (np.empty(2 * count + 1, np.int64) for _ in range(3))
    begins[0::2], stops[0::2] = np.append(0, ends), np.append(starts, len(cleaned.text))
    begins[1::2], stops[1::2] = starts, ends
    sizes[0::2] = stops[0::2] - begins[0::2]
    sizes[1::2] = np.fromiter((len(edit[2]) for edit in edits), np.int64, count)
    is_kept = np.arange(2 * count + 1) % 2 == 0
    within = np.arange(sizes.sum()) - np.repeat(sizes.cumsum() - sizes, sizes)  # position in its piece
    kept = np.repeat(is_kept, sizes)
    first = np.where(kept, np.repeat(begins, sizes) + within, np.repeat(begins, sizes))
    last = np.where(kept, first, np.repeat(stops, sizes) - 1)
    text = _edited(cleaned.text, edits)
    return Cleaned(text, _take(cleaned.starts, first), _take(cleaned.ends, last))


def _edited(text: str, edits: list[Edit]) -> str:
    pieces: list[str] = []
    at = 0
    for start, end, replacement in edits:
        pieces += text[at:start], replacement
        at = end
    return "".join([*pieces, text[at:]])


def _take(places: Sequence[int] | np.ndarray, index: np.ndarray) -> np.ndarray:
    return index + places.start if isinstance(places, range) else np.asarray(places)[index]


def _fold(characters: str, replacement: str) -> dict[str, str]:
    return dict.fromkeys(characters, replacement)


# The keyboard's character for each typographic one; other characters are unchanged.
_SPACES = "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000"
_PLAIN = {
    **_fold("\u2018\u2019\u201a\u201b\u2032\u02bc\u02b9\u00b4\uff07", "'"),
    **_fold("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb\uff02", '"'),
    **_fold("\u2010\u2011\u2012\u2013\u2014\u2015\u2212\u2022\u00b7", "-"),
    **_fold("\u2026", "..."),
    **_fold(_SPACES, " "),
    **_fold("\r\u2028\u2029\u0085", "\n"),
    "\r\n": "\n",
}
# Controls, soft hyphen, zero-width, bidi marks, variation selectors, tags, and skin tones, which would make
# several tokens of one emoji.
_UNSEEN = (
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    r"\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb\U0001f3fb-\U0001f3ff"
    r"\U000e0000-\U000e0fff]"
)
_FOLDED = (
    f"(?P<unseen>{_UNSEEN}+)|(?P<broken>[\ud800-\udfff])|\r\n|[{''.join(c for c in _PLAIN if len(c) == 1)}]"
)
_TO_FOLD = re.compile(_FOLDED)
# Also line breaks as Excel writes them into XML; a separate pattern, because it is 50 % slower.
_TO_FOLD_WITH_ESCAPES = re.compile(f"{_FOLDED}|(?P<escaped>_x000[dD]_\n?|_x000[aA]_)")
_NOT_PLAIN = re.compile(r"[^\x20-%'-;=?-~\t]")
_NOT_PLAIN_MARKS = ("_x00", "[cid", "[image", "[ext", "data:", "received from:")

MOST_MARKS = 30
_MAYBE_MARKS = re.compile(rf"[^\x00-\u02ff]{{{MOST_MARKS + 1},}}+")  # U+0300 is the first combining mark

# The first two letters of UTF-8 sequences that were decoded as Windows-1252 or a similar encoding.
_MAYBE_MOJIBAKE = re.compile(
    "[\u00c2-\u00f4\u0102-\u017d\u0393-\u03a9\u0410-\u042f][\u0080-\u00bf\u0152-\u02dc\u2013-\u2122]"
)


def repair_mojibake(text: str) -> list[Edit]:
    """Repair UTF-8 that was decoded as another encoding ("mÃ¶glich")."""
    if not _MAYBE_MOJIBAKE.search(text):
        return []
    from ftfy.chardata import UTF8_DETECTOR_RE  # slow to import, and rarely needed

    pieces = ((match, _repaired(match[0])) for match in UTF8_DETECTOR_RE.finditer(text))
    return [(match.start(), match.end(), fixed) for match, fixed in pieces if fixed != match[0]]


@lru_cache(maxsize=4096)
def _repaired(piece: str) -> str:
    from ftfy import fix_encoding
    from ftfy.badness import is_bad

    return fix_encoding(piece) if is_bad(piece) else piece


Step = tuple[tuple[Callable[[str], list[Edit]], int], ...]

# The steps in order. A step is one or more alternatives, each with the number of words that it must leave; if
# it leaves fewer, the next alternative, which drops less, is tried.
_CHARACTERS: tuple[Step, ...] = (
    ((mail.decode_entities, 1),),
    ((mail.drop_markup, 1),),  # again: markup that was sent as text (&lt;p&gt;) is now tags
    ((repair_mojibake, 0),),
    ((fold_characters, 0),),
)
_BANNERS: tuple[Step, ...] = (((mail.drop_device_lines, 1),), ((mail.drop_disclaimers, 3),))
_QUOTES: Step = ((mail.drop_quotes, 3), (mail.drop_quote_marks, 1))
_SIGNATURE: Step = ((mail.drop_signature, 3),)
_STEPS: tuple[Step, ...] = (
    ((mail.drop_markup_and_quotes, 3), (mail.drop_markup, 1)),
    *_CHARACTERS,
    _QUOTES,
    *_BANNERS,
    _SIGNATURE,
)


def _steps(text: str, is_forward: bool | None) -> tuple[Step, ...]:
    is_forward = mail.is_forward_subject(text) if is_forward is None else is_forward
    if is_forward:
        return _FORWARD_STEPS[True]
    return _FORWARD_STEPS[False] if is_forward is None and mail.may_hold_forward(text) else _STEPS


def _forward_steps(is_forward: bool) -> tuple[Step, ...]:
    """The steps for a text that is, or may be, a forward: they keep the forwarded message."""
    return (
        ((mail.drop_markup, 1),) if is_forward else ((_drop_markup_around_forward, 3), (mail.drop_markup, 1)),
        *_CHARACTERS,
        ((partial(mail.drop_forward_quote_marks, is_forward=is_forward), 3),),
        ((partial(mail.drop_forward_frame, is_forward=is_forward), 3),),
        _QUOTES,
        *_BANNERS,
        _SIGNATURE,
    )


def _drop_markup_around_forward(text: str) -> list[Edit]:
    """Drop markup, and elements marked as quotes unless they are a forwarded message below a few words."""
    edits = mail.drop_markup(text)
    without = _edited(text, edits)
    return edits if mail.drop_forward_frame(without, is_forward=False) else mail.drop_markup_and_quotes(text)


_FORWARD_STEPS = {is_forward: _forward_steps(is_forward) for is_forward in (False, True)}
