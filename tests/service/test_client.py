"""The client against the real server, and against one that is busy, broken, or gone."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx", reason="the extra `client` (httpx) is not installed")

from service import client
from service.client import AsyncClient, Client, RouterError, main, pauses, retry_after_seconds
from service.tools import processes
from service.tools.processes import Process, free_port

TEXT = "I was billed two times for one kettle, please pay one of them back."


@pytest.fixture(scope="module")
def router(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("opens-the-door\n")
    with processes.router(tmp_path_factory.mktemp("router"), api_keys_file=keys) as running:
        yield running


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the client would have slept; it does not."""
    taken: list[float] = []

    async def nap(seconds: float) -> None:
        taken.append(seconds)

    monkeypatch.setattr(client.time, "sleep", taken.append)
    monkeypatch.setattr(client.asyncio, "sleep", nap)
    return taken


class Busy:
    """A server that gives the answers of a list, one after the other; None closes the connection."""

    def __init__(self, *answers: tuple[int, dict[str, str], bytes] | None) -> None:
        waiting = list(answers)
        self.ids: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.ids.append(self.headers["X-Request-ID"])
                outer.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                answer = waiting.pop(0)
                if answer is None:
                    self.connection.close()
                    return
                status, headers, body = answer
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))

    def __enter__(self) -> Busy:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


GOOD = (200, {"Content-Type": "application/json"}, b'{"team": "payment"}')
FULL = (503, {"Retry-After": "3"}, b'{"title": "Service Unavailable", "detail": "Too many wait."}')


def test_sync_and_async_route_and_report(router: Process) -> None:
    with Client(router.url, api_key="opens-the-door") as sync:
        answer = sync.route(TEXT, subject="Kettle", ticket_id="C-1")
        assert answer["team"] == "payment"
        assert sync.feedback(answer["team"], ticket_id="C-1")["status"] == "created"
        assert sync.feedback(answer["team"], ticket_id="C-1")["status"] == "unchanged"

    async def both() -> list[dict[str, Any]]:
        async with AsyncClient(router.url, api_key="opens-the-door") as opened:
            return await asyncio.gather(*(opened.route(TEXT, ticket_id=f"C-{n}") for n in range(8)))

    answers = asyncio.run(both())
    assert [each["ticket_id"] for each in answers] == [f"C-{n}" for n in range(8)]
    assert {each["team"] for each in answers} == {"payment"}


def test_what_is_refused_is_not_tried_again(router: Process, naps: list[float]) -> None:
    with Client(router.url) as sync, pytest.raises(RouterError, match="key is required") as refused:
        sync.route(TEXT)
    assert refused.value.status == 401
    with Client(router.url, api_key="opens-the-door") as sync:
        with pytest.raises(RouterError, match="at most 200 characters") as refused:
            sync.feedback("payment", ticket_id="C" * 201)
        assert refused.value.problem["errors"][0]["field"] == "ticket_id"
        with pytest.raises(ValueError, match="one of the two"):
            sync.feedback("payment")
    assert naps == []


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_busy_service_is_asked_again_after_the_time_it_names(kind: str, naps: list[float]) -> None:
    with Busy(FULL, None, (502, {}, b"bad gateway"), GOOD) as busy:
        if kind == "sync":
            with Client(busy.url) as opened:
                answer = opened.route(TEXT, ticket_id="C-1")
        else:

            async def ask() -> dict[str, Any]:
                async with AsyncClient(busy.url) as opened:
                    return await opened.route(TEXT, ticket_id="C-1")

            answer = asyncio.run(ask())
    assert answer == {"team": "payment"}
    assert len(naps) == 3
    assert 3.0 < naps[0] < 3.3, "Retry-After, and a little more"
    assert 0.1 < naps[1] < 0.5, "a pause that grows"
    assert len(set(busy.ids)) == 1, "one call, one request id"
    assert busy.bodies == [{"ticket_id": "C-1", "text": TEXT}] * 4


def test_it_gives_up_with_the_last_words(naps: list[float]) -> None:
    with Busy(FULL, FULL, FULL) as busy, Client(busy.url, tries=3) as opened:
        with pytest.raises(RouterError, match="503: Too many wait") as failed:
            opened.feedback("payment", ticket_id="C-1")
    assert failed.value.status == 503
    assert len(naps) == 2
    with Client(f"http://127.0.0.1:{free_port()}", tries=2) as opened:
        with pytest.raises(RouterError, match="no answer") as failed:
            opened.route(TEXT)
    assert failed.value.status is None


def test_retry_after_in_seconds_or_as_a_date() -> None:
    assert retry_after_seconds("7") == 7
    assert retry_after_seconds(None) is None
    assert retry_after_seconds("soon") is None
    later = retry_after_seconds(format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True))
    assert later is not None
    assert 25 < later <= 30
    assert retry_after_seconds("Wed, 21 Oct 2015 07:28:00 GMT") == 0


def test_pauses_double_and_end() -> None:
    *waits, last = pauses(5, 1.0)
    assert last is None
    for number, wait in enumerate(waits):
        assert wait is not None
        assert 0.5 * 2**number <= wait <= 2**number


def test_the_command_line(
    router: Process, monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path
) -> None:
    monkeypatch.setenv("LARKFIELD_API_KEY", "opens-the-door")
    assert main(["--url", router.url, "route", TEXT, "--ticket-id", "C-9"]) == 0
    team = json.loads(capsys.readouterr().out)["team"]
    ticket = tmp_path / "ticket"
    ticket.write_text(TEXT)
    with ticket.open() as file:
        monkeypatch.setattr("sys.stdin", file)
        assert main(["--url", router.url, "route", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["team"] == team
    assert main(["--url", router.url, "feedback", team, "--ticket-id", "C-9"]) == 0
    assert json.loads(capsys.readouterr().out)["correct"] is True
    assert main(["--url", router.url, "feedback", "gardening", "--ticket-id", "C-9"]) == 0
    assert json.loads(capsys.readouterr().out)["known"] is False
    assert main(["--url", router.url, "feedback", team, "--ticket-id", "C" * 201]) == 1
    assert "at most 200 characters" in capsys.readouterr().err
