"""Finds the payloads of inline images: base64 data URIs (RFC 2397), as in a screenshot pasted into HTML.

A screenshot has megabytes, the text around it a few hundred characters. `models.text` drops the payloads
before any other step, and the service does not count them against its limit for a body. The header of a URI
("data:image/png;base64,") is kept and counted, so a text is never empty without its payloads.
"""

from __future__ import annotations

import re

Span = tuple[int, int]

_MARK = ";base64,"
_LONGEST_HEADER = 300
_HEADER = r"data:[a-z]{1,20}%s[a-z0-9.+-]{1,60}(?:;[a-z-]{1,30}=[^;,\s]{1,60}){0,3};base64,"
# Lines of a wrapped payload: at least 60 characters, so that no words below a URI are taken for its payload.
_PAYLOAD = (
    r"(?:{letters})*+(?:{line_break}(?:{letter}){{60,}}+(?:{equals}){{0,2}}+)*+"
    r"(?:{line_break}(?:{letter}){{1,59}}+(?:{equals}){{1,2}}+)?"
)

_TEXT_HEADER = re.compile(_HEADER % "/", re.IGNORECASE)
_TEXT_PAYLOAD = re.compile(
    _PAYLOAD.format(
        letters="[A-Za-z0-9+/=%]", letter="[A-Za-z0-9+/%]", equals="=", line_break=r"\r?\n[ \t]{0,8}"
    )
)
# In JSON some programs escape a slash, a plus and an equals sign; a line break is always escaped.
_JSON_HEADER = re.compile((_HEADER % r"\\?/").encode(), re.IGNORECASE)
_JSON_ESCAPED = r"\\/|\\u002[BbFf]"
_JSON_PAYLOAD = re.compile(
    _PAYLOAD.format(
        letters=rf"[A-Za-z0-9+/=%]++|{_JSON_ESCAPED}|\\u003[Dd]",
        letter=f"[A-Za-z0-9+/%]|{_JSON_ESCAPED}",
        equals=r"=|\\u003[Dd]",
        line_break=r"(?:\\r)?\\n(?: |\\t){0,8}",
    ).encode()
)


def payloads(text: str) -> list[Span]:
    """(start, end) of each payload in a text, in order."""
    spans: list[Span] = []
    at = text.find(_MARK)
    while at >= 0:
        begin, at = at + len(_MARK), at + len(_MARK)
        head = text.rfind("data:", max(0, begin - _LONGEST_HEADER), begin)
        if head >= 0 and _TEXT_HEADER.fullmatch(text, head, begin):
            payload = _TEXT_PAYLOAD.match(text, begin)
            if payload and payload[0]:
                spans.append(payload.span())
                at = payload.end()
        at = text.find(_MARK, at)
    return spans


def size_without_payloads(body: bytes) -> int:
    """The bytes of a JSON text outside the payloads."""
    size = len(body)
    mark = _MARK.encode()
    at = body.find(mark)
    while at >= 0:
        begin, at = at + len(mark), at + len(mark)
        head = body.rfind(b"data:", max(0, begin - _LONGEST_HEADER), begin)
        if head >= 0 and _JSON_HEADER.fullmatch(body, head, begin):
            payload = _JSON_PAYLOAD.match(body, begin)
            if payload:
                size -= payload.end() - begin
                at = payload.end()
        at = body.find(mark, at)
    return size
