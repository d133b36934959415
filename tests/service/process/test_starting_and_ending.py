"""Signals to a worker that is alone, two services that want one port, and addresses in brackets."""

from __future__ import annotations

import http.client
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.service.conftest import Running, launch, until


def test_sighup_drains_a_worker_that_is_alone(start: Callable[..., Running]) -> None:
    running = start(workers=1, drain_seconds=0.5)
    running.process.send_signal(signal.SIGHUP)
    until(lambda: running.call("GET", "/readyz").status == 503, "it is draining")
    assert running.route("parcel late").status == 200
    assert running.process.wait(30) == 0
    assert "draining" in running.log.read_text()


@pytest.fixture(autouse=True)
def _sighup_ends_a_process() -> Iterator[None]:
    """Whatever the tests were started with: a child inherits an ignored signal, as from nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def test_a_ticket_in_flight_survives_sighup(start: Callable[..., Running]) -> None:
    running = start(workers=1, drain_seconds=0.2)
    outcomes: list[int | str] = []
    refused = threading.Event()

    def send() -> None:
        until_then = time.monotonic() + 30
        while time.monotonic() < until_then:
            try:
                outcomes.append(running.route("parcel late " * 100).status)
            except (OSError, http.client.HTTPException) as error:
                if isinstance(getattr(error, "reason", None), ConnectionRefusedError):
                    refused.set()
                    return  # the service has ended
                outcomes.append(repr(error))

    client = threading.Thread(target=send)
    client.start()
    time.sleep(0.02)
    running.process.send_signal(signal.SIGHUP)
    client.join(60)
    assert running.process.wait(30) == 0
    assert refused.is_set(), "the client sent tickets until the service had ended"
    assert set(outcomes) == {200}


def test_nohup_keeps_a_worker_going(tmp_path: Path, bundle: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # a child inherits it, as from nohup
    try:
        running = launch(tmp_path, bundle=bundle)
    finally:
        signal.signal(signal.SIGHUP, before)
    try:
        running.process.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        assert running.route("parcel late").status == 200
    finally:
        running.process.kill()
        running.process.wait()


def test_of_two_services_that_start_on_one_port_one_says_why_it_ends(tmp_path: Path, bundle: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        started.append(launch(tmp_path / name, wait=False, bundle=bundle, port=port))
    try:
        until(lambda: any(each.process.poll() is not None for each in started), "one of them ends")
        (ended,) = [each for each in started if each.process.poll() is not None]
        (serving,) = [each for each in started if each is not ended]
        assert ended.process.returncode == 2
        assert f"cannot listen on 127.0.0.1:{port}" in ended.log.read_text()
        serving.port = port
        until(lambda: serving.call("GET", "/readyz").status == 200, "the other one serves")
    finally:
        for each in started:
            each.process.kill()
            each.process.wait()


@pytest.mark.parametrize("host", ["::1", "[::1]", "[[::1]]"])
def test_an_address_of_version_6_may_stand_in_brackets(tmp_path: Path, bundle: Path, host: str) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6")
    running = launch(tmp_path, wait=False, bundle=bundle, host=host)
    try:
        until(lambda: "http://[::1]:" in running.output.read_text(), "it says where it listens")
        with socket.create_connection(("::1", running.port), timeout=10) as connection:
            connection.sendall(f"GET /healthz HTTP/1.1\r\nHost: [::1]:{running.port}\r\n\r\n".encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
    finally:
        running.process.kill()
        running.process.wait()
