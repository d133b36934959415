"""Several workers: one set of counters, a dead one replaced, an end at which nothing is lost."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import psutil
import pytest

from service.process import supervisor
from service.settings import Settings
from tests.service.conftest import ROOT, Running, make_bundle, until

TICKET = json.dumps({"text": "parcel late"})
JSON = {"content-type": "application/json"}


class Load:
    """Clients with kept connections that send tickets until told to stop; every request is accounted for."""

    def __init__(self, port: int, clients: int = 8) -> None:
        self.port = port
        self.outcomes: Counter[str] = Counter()
        self.versions: Counter[str] = Counter()
        self.stopping = threading.Event()
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self._client, daemon=True) for _ in range(clients)]

    def __enter__(self) -> Load:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join(60)

    def _count(self, outcome: str, version: str = "") -> None:
        with self.lock:
            self.outcomes[outcome] += 1
            if version:
                self.versions[version] += 1

    def _client(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=240)
        while not self.stopping.is_set():
            try:
                if connection.sock is None:
                    connection.connect()
            except OSError:
                self._count("not accepted")
                time.sleep(0.05)
                continue
            try:
                connection.request("POST", "/route", TICKET, JSON)
                response = connection.getresponse()
                body = response.read()
            except (OSError, http.client.HTTPException):
                self._count("lost")
                connection.close()
                continue
            answered = response.status == 200
            self._count(str(response.status), json.loads(body)["model"]["version"] if answered else "")


def children(running: Running) -> list[psutil.Process]:
    return psutil.Process(running.process.pid).children()


def test_metrics_are_the_same_whichever_worker_answers(start: Callable[..., Running]) -> None:
    running = start(workers=2)
    until(lambda: running.metrics().get("larkfield_ready_workers") == 2, "both workers are ready")
    for _ in range(40):
        assert running.route("parcel late").status == 200
    name = 'larkfield_requests_total{route="/route",status="200"}'
    assert {running.metrics()[name] for _ in range(20)} == {40}
    assert {running.metrics()["larkfield_confidence_count"] for _ in range(20)} == {40}
    info = 'larkfield_bundle_info{name="small",provider="CPU",version="1"}'
    assert {running.metrics()[info] for _ in range(10)} == {2}
    memory = [name for name in running.metrics() if name.startswith("larkfield_worker_memory_bytes")]
    assert len(memory) == 2


def test_a_killed_worker_is_replaced_and_what_it_counted_stays(start: Callable[..., Running]) -> None:
    running = start(workers=2)
    until(lambda: running.metrics().get("larkfield_ready_workers") == 2, "both workers are ready")
    for _ in range(30):
        assert running.route("parcel late").status == 200
    before = {child.pid for child in children(running)}
    victim = min(before)
    os.kill(victim, signal.SIGKILL)
    until(lambda: len({c.pid for c in children(running)} - before) == 1, "a new worker is there")
    until(lambda: running.metrics().get("larkfield_ready_workers") == 2, "both workers are ready again")
    for _ in range(10):
        assert running.route("parcel late").status == 200
    after = running.metrics()
    assert after['larkfield_requests_total{route="/route",status="200"}'] == 40
    assert after['larkfield_bundle_info{name="small",provider="CPU",version="1"}'] == 2
    assert after["larkfield_in_flight_requests"] == 0
    assert {child.pid for child in children(running)} & before == before - {victim}


def test_the_others_go_on_while_one_is_replaced(start: Callable[..., Running]) -> None:
    running = start(workers=2)
    with Load(running.port) as load:
        until(lambda: load.outcomes["200"] > 50, "load")
        os.kill(children(running)[0].pid, signal.SIGKILL)
        so_far = load.outcomes["200"]
        until(lambda: load.outcomes["200"] > so_far + 300, "tickets are answered")
    # What the dead worker was answering is lost, at most one request per connection; nothing else is.
    assert load.outcomes["lost"] <= len(load.threads)
    assert set(load.outcomes) <= {"200", "lost"}


@pytest.mark.parametrize("workers", [1, 2])
def test_the_end_under_load_loses_nothing(start: Callable[..., Running], workers: int) -> None:
    running = start(workers=workers, drain_seconds=1)
    with Load(running.port) as load:
        until(lambda: load.outcomes["200"] > 50, "load")
        running.process.send_signal(signal.SIGTERM)
        until(lambda: running.call("GET", "/readyz").status == 503, "readiness is red")
        assert running.process.poll() is None, "it ended before it said so"
        assert running.route("parcel").status == 200, "tickets are answered while readiness is red"
        assert running.process.wait(60) == 0
    assert load.outcomes["lost"] == 0
    assert set(load.outcomes) <= {"200", "not accepted"}


def test_no_worker_outlives_the_supervisor(start: Callable[..., Running]) -> None:
    running = start(workers=2)
    workers = children(running)
    running.process.kill()
    running.process.wait()
    gone, alive = psutil.wait_procs(workers, timeout=240)
    assert not alive
    assert len(gone) == 2


def test_a_bundle_that_cannot_be_served_ends_all(tmp_path: Path) -> None:
    done = subprocess.run(
        [os.sys.executable, "-m", "service", "--port", "0", "--workers", "2", "--bundle", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=ROOT,
    )
    assert done.returncode == 3
    assert "config.json" in done.stderr


def test_a_second_service_on_the_same_port_is_refused(start: Callable[..., Running]) -> None:
    running = start(workers=2)
    done = subprocess.run(
        [os.sys.executable, "-m", "service", "--port", str(running.port), "--workers", "2"],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=ROOT,
    )
    assert done.returncode == 2
    assert "cannot listen" in done.stderr


def test_a_worker_that_is_told_to_end_leaves_its_connections_to_the_others(
    start: Callable[..., Running],
) -> None:
    running = start(workers=2)
    until(lambda: running.metrics().get("larkfield_ready_workers") == 2, "both workers are ready")
    before = {child.pid for child in children(running)}
    with Load(running.port) as load:
        until(lambda: load.outcomes["200"] > 50, "load")
        os.kill(min(before), signal.SIGTERM)
        until(lambda: len({c.pid for c in children(running)} - before) == 1, "a new worker is there")
        for _ in range(50):
            assert running.route("parcel late").status == 200
    assert set(load.outcomes) == {"200"}


def children_but(running: Running, known: set[int]) -> bool:
    return any(child.pid not in known for child in children(running))


def test_a_replacement_needs_no_folder_of_the_bundle(start: Callable[..., Running], tmp_path: Path) -> None:
    folder, temporary = make_bundle(tmp_path / "bundle"), tmp_path / "temporary"
    temporary.mkdir()
    running = start(workers=2, bundle=folder, TMPDIR=temporary)
    until(lambda: running.metrics().get("larkfield_ready_workers") == 2, "both workers are ready")
    (copy,) = temporary.glob("*/bundle-*")
    for missing in (folder, copy):
        before = {child.pid for child in children(running)}
        shutil.rmtree(missing)
        os.kill(min(before), signal.SIGKILL)
        if missing == folder:
            until(lambda: children_but(running, before), "a new worker is there")  # noqa: B023
            until(lambda: running.metrics().get("larkfield_ready_workers") == 2, "it serves from the copy")
    # Now nothing is left to read: the other worker goes on, and says so.
    until(lambda: running.call("GET", "/readyz").json()["status"] == "degraded", "it is degraded")
    assert running.call("GET", "/readyz").status == 200
    assert running.route("parcel late").status == 200
    until(lambda: running.metrics()["larkfield_missing_workers"] == 1, "a metric says so, too")
    make_bundle(folder)
    shutil.copytree(folder, copy)
    until(lambda: running.call("GET", "/readyz").json()["status"] == "ready", "it is tried again")


class Silent:
    """A worker's process that lives and says nothing."""

    def __init__(self) -> None:
        self.killed = False

    def poll(self) -> None:
        return None

    def kill(self) -> None:
        self.killed = True


