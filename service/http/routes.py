"""The HTTP endpoints: one ticket, a batch, a stream of tickets, health, metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from time import perf_counter
from typing import Any, cast

import orjson
from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from models.inline_images import size_without_payloads
from service.api.problems import Problem, problem_of
from service.api.schema import (
    ROUTE_REQUEST,
    BatchRequest,
    BatchResponse,
    Health,
    Readiness,
    RouteRequest,
    RouteResponse,
)
from service.api.schema import Problem as ProblemDocument
from service.http.json_body import MOST_VALUES, parsed
from service.http.middleware import JSON, JSON_LINES, Exchange, log_request
from service.http.response import Headers
from service.inference.service import Service
from service.observe.metrics import CONTENT_TYPE

log = logging.getLogger("larkfield.http")

# Tickets of one batch or stream in the engine's queue at a time: a batch takes as much of the service as this
# many connections.
BATCH_WINDOW = 16
# A ticket of a batch may take this many deadlines, because other tickets of its batch are before it.
BATCH_PATIENCE = 4
# Fields and values that a ticket of a batch may have on average; a normal one has four.
FIELDS_PER_TICKET = 16
_JSON = (b"content-type", JSON)
_NUMBERS = orjson.OPT_SERIALIZE_NUMPY  # explanations hold numpy numbers


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI entries for the problems that an endpoint may return."""
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"model": ProblemDocument, "content": content} for status in statuses}


router = APIRouter()


async def route_ticket(service: Service, exchange: Exchange) -> tuple[Headers, bytes]:
    """Headers and body of the answer to POST /route."""
    body = await exchange.body()
    began = perf_counter()
    ticket = parsed(ROUTE_REQUEST.validate_json, body)
    read = perf_counter()
    trace = exchange.headers.get(b"traceparent") if service.settings.tracing else None
    with service.admission.ticket(ticket) as permit:
        answer = await service.answer(
            ticket,
            exchange.request_id,
            permit,
            began=began,
            traceparent=trace.decode("latin-1") if trace else None,
        )
    answered = perf_counter()
    payload = orjson.dumps(answer.document(), option=_NUMBERS)
    answer.stages["parse"] = read - began
    answer.stages["serialize"] = perf_counter() - answered
    service.metrics.stage_seconds.observe(answer.stages["parse"], "parse")
    service.metrics.stage_seconds.observe(answer.stages["serialize"], "serialize")
    exchange.answer = answer
    return [_JSON, (b"content-length", b"%d" % len(payload))], payload


def service_of(request: Request) -> Service:
    """The service behind a request."""
    return cast(Service, request.app.state.service)


def id_of(request: Request) -> str:
    """The request id, as in the response."""
    return cast(Exchange, request.state.exchange).request_id


@router.post(
    "/route",
    summary="Route one ticket",
    tags=["tickets"],
    response_model=RouteResponse,
    responses=problem_responses(400, 401, 413, 415, 422, 500, 503, 504),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/RouteRequest"}}},
        }
    },
)
async def route(request: Request) -> Response:
    """The team of a ticket, the confidence, and whether a person should review it first."""
    # `Middleware` calls `route_ticket` directly; this function is here for OpenAPI.
    headers, body = await route_ticket(service_of(request), request.state.exchange)
    response = Response(body)
    response.raw_headers = headers
    return response


@router.post(
    "/route/batch",
    summary="Route several tickets",
    tags=["tickets"],
    response_model=BatchResponse,
    responses=problem_responses(400, 401, 413, 415, 422, 500, 503),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/BatchRequest"}}},
        }
    },
)
async def route_batch(request: Request) -> Response:
    """One result per ticket, in order. An invalid ticket gets a problem as its result."""
    service = service_of(request)
    await service.first_loaded()
    most = service.settings.max_batch_tickets
    most_values = MOST_VALUES + FIELDS_PER_TICKET * most
    batch = parsed(BatchRequest.model_validate_json, await request.body(), most_values)
    if len(batch.tickets) > most:
        message = f"at most {most} tickets"
        raise Problem(422, f"tickets: {message}", errors=[{"field": "tickets", "message": message}])
    pieces = _batch(service, batch.tickets, id_of(request))
    if request.scope["http_version"] == "1.0":  # HTTP/1.0 has no chunked responses
        return Response(b"".join([piece async for piece in pieces]), media_type=JSON.decode())
    return _InParts(pieces, JSON)


