"""What the service promises under pressure, tried for a few minutes: `make soak`.

Overload at several times its capacity, a hundred reloads, lost workers and a shutdown, all under load; every
request is counted. A request is lost when it was taken and never answered, not even when it was sent again.
The last line is the count; the exit status is 1 when anything was lost or a promise was broken.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from service.settings import SHIPPED_BUNDLE
from service.tools.load import tickets, write_script, wrk
from service.tools.processes import Process, memory_mb, router, scrape

ADMIN = "soak-admin-key"
_TRIES = 20


@dataclass
class Count:
    """What became of the requests."""

    sent: int = 0
    answered: int = 0
    refused: int = 0  # 503 or 504, or no connection: never taken
    interrupted: int = 0  # the connection broke; sent again and answered
    lost: int = 0
    broken: list[str] = field(default_factory=list)

    def add(self, other: Count) -> None:
        """Sum up."""
        self.sent += other.sent
        self.answered += other.answered
        self.refused += other.refused
        self.interrupted += other.interrupted
        self.lost += other.lost
        self.broken += other.broken

    def expect(self, promise: str, kept: bool) -> None:
        """Note a promise, and whether it was kept."""
        print(f"  {'kept  ' if kept else 'BROKEN'}  {promise}", flush=True)
        if not kept:
            self.broken.append(promise)

    def __str__(self) -> str:
        return (
            f"{self.sent:,} sent, {self.answered:,} answered, {self.refused:,} refused, "
            f"{self.interrupted:,} interrupted and answered on the next try, {self.lost:,} lost"
        )


class Clients:
    """Helpdesks with kept connections that send ticket after ticket, and again when a connection breaks."""

    def __init__(self, port: int, number: int, pause_seconds: float = 0.0) -> None:
        self.port = port
        self.count = Count()
        self.latencies: list[float] = []
        self.versions: Counter[str] = Counter()
        self._pause = pause_seconds
        self._bodies = [json.dumps(ticket) for ticket in tickets()[:50]]
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(number)]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(60)

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        place = 0
        while not self._stopping.is_set():
            place += 1
            self._ticket(connection, self._bodies[place % len(self._bodies)])
            if self._pause:
                time.sleep(self._pause)

    def _ticket(self, connection: http.client.HTTPConnection, body: str) -> None:
        """Send one ticket until it is answered or refused."""
        taken = 0
        for _ in range(_TRIES):
            try:
                if connection.sock is None:
                    connection.connect()
            except OSError:
                if not taken or self._stopping.is_set():
                    break
                time.sleep(0.1)
                continue
            began = time.perf_counter()
            try:
                connection.request("POST", "/route", body, {"content-type": "application/json"})
                response = connection.getresponse()
                answer = response.read()
            except (OSError, http.client.HTTPException):
                connection.close()
                taken += 1
                continue
            self._note(response.status, answer, time.perf_counter() - began, taken)
            return
        with self._lock:
            self.count.sent += 1
            self.count.lost += taken > 0
            self.count.refused += taken == 0
        time.sleep(0.05)

    def _note(self, status: int, answer: bytes, seconds: float, taken: int) -> None:
        with self._lock:
            self.count.sent += 1
            self.count.interrupted += taken > 0
            if status == 200:
                self.count.answered += 1
                self.latencies.append(seconds)
                self.versions[json.loads(answer)["model"]["version"]] += 1
            else:
                self.count.refused += 1


def quantile(values: list[float], share: float) -> float:
    """The value below which that share lies; 0 of nothing."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether it became true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if condition():
                return True
        except OSError:
            pass
        time.sleep(0.05)
    return False


