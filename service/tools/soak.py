"""Tests the guarantees of the service under load for a few minutes: `make soak`.

It overloads the service, reloads bundles a hundred times, kills workers and shuts the service down, all under
load, and counts every request. A request is lost if it was accepted and never answered, even when it was sent
again. The last line has the counts. The exit status is 1 if a request was lost or a guarantee was broken.
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
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from service.settings import SHIPPED_BUNDLE
from service.tools.load import Clients, Count, tickets, write_script, wrk
from service.tools.processes import Process, memory_mb, router, scrape

ADMIN = "soak-admin-key"


def quantile(values: list[float], share: float) -> float:
    """The quantile of the values at `share`; 0 if there are none."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether the condition became true in time."""
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
    """Send several times what the service can answer: it must refuse the rest and answer in time."""
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
    count.expect("the p99 of accepted requests stays below the deadline of 2 s", 0 < p99 < 2.0)
    count.expect("some requests were refused", count.refused > 0)
    count.expect("memory grows by less than 30 MB", after - before < 30)
    left = scrape(server.port)["larkfield_in_flight_requests"]
    count.expect("every accepted request is answered", left == 0)
    normal = calm.count.refused == calm.count.lost == 0 and quantile(calm.latencies, 0.99) < 0.1
    count.expect("2 s later no request is refused and p99 is below 0.1 s", normal)
    count.add(calm.count)
    return count


def reloads(server: Process, bundle: Path, copy: Path, number: int) -> Count:
    """Reload two bundles in turn under load: no request may fail."""
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
    """Kill workers with -9 under load: each must be replaced, and the counters must stay right."""
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
    """Send SIGTERM under load: readiness must fail first, and accepted requests must be answered."""
    print("SIGTERM under load")
    with Clients(server.port, 8) as clients:
        time.sleep(2.0)
        os.kill(server.pid, signal.SIGTERM)
        red = until(lambda: call(server.port, "GET", "/readyz")[0] == 503, 5)
        still = call(server.port, "POST", "/route", {"text": "my card was charged twice"})[0]
        time.sleep(4.0)
    count = clients.count
    count.expect("readiness fails first", red)
    count.expect("tickets are still answered then", still == 200)
    count.expect("no request is interrupted or lost", count.interrupted + count.lost == 0)
    return count


def main() -> int:
    """Run every part and print the counts."""
    parser = argparse.ArgumentParser(prog="python -m service.tools.soak", description=__doc__.split("\n")[0])
    parser.add_argument("--bundle", type=Path, default=SHIPPED_BUNDLE)
    parser.add_argument("--seconds", type=float, default=60.0, help="seconds of overload")
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
    for guarantee in total.broken:
        print(f"BROKEN: {guarantee}")
    return int(bool(total.lost or total.broken))


if __name__ == "__main__":
    sys.exit(main())
