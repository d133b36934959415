"""HTTP/1.1 on a connection: uvicorn's httptools protocol with timeouts for slow clients.

Uvicorn alone waits without limit for a first byte, for the rest of a request and for a client to read.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.api.problems import Problem
from service.http.response import encoded, rendered, request_id_of, with_common
from service.inference.admission import Permit
from service.inference.service import Service

# During shutdown, a client that has connected has this long to send its request.
_LAST_SECONDS = 1.0
# Many clients read the answer only after they have written the whole body. What they write after an early
# answer is discarded within these limits.
_LINGER_SECONDS = 5.0
_LINGER_BYTES = 33_554_432
# Limit for bytes outside a body: headers, chunk sizes, trailers.
_MAX_BYTES_BETWEEN = 32_768
_UPGRADE = re.compile(rb"(\A|\r\n)upgrade:", re.IGNORECASE)


def without_upgrade(data: bytes) -> bytes:
    """Rename the Upgrade header of a request, so that it is ignored (allowed by RFC 9110, 7.8).

    The parser would treat the body as data of the other protocol. Java's HTTP client sends the header with
    each request to ask for HTTP/2.
    """
    head, end, body = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(rb"\1x-upgrade:", head) + end + body


class _AnswerTransport:
    """The transport for the answer to one request: its `close` waits for a body that is still arriving."""

    def __init__(self, protocol: Protocol) -> None:
        self._protocol = protocol
        self.write = protocol.transport.write
        self.is_closing = protocol.transport.is_closing

    def close(self) -> None:
        if not self._protocol.lingers():
            self._protocol.transport.close()


class Protocol(HttpToolsProtocol):
    """One connection. A request that arrives in one piece, as most do, needs no timer."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        service: Service = self.config.loaded_app.state.service
        self._service = service
        self._permit: Permit | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._in_headers = True
        self._in_message = False
        self._streaming = False
        self._reading_ended = False
        self._lingering_bytes: int | None = None  # bytes still to discard before the connection is closed
        self._final_problem: Problem | None = None  # sent after the answers to earlier requests
        self._fault: Problem | None = None
        self._bytes_between = 0  # bytes since the last part of a body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        try:
            self._permit = self._service.admission.connection()
        except Problem as problem:
            self._refuse(problem)
            return
        self._arm(self._service.settings.header_timeout_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._permit is not None:
            self._permit.release()
        self._disarm()
        if self._write_timer is not None:
            self._write_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._lingering_bytes is not None:
            self._lingering_bytes -= len(data)
            if self._lingering_bytes < 0:
                self.transport.abort()
            return
        if self.transport.is_closing() or self._reading_ended:
            return
        if not self._body_pending() and b"upgrade" in data.lower():
            data = without_upgrade(data)
        self._bytes_between += len(data)
        super().data_received(data)
        if self.parser is None or self.transport.is_closing() or self._reading_ended:
            return
        if self._fault is not None:
            self._refuse(self._fault)
        elif self._in_message and self._bytes_between > _MAX_BYTES_BETWEEN:
            self._refuse(Problem(431, "The headers or trailers are too large."))
        else:
            self._set_timer()

    def _set_timer(self) -> None:
        """Limit the time for the rest of a request, or for the first one of a connection.

        Data from the client does not extend it, except parts of a body on /route/stream.
        """
        seconds = self._service.settings.header_timeout_seconds
        if self._body_pending():
            seconds = self._service.settings.body_timeout_seconds
            if self._streaming:
                self._disarm()
        elif not self._in_message and self._has_unanswered():
            self._disarm()
            return
        if self._timer is None:
            self._arm(seconds)

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """The client closed its sending side: answer what it has sent, then close the connection."""
        if self._final_problem is not None:
            return True
        if self._lingering_bytes is not None:
            return None
        if self._in_message:
            self._refuse(Problem(400, "The request ended before it was complete."))
            return True
        if self._has_unanswered():
            self.cycle.keep_alive = False
            return True
        return None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_message = self._in_headers = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_headers:  # otherwise it is a trailer, which may be ignored (RFC 9110, 6.5.1)
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._bytes_between = 0
        self._fault = self._fault or self._find_fault()
        if self._fault is not None:
            return  # `data_received` refuses it after the parser returns
        self._in_headers = False
        self._disarm()
        super().on_headers_complete()
        self.cycle.transport = _AnswerTransport(self)  # type: ignore[assignment]
        self._streaming = self.scope["path"] == "/route/stream"

    def _find_fault(self) -> Problem | None:
        """A fault that proxies and servers may interpret differently (request smuggling)."""
        names = [name for name, _ in self.headers]
        version, hosts = self.parser.get_http_version(), names.count(b"host")
        if hosts > 1 or (hosts == 0 and version == "1.1"):
            return Problem(400, "A request needs exactly one Host header.")
        if version == "1.0" and b"transfer-encoding" in names:
            return Problem(400, "HTTP/1.0 does not allow Transfer-Encoding.")
        if self.parser.should_upgrade():
            return Problem(400, "Only HTTP/1.1 is supported: omit Upgrade, and do not use CONNECT.")
        return None

    def on_body(self, body: bytes) -> None:
        if self._fault is None:
            self._bytes_between = 0
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._fault is None:
            self._in_message = False
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Discard the rest of a body whose request is already answered, as for one that is too large.

        If the connection were closed at once, the kernel would reset it, and the client might not receive the
        answer. The connection is closed after `_LINGER_SECONDS` or `_LINGER_BYTES`.
        """
        was_last = not self.pipeline
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self._final_problem is not None:
            if was_last:
                self._send_problem(self._final_problem)
        elif self.lingers():
            self._unset_keepalive_if_required()
            self._reading_ended, self._lingering_bytes = True, _LINGER_BYTES
            if self.transport.can_write_eof():
                self.transport.write_eof()
            self._disarm()
            self._arm(_LINGER_SECONDS)

    def lingers(self) -> bool:
        """Whether the newest request is answered and its body is still arriving."""
        return self._body_pending() and not self.pipeline and self.cycle.response_complete

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
        """Shutdown: a client that has connected or has begun to send still gets an answer."""
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
        if self._lingering_bytes is not None:
            self.transport.abort()
            return
        self._service.metrics.refused.inc("slow")
        if self._in_message:
            self._refuse(Problem(408, "The request took too long to arrive."))
        else:
            self.transport.close()

    def _body_pending(self) -> bool:
        """Whether the body of the newest request is incomplete."""
        return self._in_message and not self._in_headers

    def _has_unanswered(self) -> bool:
        """Whether complete requests are still unanswered."""
        if self._body_pending():
            return bool(self.pipeline)  # the incomplete request is queued behind the others
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, problem: Problem) -> None:
        """Answer a faulty request with a problem, after the requests before it, and close the connection."""
        if self._body_pending() and self.cycle.response_started:
            self.transport.abort()  # the status is already sent: only a reset can signal the error
            return
        if not self._has_unanswered():
            self._send_problem(problem)
            return
        if self._body_pending():
            self.pipeline.popleft()  # the newest one is incomplete
        self._disarm()
        self._reading_ended, self._final_problem = True, problem

    def _send_problem(self, problem: Problem) -> None:
        request_id = request_id_of(None)
        headers, body = rendered(problem, request_id)
        headers = with_common(headers, request_id, close=True)
        self._service.metrics.requests.inc("other", str(problem.status))
        self._disarm()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.write(encoded(problem.status, [*self.server_state.default_headers, *headers], body))
        self.transport.close()