def test_a_machine_that_stood_still_kills_no_worker(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    now = [1000.0]
    monkeypatch.setattr(supervisor, "monotonic", lambda: now[0])
    with socket.socket() as listener:
        watching = supervisor.Supervisor(Settings(workers=1, bundle=bundle), listener)
        silent = Silent()
        watching._workers[0].process = cast(Any, silent)
        monkeypatch.setattr(watching._selector, "select", lambda _: [])
        now[0] += 3600.0
        watching._tick()
        watching._tick()
        assert not silent.killed
        for _ in range(310):
            now[0] += 0.1
            watching._tick()
        assert silent.killed, "one that is silent while the machine runs is killed"


def test_a_kept_metrics_folder_does_not_remember_workers(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    running = start(workers=2, metrics_folder=tmp_path / "metrics")
    until(lambda: running.metrics().get("larkfield_ready_workers") == 2, "both workers are ready")
    workers = children(running)
    running.process.kill()
    running.process.wait()
    psutil.wait_procs(workers, timeout=240)
    again = start(workers=1, metrics_folder=tmp_path / "metrics")
    until(lambda: again.metrics()["larkfield_ready_workers"] == 1, "one worker is ready")
    shutil.rmtree(tmp_path / "metrics")
    reply = again.call("GET", "/metrics")
    assert reply.status == 503
    assert "restart" in reply.json()["detail"]
    assert again.route("parcel late").status == 200
