"""Hostile requests for the soak test, and a watch on what they do to the service."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from service.tools.load import Count, Threads
from service.tools.processes import Process

PATIENCE = 60.0  # seconds after which a request without an answer or an end counts as lost
_HEAD = b"POST /route HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
_CHUNKED = _HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"


class Watch(Threads):
    """While the `with` block runs: the longest wait for /healthz, and the peak memory of one worker."""

    def __init__(self, server: Process) -> None:
        super().__init__((self._ask, self._measure))
        self._server = server
        self.stall = 0.0  # seconds
        self.peak = 0.0  # MiB

    def _ask(self) -> None:
        while not self._stopping.wait(0.02):
            began = time.monotonic()
            connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=PATIENCE)
            try:
                connection.request("GET", "/healthz")
                connection.getresponse().read()
                self.stall = max(self.stall, time.monotonic() - began)
            except TimeoutError:
                self.stall = max(self.stall, time.monotonic() - began)
            except (OSError, http.client.HTTPException):
                pass  # refused, or the worker that had the connection was killed
            finally:
                connection.close()

    def _measure(self) -> None:
        import psutil

        while not self._stopping.wait(0.05):
            with suppress(psutil.Error):
                process = psutil.Process(self._server.pid)
                for worker in process.children() or [process]:
                    with suppress(psutil.Error):
                        self.peak = max(self.peak, worker.memory_info().rss / 2**20)


def _hiding_tags() -> dict[str, Any]:
    hidden = "".join(f'<t{number} style="display:none">' for number in range(5_000))
    return {"text": "<p>" + hidden}


def _with_keys(number: int) -> dict[str, Any]:
    return {"text": "my card", **{f"k{key}": 0 for key in range(number)}}


def _batch(number: int, text: str) -> dict[str, Any]:
    return {"tickets": [{"text": text, "explain": "full"}] * number}


# Path and JSON body of requests that cost more than they look; at the limit of 256 kB, or near.
BODIES: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
    "combining marks": ("/route", lambda: {"text": "a" + "\u0301" * 20_000 + "\u0323" * 20_000}),
    "hiding tags": ("/route", _hiding_tags),
    "long text": ("/route", lambda: {"text": "my card was charged twice " * 9_000, "explain": "full"}),
    "unknown keys": ("/route", lambda: _with_keys(20_000)),
    "batch of marks": ("/route/batch", lambda: _batch(64, "a" + "\u0301" * 5_000)),
    "batch, explain full": (
        "/route/batch",
        lambda: _batch(256, "my card was charged twice for one order " * 20),
    ),
    "batch of unknown keys": ("/route/batch", lambda: {"tickets": [_with_keys(600_000)]}),
}


def _repeat(head: bytes, piece: bytes, pause: float) -> Callable[[socket.socket], None]:
    def send(connection: socket.socket) -> None:
        connection.sendall(head)
        end = time.monotonic() + PATIENCE
        while piece and time.monotonic() < end:
            connection.sendall(piece)
            time.sleep(pause)

    return send


RAW = {
    "unfinished headers": _repeat(_HEAD, b"", 0),
    "unfinished body": _repeat(_HEAD + b"Content-Length: 1000\r\n\r\n{", b"", 0),
    "body byte by byte": _repeat(_HEAD + b"Content-Length: 100000\r\n\r\n", b" ", 0.1),
    "empty lines": _repeat(b"", b"\r\n", 0.1),
    "endless trailers": _repeat(_CHUNKED, b"X-Trailer: x\r\n" * 5_000, 0),
    "endless chunks": _repeat(
        _HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"8000\r\n" + b" " * 32768 + b"\r\n", 0
    ),
}


def _send_body(port: int, path: str, body: bytes, count: Count, lock: threading.Lock) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        response.read()
        outcome = "answered" if response.status < 400 else "refused"
    except TimeoutError:
        outcome = "lost"
    except (OSError, http.client.HTTPException):
        outcome = "refused"  # closed by the service
    finally:
        connection.close()
    _note(count, outcome, lock)


def _send_raw(port: int, send: Callable[[socket.socket], None], count: Count, lock: threading.Lock) -> None:
    outcome = "refused"  # closed, with or without an answer
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        try:
            send(connection)
            while connection.recv(65_536):
                pass
        except TimeoutError:
            outcome = "lost"
        except OSError:
            pass
    _note(count, outcome, lock)


def _note(count: Count, outcome: str, lock: threading.Lock) -> None:
    with lock:
        count.sent += 1
        setattr(count, outcome, getattr(count, outcome) + 1)


def attack(port: int, name: str, rounds: int, together: int) -> Count:
    """Send one kind of hostile request `rounds` times on `together` connections, and count the outcomes."""
    count, lock = Count(), threading.Lock()
    if name in RAW:
        targets: list[Any] = [lambda: _send_raw(port, RAW[name], count, lock)] * together
    else:
        path, body = BODIES[name]
        encoded = json.dumps(body(), ensure_ascii=False).encode()

        def send() -> None:
            for _ in range(rounds):
                _send_body(port, path, encoded, count, lock)

        targets = [send] * together
    threads = [threading.Thread(target=target, daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return count
