"""What every response has in common: a request id, security headers, an error format, a log line, a count.

`Edge` wraps the application for all paths but POST /route, which is measured in microseconds and does the
same by hand (`routes.RouteTicket`), with the functions below.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
from time import perf_counter, time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.keys import presented
from service.api.problems import CONTENT_TYPE, Problem, unknown_error
from service.inference.service import Answer, Service
from service.observe.logs import stamp

log = logging.getLogger("larkfield.http")

API_POLICY = b"default-src 'none'; frame-ancestors 'none'"
SECURITY_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", API_POLICY),
]
# Anyone may call these; what else needs no key, a page adds to `Edge.open_paths`.
OPEN_PATHS = frozenset({"/healthz", "/readyz", "/openapi.json"})

_SANE_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_PREFIX = os.urandom(8).hex()
_NUMBER = itertools.count(1)
os.register_at_fork(after_in_child=lambda: globals().update(_PREFIX=os.urandom(8).hex()))


def request_id_of(given: bytes | None) -> str:
    """The client's own id where it is a sane one, else a new one: 16 random characters and a number."""
    if given is not None and _SANE_ID.fullmatch(given):
        return given.decode("ascii")
    return f"{_PREFIX}{next(_NUMBER):08x}"


def admit(service: Service, key: bytes | None, admin: bool = False) -> None:
    """Problem 401 or 403 unless the key opens the door; without configured API keys it stands open."""
    keys = service.admin_keys if admin else service.keys
    if admin and not keys.required:
        raise Problem(403, "No admin key is configured; set LARKFIELD_ADMIN_KEY to open this.")
    if not keys.required or keys.admits(key):
        return
    service.metrics.refused.inc("unauthorized")
    raise Problem(
        401,
        "A valid key is needed, as `Authorization: Bearer …` or `X-API-Key`.",
        headers=[(b"www-authenticate", b"Bearer")],
    )


def must_be_plain(content_encoding: bytes | None) -> None:
    """415 for a compressed body: it would be read as what it is not."""
    if content_encoding is None or content_encoding.strip().lower() in (b"", b"identity"):
        return
    raise Problem(
        415,
        "Compressed bodies are not read: send the body as it is, without Content-Encoding.",
        headers=[(b"accept-encoding", b"identity")],
    )


def too_large(limit_bytes: int) -> Problem:
    """413; the connection is closed, for the rest of the body will not be read."""
    return Problem(413, f"The body is larger than {limit_bytes} bytes.", close=True)


def fits(length: bytes, limit_bytes: int) -> bool:
    """Whether a Content-Length is a number within the limit."""
    return length.isdigit() and len(length) < 20 and int(length) <= limit_bytes


async def read_body(receive: Receive, length: bytes | None, limit_bytes: int) -> bytes:
    """The whole body; Problem 413 as soon as it is known to be too large, 400 when the client left."""
    if length is not None and not fits(length, limit_bytes):
        raise too_large(limit_bytes)
    message = await receive()
    body: bytes = message.get("body", b"")
    more = message.get("more_body", False)
    if message["type"] == "http.disconnect":
        raise Problem(400, "The request ended before its body did.", close=True)
    if not more and len(body) <= limit_bytes:
        return body
    parts, size = [body], len(body)
    while more and size <= limit_bytes:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Problem(400, "The request ended before its body did.", close=True)
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        more = message.get("more_body", False)
    if size > limit_bytes:
        raise too_large(limit_bytes)
    return b"".join(parts)


def problem_headers(problem: Problem) -> list[tuple[bytes, bytes]]:
    """Content type and what else the problem wants."""
    closing = [(b"connection", b"close")] if problem.close else []
    return [(b"content-type", CONTENT_TYPE), *problem.header_list, *closing]


