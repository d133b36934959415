"""HTTP/1.1 on a connection: uvicorn's httptools protocol, with limits for clients that are slow or stop.

Uvicorn itself waits for ever for the rest of a request, for a first byte, and for a client to read.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from starlette.types import Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from service.api.problems import CONTENT_TYPE, Problem
from service.http.middleware import request_id_of
from service.inference.service import Service

# At the end: time for a client that has connected to send its request.
_LAST_SECONDS = 1.0
# Headers larger than this in all are refused.
_MAX_HEADER_BYTES = 65_536
_UPGRADE = re.compile(rb"(\A|\r\n)upgrade:", re.IGNORECASE)


def without_upgrade(data: bytes) -> bytes:
    """Headers whose wish for another protocol is not heard, as a server may choose (RFC 9110, 7.8).

    The parser would take such a request's body for the other protocol, and Java's client asks for HTTP/2 this
    way each time.
    """
    head, end, body = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(rb"\1x-upgrade:", head) + end + body


def send_whole(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
    """Send a response to a POST in one write; uvicorn takes two, and looks at each header by itself.

    `headers` must be sound and have the content length. False, and nothing sent, if `send` is not uvicorn's
    own (a middleware wants to see the response), or there is something to wait for or nobody to send to.
    """
    cycle = getattr(send, "__self__", None)
    if not isinstance(cycle, RequestResponseCycle):
        return False
    if cycle.flow.write_paused or cycle.disconnected or cycle.response_started:
        return False
    parts = [STATUS_LINE[status]]
    for name, value in (*cycle.default_headers, *headers):
        parts += (name, b": ", value, b"\r\n")
    if (b"connection", b"close") in headers:
        cycle.keep_alive = False
    elif not cycle.keep_alive:
        parts.append(b"connection: close\r\n")
    cycle.response_started = cycle.response_complete = True
    cycle.transport.write(b"".join((*parts, b"\r\n", body)))
    cycle.message_event.set()
    if not cycle.keep_alive:
        cycle.transport.close()
    cycle.on_response()
    return True


class Protocol(HttpToolsProtocol):
    """One connection. A request that arrives in one piece, as most do, sets no timer at all."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        service: Service = self.config.loaded_app.state.service
        self._service = service
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._in_headers = True
        self._in_message = False
        self._streaming = False
        self._leaving = False  # nothing more is read
        self._last_word: Problem | None = None  # to be said when what came before it is answered
        self._header_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._service.settings.max_connections:
            self._service.metrics.refused.inc("connections")
            self._refuse(
                Problem(
                    503,
                    "Too many connections are open.",
                    headers=[(b"retry-after", b"%d" % self._service.settings.retry_after_seconds)],
                )
            )
            return
        self._arm(self._service.settings.header_timeout_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        if self._write_timer is not None:
            self._write_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing() or self._leaving:
            return
        if not self._arrives() and b"pgrade" in data:
            data = without_upgrade(data)
        if self._in_headers:
            self._header_bytes += len(data)
        super().data_received(data)
        if self.parser is None or self.transport.is_closing():
            return
        if not self._in_message:
            self._disarm()
        elif self._in_headers:
            if self._header_bytes > _MAX_HEADER_BYTES:
                self._refuse(Problem(431, "The headers are too large."))
            elif self._timer is None:
                self._arm(self._service.settings.header_timeout_seconds)
        elif self._streaming or self._timer is None:
            self._disarm()
            self._arm(self._service.settings.body_timeout_seconds)

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """A client that only stopped sending still gets its answers; then the connection ends."""
        if self._last_word is not None:
            return True
        if not self._owes_answers():
            return None
        if self._in_message:
            self._refuse(Problem(400, "The request ended before it was complete."))
        else:
            self.cycle.keep_alive = False
        return True

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_message = self._in_headers = True

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._header_bytes = 0
        self._disarm()
        super().on_headers_complete()
        self._streaming = self.scope["path"] == "/route/stream"

    def on_message_complete(self) -> None:
        self._in_message = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Answered before the body was there (a wrong key, say): the rest is not worth waiting for.

        Closing at once would make the kernel reset the connection, and the answer could be lost with it.
        """
        was_last = not self.pipeline
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self._last_word is not None:
            if was_last:
                self._say(self._last_word)
        elif self._arrives() and self.cycle.response_complete:
            self._unset_keepalive_if_required()
            self._leaving = True
            if self.transport.can_write_eof():
                self.transport.write_eof()
            self._disarm()
            self._arm(_LAST_SECONDS)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_timer is None:
            seconds = self._service.settings.write_timeout_seconds
            self._write_timer = self.loop.call_later(seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def shutdown(self) -> None:
        """The end is near: a client that has connected or begun to send still gets its answer."""
        begun = self._in_message and (self.cycle is None or self.cycle.response_complete)
        if self.cycle is None or begun:
            self._disarm()
            self._arm(min(_LAST_SECONDS, self._service.settings.header_timeout_seconds))
        else:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        self._refuse(Problem(400, msg))

    def _arm(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self._too_slow)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        self._service.metrics.refused.inc("slow")
        if self._arrives() and self.cycle.response_started:
            self.transport.abort()
        elif self._in_message:
            self._refuse(Problem(408, "The request took too long to arrive."))
        else:
            self.transport.close()

    def _arrives(self) -> bool:
        """Whether the body of the newest request is still on its way."""
        return self._in_message and not self._in_headers

    def _owes_answers(self) -> bool:
        """Whether requests that arrived whole wait for their answers."""
        if self._arrives():
            return bool(self.pipeline)  # itself in it, behind others
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, problem: Problem) -> None:
        """Answer a request that never became one, after those before it, and close."""
        if not self._owes_answers():
            self._say(problem)
            return
        if self._arrives():
            self.pipeline.popleft()  # the newest: it will not be whole
        self._disarm()
        self._leaving, self._last_word = True, problem

    def _say(self, problem: Problem) -> None:
        request_id = request_id_of(None)
        body = problem.body(request_id)
        lines = [
            b"HTTP/1.1 %d %s" % (problem.status, problem.document(request_id)["title"].encode()),
            b"content-type: " + CONTENT_TYPE,
            b"content-length: %d" % len(body),
            b"x-request-id: " + request_id.encode(),
            b"x-content-type-options: nosniff",
            b"cache-control: no-store",
            b"connection: close",
            *(name + b": " + value for name, value in problem.header_list),
        ]
        self._service.metrics.requests.inc("other", str(problem.status))
        self._disarm()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)
        self.transport.close()