async def _batch(service: Service, tickets: list[Any], request_id: str) -> AsyncIterator[bytes]:
    """The answer to a batch, one result at a time: explanations of a whole batch would not fit in memory."""

    async def each() -> AsyncIterator[Result]:
        for place, ticket in enumerate(tickets):
            yield route_one(service, ticket, f"{request_id}-{place}", "batch")

    routed, separator = 0, b'{"results":['
    async for good, result in _in_order(each()):
        routed += good
        yield separator + result
        separator = b","
    yield b'],"routed":%d,"failed":%d}' % (routed, len(tickets) - routed)


@router.post(
    "/route/stream",
    summary="Route an archive, line by line",
    tags=["tickets"],
    response_class=Response,
    responses={
        200: {"content": {"application/x-ndjson": {}}, "description": "One answer or problem per line."},
        **problem_responses(401, 415, 503),
    },
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/x-ndjson": {"schema": {"type": "string"}}},
        }
    },
)
async def route_stream(request: Request) -> Response:
    """Send one ticket per line; get one result per line, in order, while you are still sending."""
    service = service_of(request)
    await service.first_loaded()
    if request.scope["http_version"] == "1.0":
        raise Problem(505, "The answer is sent in chunks, which needs HTTP/1.1.", close=True)
    return _InParts(_stream(service, request), JSON_LINES)


