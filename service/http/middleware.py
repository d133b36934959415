"""What is done for every request: request id, key, limits, headers, error format, log line, metrics.

One `Middleware` wraps the whole application. It calls the handler of POST /route directly, because FastAPI's
routing would make an answer a third slower. The checks are the same for all paths.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import perf_counter, time
from typing import Any, Literal

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from models.inline_images import size_without_payloads
from service.api.keys import presented
from service.api.problems import Problem, problem_of
from service.http.response import Headers, rendered, request_id_of, with_common
from service.inference.service import Answer, Service
from service.observe.logs import stamp

log = logging.getLogger("larkfield.http")

JSON, JSON_LINES = b"application/json", b"application/x-ndjson"
BYTES = b"application/octet-stream"
# Limit for the bodies that FastAPI parses. The longest value in them is the path of a folder.
SMALL_BODY_BYTES = 32_768
# A payload that is cut within an escape or a line may be counted as this many bytes of text.
_CUT_BYTES = 512
# Probes and scrapes are counted but not logged.
_QUIET = frozenset({"/healthz", "/readyz", "/openapi.json", "/metrics"})


@dataclass(frozen=True)
class Rules:
    """Requirements of a path: which key, which content type, and how large a body."""

    key: Literal["none", "api", "admin"] = "api"
    content_type: bytes | None = None
    limit_bytes: int | None = None  # None: no limit for the whole body; /route/stream limits each line
    limit_with_images_bytes: int = (
        0  # larger than limit_bytes: payloads of inline images are not counted there
    )


def rules_of(service: Service) -> dict[str, Rules]:
    """The rules by path, or by prefix if the path ends in `*`; the entry `*` applies to all others."""
    settings = service.settings
    body, open_to_all = settings.max_body_bytes, Rules("none", None, 0)
    small = min(body, SMALL_BODY_BYTES)
    return {
        "/route": Rules("api", JSON, body, settings.max_body_with_images_bytes),
        "/route/batch": Rules("api", JSON, settings.max_batch_body_bytes),
        "/route/stream": Rules("api", JSON_LINES, None),
        "/feedback": Rules("api", JSON, small),
        "/feedback/remove": Rules("api", JSON, small),
        "/upload/read": Rules("api", BYTES, settings.max_batch_body_bytes),
        "/admin/*": Rules("admin", JSON, small),
        "/metrics": Rules("api" if settings.metrics_need_key else "none", None, 0),
        "/healthz": open_to_all,
        "/readyz": open_to_all,
        "/openapi.json": open_to_all,
        "*": Rules("api", None, small),
    }


class Exchange:
    """One request and its response: ASGI `receive` with a limit, and `send` with the common headers.

    The handler of /route stores its `answer` here for the log line. `status` is 0 until a response begins.
    """

    def __init__(self, service: Service, scope: Scope, receive: Receive, send: Send) -> None:
        self._service = service
        self._receive = receive
        self._send = send
        self._left = self._held = 0
        self._without_images_bytes: int | None = None
        self.limit_bytes: int | None = None
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.request_id = request_id_of(self.headers.get(b"x-request-id"))
        self.answer: Answer | None = None
        self.status = 0

    def limit(self, limit_bytes: int | None, with_images_bytes: int = 0) -> None:
        """Limit the body; Problem 413 at once if Content-Length exceeds the limit.

        If `with_images_bytes` is the larger limit, it is the one for the whole body, and `body` counts
        `limit_bytes` without the payloads of inline images.
        """
        if limit_bytes is not None and with_images_bytes > limit_bytes:
            self._without_images_bytes, limit_bytes = limit_bytes, with_images_bytes
        self.limit_bytes, self._left = limit_bytes, limit_bytes or 0
        length = self.headers.get(b"content-length")
        if limit_bytes is not None and length is not None and not _fits(length, limit_bytes):
            raise _too_large(limit_bytes)

    async def receive(self) -> Message:
        """The next part of the request; Problem 413 when the body exceeds the limit."""
        message = await self._receive()
        if self.limit_bytes is not None:
            size = len(message.get("body", b""))
            self._left -= size
            if self._left < 0:
                raise _too_large(self.limit_bytes)
            self._service.admission.take_bytes(size)
            self._held += size
        return message

    def close(self) -> None:
        """Release the body's bytes after the answer."""
        self._service.admission.release_bytes(self._held)

    async def body(self) -> bytes:
        """The whole body; Problem 413 if it is too large, 400 if the client disconnected."""
        parts, more = [], True
        size, limit_bytes = 0, self._without_images_bytes
        count_at = 0
        while more:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise Problem(400, "The connection was closed before the whole body arrived.", close=True)
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            more = message.get("more_body", False)
            if limit_bytes is not None and size > limit_bytes and (size >= count_at or not more):
                parts = [b"".join(parts)]
                counted = size_without_payloads(parts[0])
                if counted > limit_bytes + (_CUT_BYTES if more else 0):
                    raise _too_large(limit_bytes, ", inline images not counted")
                # Not before the rest could exceed the limit, and seldom enough for a linear time in total.
                count_at = size + max(limit_bytes - counted, size // 4)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def send(self, message: Message) -> None:
        """Send a part of the response, with the common headers."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = with_common(message.get("headers", []), self.request_id, self._service.draining)
            message = {**message, "headers": headers}
        await self._send(message)

    async def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole response."""
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    async def respond_problem(self, problem: Problem) -> None:
        """Send a problem; raise it if a response has begun, so that uvicorn closes the connection."""
        if self.status:
            raise problem
        headers, body = rendered(problem, self.request_id)
        await self.respond(problem.status, headers, body)


Handler = Callable[[Service, Exchange], Awaitable[tuple[Headers, bytes]]]


class Middleware:
    """Wraps the application; `direct` maps paths to handlers of POST that bypass FastAPI."""

    def __init__(self, app: ASGIApp, service: Service, direct: dict[str, Handler]) -> None:
        self._app = app
        self._service = service
        self._direct = direct
        self._hosts = _local_names(service)
        self.rules = rules_of(service)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = perf_counter()
        service, path, method = self._service, scope["path"], scope["method"]
        quiet = path in _QUIET
        service.in_flight += not quiet
        exchange = Exchange(service, scope, receive, send)
        handler = self._direct.get(path) if method == "POST" else None
        try:
            self._check(self._rules_for(path), exchange, scope)
            if handler is not None:
                await exchange.respond(200, *await handler(service, exchange))
            else:
                scope.setdefault("state", {})["exchange"] = exchange
                await self._app(scope, exchange.receive, exchange.send)
        except Exception as error:
            problem = problem_of(error)
            if problem.status == 500:
                log.exception("unexpected error", extra={"request_id": exchange.request_id})
            await exchange.respond_problem(problem)
        finally:
            exchange.close()
            service.in_flight -= not quiet
            route = path if handler is not None else getattr(scope.get("route"), "path", "other")
            answer = exchange.answer
            explain = "none" if answer is None else answer.ticket.explain
            service.metrics.requests.inc(route, str(exchange.status))
            service.metrics.request_seconds.observe(perf_counter() - began, route, explain)
            if not quiet:
                log_request(service, exchange.request_id, route, method, exchange.status, began, answer)

    def open(self, *paths: str) -> None:
        """Allow these paths without a key."""
        self.rules |= dict.fromkeys(paths, self.rules["/healthz"])

    def _rules_for(self, path: str) -> Rules:
        """The rules of a path, or of its longest prefix."""
        found = self.rules.get(path)
        while found is None:
            path = path[:-1].rpartition("/")[0] + "/" if "/" in path[:-1] else ""
            found = self.rules.get(path + "*")
        return found

    def _check(self, rules: Rules, exchange: Exchange, scope: Scope) -> None:
        """Problem 401, 403, 413, 415 or 421 if the request breaks a rule of its path."""
        if self._hosts is not None:
            _require_host(exchange.headers.get(b"host", b""), self._hosts)
        if rules.key != "none":
            _require_key(self._service, scope["headers"], rules.key == "admin")
        _refuse_compressed(exchange.headers.get(b"content-encoding"))
        exchange.limit(rules.limit_bytes, rules.limit_with_images_bytes)
        if rules.content_type is not None and scope["method"] == "POST":
            _require_type(exchange.headers.get(b"content-type"), rules.content_type)


def _local_names(service: Service) -> frozenset[bytes] | None:
    """The allowed Host headers if the service listens on loopback without a key; otherwise None.

    This prevents DNS rebinding: a web site could resolve its own name to 127.0.0.1 and call the service from
    a browser on this machine. The Host header would contain that name.
    """
    settings = service.settings
    if service.keys.required or settings.allow_no_keys or not settings.loopback:
        return None
    return frozenset((b"localhost", b"127.0.0.1", b"[::1]", settings.host.lower().encode()))


def _require_host(host: bytes, names: frozenset[bytes]) -> None:
    name = host.lower()
    if name not in names and name.rpartition(b":")[0] not in names:
        raise Problem(
            421,
            "The Host header must be localhost. To call the service by another name, set API keys or "
            "LARKFIELD_ALLOW_NO_KEYS=true.",
        )


def _require_key(service: Service, headers: Headers, admin: bool) -> None:
    """Raise 401 unless the key is valid. If none is configured, anyone may call, but /admin gives 403."""
    keys = service.admin_keys if admin else service.keys
    if admin and not keys.required:
        raise Problem(403, "No admin key is configured; set LARKFIELD_ADMIN_KEY to enable /admin.")
    if not keys.required or keys.admits(presented(headers)):
        return
    service.metrics.refused.inc("unauthorized")
    raise Problem(
        401,
        "A valid key is required, as `Authorization: Bearer …` or `X-API-Key`.",
        headers=[(b"www-authenticate", b"Bearer")],
    )


def _refuse_compressed(content_encoding: bytes | None) -> None:
    """415 for a compressed body, which the service does not decompress."""
    if content_encoding is None or content_encoding.strip().lower() in (b"", b"identity"):
        return
    raise Problem(
        415,
        "Compressed bodies are not supported: send the body without Content-Encoding.",
        headers=[(b"accept-encoding", b"identity")],
    )


def _require_type(content_type: bytes | None, expected: bytes) -> None:
    """415 for any other content type: a page of another site cannot send this one without a preflight."""
    if content_type is None or content_type.partition(b";")[0].strip().lower() != expected:
        raise Problem(415, f"The content type must be {expected.decode()}.", close=True)


def _too_large(limit_bytes: int, condition: str = "") -> Problem:
    """413; the connection is closed, because the rest of the body is not read."""
    return Problem(413, f"The body is larger than {limit_bytes} bytes{condition}.", close=True)


def _fits(length: bytes, limit_bytes: int) -> bool:
    """Whether a Content-Length is a number within the limit."""
    return length.isdigit() and len(length) < 20 and int(length) <= limit_bytes


def log_request(
    service: Service,
    request_id: str,
    route: str,
    method: str,
    status: int,
    began: float,
    answer: Answer | None,
) -> None:
    """Log one line with ids, status, times and decision, never text."""
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