def call(port: int, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    """One request with the admin key: status and JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    headers = {"content-type": "application/json", "x-api-key": ADMIN}
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    response = connection.getresponse()
    data = response.read()
    connection.close()
    return response.status, json.loads(data)


def overload(server: Process, script: Path, seconds: float) -> Count:
    """Many times what it can do, for a while: the rest is refused at once, what is taken is on time."""
    print(f"Overload for {seconds:.0f} s")
    capacity = wrk(server.port, script, 16, 5)
    before = memory_mb(server.pid)
    with Clients(server.port, 4, pause_seconds=0.01) as clients:
        flood = wrk(server.port, script, 600, seconds)
    after = memory_mb(server.pid)
    count = clients.count
    total = int(flood.per_second * seconds)
    count.sent += total + flood.unopened
    count.refused += flood.refused + flood.unopened
    count.answered += total - flood.refused
    count.lost += flood.broken
    time.sleep(2.0)
    calm = Clients(server.port, 1)
    with calm:
        time.sleep(2.0)
    offered, p99 = flood.per_second / capacity.per_second, quantile(clients.latencies, 0.99)
    print(f"  capacity {capacity.per_second:,.0f}/s, offered {flood.per_second:,.0f}/s ({offered:.1f} ×)")
    print(f"  accepted: {len(clients.latencies):,} sampled, p99 {p99 * 1e3:.0f} ms", end="")
    print(f"; memory {before:.0f} → {after:.0f} MB")
    count.expect("accepted requests keep their p99 under the deadline of 2 s", 0 < p99 < 2.0)
    count.expect("some requests were refused", count.refused > 0)
    count.expect("memory grows by less than 30 MB", after - before < 30)
    left = scrape(server.port)["larkfield_in_flight_requests"]
    count.expect("nothing that was taken is left unanswered", left == 0)
    normal = calm.count.refused == calm.count.lost == 0 and quantile(calm.latencies, 0.99) < 0.1
    count.expect("2 s later it is as before", normal)
    count.add(calm.count)
    return count


def reloads(server: Process, bundle: Path, copy: Path, number: int) -> Count:
    """One bundle after the other under load: no request fails, no answer comes from a mixture."""
    print(f"{number} reloads")
    with Clients(server.port, 4) as clients:
        done = [
            call(server.port, "POST", "/admin/reload", {"bundle": str((copy, bundle)[n % 2])})[0]
            for n in range(number)
        ]
        bad = call(server.port, "POST", "/admin/reload", {"bundle": str(copy / "nothing")})[0]
    count = clients.count
    count.expect(f"{number} reloads succeed", set(done) == {200})
    count.expect("a bad bundle is refused", bad == 409)
    count.expect(
        "no request is refused, interrupted or lost", count.refused + count.interrupted + count.lost == 0
    )
    return count


def lost_workers(server: Process, number: int) -> Count:
    """kill -9, again and again: the others go on, the dead one is replaced, the counters stay right."""
    import psutil

    print(f"{number} killed workers")
    name = 'larkfield_requests_total{route="/route",status="200"}'
    counted = scrape(server.port)[name]
    with Clients(server.port, 4) as clients:
        replaced = True
        for n in range(number):
            time.sleep(1.0)
            before = {child.pid for child in psutil.Process(server.pid).children()}
            os.kill(sorted(before)[n % len(before)], signal.SIGKILL)
            replaced &= until(lambda: scrape(server.port).get("larkfield_ready_workers") == 1.0, 30)
            replaced &= until(lambda: scrape(server.port).get("larkfield_ready_workers") == 2.0, 30)
    count = clients.count
    counted = scrape(server.port)[name] - counted
    print(f"  the clients got {count.answered:,} answers, /metrics counts {counted:,.0f}")
    count.expect("every dead worker is replaced", replaced)
    # A worker may have counted an answer and died before the client had it.
    count.expect("the counters are right", count.answered <= counted <= count.answered + count.interrupted)
    return count


def shutdown(server: Process) -> Count:
    """SIGTERM under load: readiness goes red first, what was taken is answered."""
    print("SIGTERM under load")
    with Clients(server.port, 8) as clients:
        time.sleep(2.0)
        os.kill(server.pid, signal.SIGTERM)
        red = until(lambda: call(server.port, "GET", "/readyz")[0] == 503, 5)
        still = call(server.port, "POST", "/route", {"text": "my card was charged twice"})[0]
        time.sleep(4.0)
    count = clients.count
    count.expect("readiness goes red first", red)
    count.expect("tickets are answered meanwhile", still == 200)
    count.expect("no request is interrupted or lost", count.interrupted + count.lost == 0)
    return count


def main() -> int:
    """Try everything and count."""
    parser = argparse.ArgumentParser(prog="python -m service.tools.soak", description=__doc__.split("\n")[0])
    parser.add_argument("--bundle", type=Path, default=SHIPPED_BUNDLE)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of the overload")
    parser.add_argument("--reloads", type=int, default=100)
    parser.add_argument("--kills", type=int, default=3)
    arguments = parser.parse_args()
    if shutil.which("wrk") is None:
        print("wrk is needed: `make packages`, or apt-get install wrk", file=sys.stderr)
        return 2
    bundle = Path(os.path.realpath(arguments.bundle))
    total = Count()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = write_script(folder / "tickets.lua", list(tickets()))
        copy = folder / "copy"
        shutil.copytree(bundle, copy)
        with router(bundle=bundle, admin_key=ADMIN) as server:
            total.add(overload(server, script, arguments.seconds))
        with router(bundle=bundle, workers=2, admin_key=ADMIN, drain_seconds=1) as server:
            until(lambda: scrape(server.port).get("larkfield_ready_workers") == 2.0, 30)
            total.add(reloads(server, bundle, copy, arguments.reloads))
            total.add(lost_workers(server, arguments.kills))
            total.add(shutdown(server))
    print(f"\n{total}")
    for promise in total.broken:
        print(f"BROKEN: {promise}")
    return int(bool(total.lost or total.broken))


if __name__ == "__main__":
    sys.exit(main())