class _InParts(Response):
    """A chunked response that may begin before the whole request has arrived.

    Starlette's StreamingResponse cannot: it reads the request's messages to notice a disconnect.
    """

    def __init__(self, parts: AsyncIterator[bytes], content_type: bytes) -> None:
        super().__init__()
        self._parts = parts
        self.raw_headers = [(b"content-type", content_type)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async for part in self._parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


Result = Coroutine[Any, Any, tuple[bool, bytes]]


async def _in_order(work: AsyncIterator[Result]) -> AsyncIterator[tuple[bool, bytes]]:
    """The results in order; at most BATCH_WINDOW of them run or wait to be sent at a time."""
    waiting: asyncio.Queue[asyncio.Task[tuple[bool, bytes]] | None] = asyncio.Queue(BATCH_WINDOW)

    async def start() -> None:
        try:
            async for each in work:
                await waiting.put(asyncio.ensure_future(each))
        finally:
            await waiting.put(None)

    starting = asyncio.ensure_future(start())
    try:
        while (task := await waiting.get()) is not None:
            yield await task
    finally:
        starting.cancel()


async def _stream(service: Service, request: Request) -> AsyncIterator[bytes]:
    async def each() -> AsyncIterator[Result]:
        place = 0
        async for line in _lines(service, request):
            size = 0 if isinstance(line, Problem) else len(line)
            await service.admission.wait_for_bytes(size)
            ticket = line if isinstance(line, Problem) else _parsed(line)
            yield one(ticket, size, f"{id_of(request)}-{place}")
            place += 1

    async def one(ticket: Any, size: int, request_id: str) -> tuple[bool, bytes]:
        try:
            return await route_one(service, ticket, request_id, "stream")
        finally:
            service.admission.release_bytes(size)

    async for _, result in _in_order(each()):
        yield result + b"\n"


class _Line:
    """The line of a streamed body that is arriving; inline images are not counted against its limit.

    A line beyond the limit without images counts as bytes in flight while it arrives.
    """

    def __init__(self, service: Service) -> None:
        self._settings, self._admission = service.settings, service.admission
        self._parts: list[bytes] = []
        self._size = self._held = 0
        self._problem: Problem | None = None

    async def add(self, piece: bytes) -> None:
        """Add the next piece; it is dropped if the line is already refused."""
        if self._problem is not None:
            return
        self._parts.append(piece)
        self._size += len(piece)
        limit_bytes = self._settings.max_body_bytes
        try:
            if self._size > max(limit_bytes, self._settings.max_body_with_images_bytes):
                raise _too_long(self._settings.max_body_with_images_bytes)
            if self._size > limit_bytes:
                # Not for ever: several streams could wait for each other.
                patience_seconds = BATCH_PATIENCE * self._settings.deadline_seconds
                await self._admission.wait_for_bytes(self._size - self._held, patience_seconds)
                self._held = self._size
        except Problem as problem:
            self.release()
            self._problem = problem

    def end(self) -> bytes | Problem | None:
        """The line without its line break, or why it is refused; None if it is empty."""
        line = b"".join(self._parts)
        self.release()
        limit_bytes = self._settings.max_body_bytes
        if self._problem is None and len(line) > limit_bytes < size_without_payloads(line):
            return _too_long(limit_bytes)
        return self._problem or (line if line.strip() else None)

    def release(self) -> None:
        """Forget the pieces, and release their bytes."""
        self._admission.release_bytes(self._held)
        self._parts, self._held = [], 0


async def _lines(service: Service, request: Request) -> AsyncIterator[bytes | Problem]:
    """The lines of a streamed body; a line that is too long becomes a problem, and the stream continues."""
    line = _Line(service)
    try:
        async for chunk in request.stream():
            *ended, rest = chunk.split(b"\n")
            for piece in ended:
                await line.add(piece)
                result, line = line.end(), _Line(service)
                if result is not None:
                    yield result
            await line.add(rest)
        result = line.end()
        if result is not None:
            yield result
    finally:
        line.release()


def _too_long(limit_bytes: int) -> Problem:
    return Problem(413, f"The line is longer than {limit_bytes} bytes.")


def _parsed(line: bytes) -> Any:
    try:
        return parsed(orjson.loads, line)
    except orjson.JSONDecodeError:
        return Problem(422, "The line is not valid JSON in UTF-8.")
    except Problem as problem:
        return problem


async def route_one(service: Service, ticket: Any, request_id: str, source: str) -> tuple[bool, bytes]:
    """Route a ticket of a batch or stream: (True, answer) or (False, problem) as JSON; waits for a permit."""
    began = perf_counter()
    patience_seconds = BATCH_PATIENCE * service.settings.deadline_seconds
    given_id = ticket.get("ticket_id") if isinstance(ticket, dict) else None
    try:
        if isinstance(ticket, Problem):
            raise ticket
        request = RouteRequest.model_validate(ticket, strict=True)
        _bound_text(request, service.settings.max_body_bytes)
        with await service.admission.batch_ticket(request, patience_seconds) as permit:
            later = perf_counter() + patience_seconds - service.settings.deadline_seconds
            answer = await service.answer(request, request_id, permit, began=later, source=source)
        return True, orjson.dumps(answer.document(), option=_NUMBERS)
    except Exception as error:
        problem = problem_of(error)
        if problem.status == 500:
            log.exception("unexpected error", extra={"request_id": request_id})
    service.metrics.requests.inc("/route/" + source + "#ticket", str(problem.status))
    document = problem.document(request_id)
    log_request(service, request_id, "/route/" + source, "POST", problem.status, began, None)
    ticket_id = str(given_id) if isinstance(given_id, str | int) else None
    return False, orjson.dumps({"ticket_id": ticket_id, **document})


def _bound_text(ticket: RouteRequest, limit_bytes: int) -> None:
    """Problem 413 for a text that is larger than POST /route accepts."""
    if 4 * len(ticket.text) <= limit_bytes:
        return
    if size_without_payloads(ticket.text.encode("utf-8", "replace")) > limit_bytes:
        raise Problem(413, f"The text is larger than {limit_bytes} bytes.")


@router.get("/healthz", summary="The process is running", tags=["operation"], response_model=Health)
async def healthz() -> Response:
    """200 while the process is running."""
    return Response(b'{"status":"ok"}', media_type="application/json")


@router.get(
    "/readyz",
    summary="The service answers tickets",
    tags=["operation"],
    response_model=Readiness,
    responses={
        503: {"model": Readiness, "description": "The bundle is being loaded, or shutdown has begun."}
    },
)
async def readyz(request: Request) -> Response:
    """200 with bundle and provider, also while a worker is missing; 503 during loading and shutdown."""
    service = service_of(request)
    runtime = service.runtime
    status = "draining" if service.draining else "loading" if runtime is None else "ready"
    if status == "ready" and service.missing_workers:
        status = "degraded"
    body: dict[str, Any] = {"status": status}
    if runtime is not None:
        body["model"] = {"name": runtime.name, "version": runtime.version}
        body["provider"] = runtime.provider
    return Response(orjson.dumps(body), 200 if service.ready else 503, media_type="application/json")


# Load balancers also probe with these methods; the server leaves out the body of an answer to HEAD.
router.head("/healthz", include_in_schema=False)(healthz)
router.head("/readyz", include_in_schema=False)(readyz)


@router.options("/healthz", include_in_schema=False)
@router.options("/readyz", include_in_schema=False)
async def probe_methods() -> Response:
    """204 with the methods of the probes."""
    return Response(status_code=204, headers={"allow": "GET, HEAD, OPTIONS"})


@router.get("/metrics", summary="Prometheus metrics", tags=["operation"], response_class=Response)
async def metrics(request: Request) -> Response:
    """The metrics of all workers together; any worker can answer."""
    service = service_of(request)
    service.publish()
    try:
        text = await asyncio.to_thread(service.metrics.render)
    except (OSError, ValueError):
        raise Problem(503, "The metrics folder was deleted; restart the service.") from None
    return Response(text, media_type=CONTENT_TYPE)
