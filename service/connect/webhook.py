"""The web server: `POST /webhook/{desk}` stores the event and only then answers 200; probes and metrics."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from service.api import problems
from service.api.problems import Problem
from service.connect.desk import Desk, Event, NotUnderstood
from service.connect.events import EventStore
from service.connect.metrics import CONTENT_TYPE, Metrics
from service.connect.signatures import admits

log = logging.getLogger("larkfield.connect")

# A webhook carries one ticket with its mails; as much as the service takes for a batch.
LARGEST_BODY_BYTES = 8_388_608
BODY_SECONDS = 30.0
MOST_REQUESTS = 32  # at once, so that bodies in flight stay within memory
_AGAIN_SECONDS = 5
_KEY = re.compile(r"[^\x00-\x1f\ud800-\udfff]{1,500}")  # what may be stored as a ticket's id and version


@dataclass(frozen=True)
class Receiver:
    """One desk as the web server needs it."""

    desk: Desk
    signature: str
    secret: str | None
    wake: Callable[[], None]  # the desk's worker


def create_app(receivers: Mapping[str, Receiver], store: EventStore, metrics: Metrics) -> Starlette:
    """The application."""

    async def webhook(request: Request) -> Response:
        name = request.path_params["desk"]
        receiver = receivers.get(name)
        if receiver is None:
            metrics.refused.labels("", "unknown_desk").inc()
            raise Problem(404, "The configuration names no such desk.")
        try:
            return await _taken(name, receiver, request, store, metrics)
        except Refused as refused:
            metrics.refused.labels(name, refused.reason).inc()
            log.warning(
                "webhook refused", extra={"desk": name, "reason": refused.reason, "why": refused.detail}
            )
            raise

    async def figures(_: Request) -> Response:
        return Response(await run_in_threadpool(metrics.render), media_type=CONTENT_TYPE)

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def problem(_: Request, error: Exception) -> Response:
        found = problems.problem_of(error)
        headers = {name.decode(): value.decode() for name, value in found.header_list}
        return Response(found.body(""), found.status, headers, problems.CONTENT_TYPE.decode())

    return Starlette(
        routes=[
            Route("/webhook/{desk}", webhook, methods=["POST"]),
            Route("/webhook/{desk}/{secret}", webhook, methods=["POST"]),
            Route("/metrics", figures),
            Route("/healthz", health),
        ],
        exception_handlers={Exception: problem, 404: problem, 405: problem, Problem: problem},
    )


class Refused(Problem):
    """A webhook that is not stored; `reason` is one of metrics.REFUSALS."""

    def __init__(self, reason: str, status: int, detail: str, **options: Any) -> None:
        super().__init__(status, detail, **options)
        self.reason = reason


async def _taken(
    name: str, receiver: Receiver, request: Request, store: EventStore, metrics: Metrics
) -> Response:
    """Check, store, answer. Raises Refused."""
    body = await _body(request)
    in_address = request.path_params.get("secret")
    if receiver.secret is None:
        raise Refused("signature", 403, "No webhook secret is configured for this desk: it is only searched.")
    if not admits(receiver.signature, receiver.secret, request.headers, body, in_address):
        raise Refused("signature", 401, "The signature or the secret of this webhook is wrong.")
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused("not_json", 422, "The body is not JSON in UTF-8.") from None
    event = _event(receiver.desk, document)
    if event is None:
        metrics.events.labels(name, "webhook", "ignored").inc()
        return JSONResponse({"status": "ignored"})
    try:
        new = await run_in_threadpool(store.add, name, [event], "webhook")
    except sqlite3.Error as error:
        retry = [(b"retry-after", b"%d" % _AGAIN_SECONDS)]
        raise Refused("store", 503, f"The event was not stored: {error}.", headers=retry) from None
    metrics.events.labels(name, "webhook", "new" if new else "repeated").inc()
    receiver.wake()
    return JSONResponse({"status": "stored" if new else "repeated"})


def _event(desk: Desk, document: Any) -> Event | None:
    """The event of a body; Refused if it names no ticket, or has another shape than documented."""
    try:
        event = desk.read_event(document)
    except NotUnderstood as error:
        raise Refused("unknown_event", 422, f"This event is not understood: {error}.") from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        what = f"its shape is unexpected ({type(error).__name__})"
        raise Refused("unknown_event", 422, f"This event is not understood: {what}.") from None
    if event is not None and not _KEY.fullmatch(event.ticket + event.version):
        raise Refused("unknown_event", 422, "The ticket's id is too long, or is no text.")
    return event


async def _body(request: Request) -> bytes:
    """The body; Refused if it is too large or comes too slowly."""
    parts, size = [], 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size > LARGEST_BODY_BYTES:
                    raise Refused("too_large", 413, f"The body is larger than {LARGEST_BODY_BYTES} bytes.")
                parts.append(part)
    except TimeoutError:
        raise Refused("slow", 408, f"The body did not come within {BODY_SECONDS:g} seconds.") from None
    except ClientDisconnect:
        raise Refused("slow", 400, "The request ended before its body did.") from None
    return b"".join(parts)