def log_request(
    service: Service,
    request_id: str,
    route: str,
    method: str,
    status: int,
    began: float,
    answer: Answer | None,
) -> None:
    """One line: ids, status, times, decision. Never text."""
    if service.writer is None or not service.settings.log_requests:
        return
    document: dict[str, Any] = {
        "time": stamp(time()),
        "level": "info" if status < 500 else "warning",
        "event": "request",
        "request_id": request_id,
        "method": method,
        "route": route,
        "status": status,
        "us": int((perf_counter() - began) * 1e6),
    }
    if answer is not None:
        document["stages_us"] = {stage: int(seconds * 1e6) for stage, seconds in answer.stages.items()}
        document["team"] = answer.decision.team
        document["decision"] = answer.decision.decision
        document["version"] = answer.runtime.version
    service.writer.line(document)


class Edge:
    """ASGI wrapper: ids, keys, limits, headers, errors, log and count."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app = app
        self.service = service
        self.open_paths: set[str] = set(OPEN_PATHS)
        self.open_prefixes: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = perf_counter()
        counted = scope["path"] not in OPEN_PATHS and scope["path"] != "/metrics"
        self.service.in_flight += counted
        headers = dict(scope["headers"])
        request_id = request_id_of(headers.get(b"x-request-id"))
        scope.setdefault("state", {})["request_id"] = request_id
        response = _Response(self.service, request_id, send)
        try:
            self._admit(scope)
            must_be_plain(headers.get(b"content-encoding"))
            limited = _Limited(receive, headers.get(b"content-length"), self._limit(scope["path"]))
            await self.app(scope, limited, response)
        except Problem as problem:
            await response.problem(problem)
        except Exception:
            log.exception("unexpected error", extra={"request_id": request_id})
            if not response.status:
                await response.problem(unknown_error())
        finally:
            self.service.in_flight -= counted
            route = getattr(scope.get("route"), "path", "other")
            self.service.metrics.requests.inc(route, str(response.status))
            self.service.metrics.request_seconds.observe(perf_counter() - began, route, "none")
            if counted:
                log_request(self.service, request_id, route, scope["method"], response.status, began, None)

    def _admit(self, scope: Scope) -> None:
        path: str = scope["path"]
        if path.startswith("/admin/"):
            admit(self.service, presented(scope["headers"]), admin=True)
            return
        if path == "/metrics" and not self.service.settings.metrics_need_key:
            return
        if path in self.open_paths or path.startswith(tuple(self.open_prefixes)):
            return
        admit(self.service, presented(scope["headers"]))

    def _limit(self, path: str) -> int | None:
        """Bytes that a body may have; a stream has a limit per line instead."""
        if path == "/route/stream":
            return None
        settings = self.service.settings
        return settings.max_batch_body_bytes if path == "/route/batch" else settings.max_body_bytes


class _Limited:
    """An ASGI `receive` that raises Problem 413 once the body is larger than the limit."""

    def __init__(self, receive: Receive, length: bytes | None, limit_bytes: int | None) -> None:
        self._receive = receive
        self._left = limit_bytes
        self._limit = limit_bytes or 0
        if limit_bytes is not None and length is not None and not fits(length, limit_bytes):
            raise too_large(limit_bytes)

    async def __call__(self) -> Message:
        message = await self._receive()
        if self._left is not None:
            self._left -= len(message.get("body", b""))
            if self._left < 0:
                raise too_large(self._limit)
        return message


class _Response:
    """An ASGI `send` that adds what every response carries."""

    def __init__(self, service: Service, request_id: str, send: Send) -> None:
        self._service = service
        self._request_id = request_id
        self._send = send
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message.get("headers", []))
            given = {name.lower() for name, _ in headers}
            headers += [pair for pair in SECURITY_HEADERS if pair[0] not in given]
            headers.append((b"x-request-id", self._request_id.encode("ascii")))
            if self._service.draining and b"connection" not in given:
                headers.append((b"connection", b"close"))
            message = {**message, "headers": headers}
        await self._send(message)

    async def problem(self, problem: Problem) -> None:
        """Send a problem, unless a response has begun: then only the connection can end it."""
        if self.status:
            raise problem
        body = problem.body(self._request_id)
        headers = [*problem_headers(problem), (b"content-length", b"%d" % len(body))]
        await self({"type": "http.response.start", "status": problem.status, "headers": headers})
        await self({"type": "http.response.body", "body": body})
