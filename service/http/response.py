"""What all responses have in common: request id, security headers, error format."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from service.api.problems import CONTENT_TYPE, Problem

Headers = list[tuple[bytes, bytes]]

CLOSE = (b"connection", b"close")
SECURITY_HEADERS: Headers = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
]

_SAFE_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_PREFIX = os.urandom(8).hex()
_NUMBER = itertools.count(1)
os.register_at_fork(after_in_child=lambda: globals().update(_PREFIX=os.urandom(8).hex()))


def request_id_of(given: bytes | None) -> str:
    """The client's id if it is safe to repeat, otherwise a new one: 16 random characters and a number."""
    if given is not None and _SAFE_ID.fullmatch(given):
        return given.decode("ascii")
    return f"{_PREFIX}{next(_NUMBER):08x}"


def with_common(headers: Iterable[tuple[bytes, bytes]], request_id: str, close: bool) -> Headers:
    """The headers and those of every response; a given header is kept."""
    headers = list(headers)
    given = {name.lower() for name, _ in headers}
    headers += [pair for pair in SECURITY_HEADERS if pair[0] not in given]
    headers.append((b"x-request-id", request_id.encode("ascii")))
    if close and b"connection" not in given:
        headers.append(CLOSE)
    return headers


def rendered(problem: Problem, request_id: str) -> tuple[Headers, bytes]:
    """Headers (without the common ones) and body of a problem; all error responses are built here."""
    body = problem.body(request_id)
    headers = [(b"content-type", CONTENT_TYPE), *problem.header_list, (b"content-length", b"%d" % len(body))]
    return ([*headers, CLOSE] if problem.close else headers), body


def encoded(status: int, headers: Headers, body: bytes) -> bytes:
    """A whole HTTP/1.1 response as bytes; `headers` must be valid and include the content length."""
    lines = [part for name, value in headers for part in (name, b": ", value, b"\r\n")]
    return b"".join((STATUS_LINE[status], *lines, b"\r\n", body))
