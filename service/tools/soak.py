"""Tests the guarantees of the service under load for a few minutes: `make soak`.

It overloads the service, sends hostile requests, reloads bundles, ends and kills workers, deletes the
bundle's folder and the feedback database, shuts the service down, and counts every request. A request is
lost if it was accepted and never answered, even when it was sent again. It prints a table with a row for each
phase, and the counts. The exit status is 1 if a request was lost or a guarantee was broken. No time is judged
but the deadline of accepted tickets.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.settings import SHIPPED_BUNDLE
from service.tools.hostile import BODIES, RAW, Watch, attack
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


def two_ready(server: Process) -> bool:
    """Whether two workers are ready."""
    return scrape(server.port).get("larkfield_ready_workers") == 2.0


def lost_workers(server: Process, number: int, how: signal.Signals = signal.SIGKILL) -> Count:
    """End workers under load: each must be replaced, and the counters must stay right."""
    import psutil

    print(f"{number} workers ended by {how.name}")
    name = 'larkfield_requests_total{route="/route",status="200"}'
    counted = scrape(server.port).get(name, 0.0)
    with Clients(server.port, 4) as clients:
        replaced, slowest = True, 0.0
        for n in range(number):
            time.sleep(1.0)
            before = {child.pid for child in psutil.Process(server.pid).children()}
            began = time.monotonic()
            os.kill(sorted(before)[n % len(before)], how)
            replaced &= until(lambda: scrape(server.port).get("larkfield_ready_workers") == 1.0, 30)
            replaced &= until(lambda: two_ready(server), 30)
            slowest = max(slowest, time.monotonic() - began)
    count = clients.count
    count.back_seconds = slowest
    counted = scrape(server.port)[name] - counted
    print(f"  the clients got {count.answered:,} answers, /metrics counts {counted:,.0f}")
    count.expect("every dead worker is replaced", replaced)
    # A worker may have counted an answer and died before the client had it.
    count.expect("the counters are right", count.answered <= counted <= count.answered + count.interrupted)
    return count


def hostile(server: Process, name: str, rounds: int) -> Count:
    """Send one kind of hostile request beside ordinary tickets: each must be answered or closed."""
    print(f"Hostile: {name}")
    rounds = 1 if name.startswith("batch") else rounds  # a batch is many tickets
    count = attack(server.port, name, rounds, together=3)
    count.expect("each is answered, refused or closed", count.lost == 0)
    with Clients(server.port, 1) as clients:
        time.sleep(0.5)
    count.expect("tickets are answered afterwards", clients.count.answered > 0 == clients.count.lost)
    return count


def deleted_bundle(server: Process, bundle: Path) -> Count:
    """Delete the folder of the served bundle, then kill a worker: a replacement serves the same bundle."""
    print("The bundle's folder is deleted")
    shutil.rmtree(bundle)
    return lost_workers(server, 1)


def deleted_feedback(server: Process, database: Path) -> Count:
    """Delete the feedback database: what is acknowledged afterwards must be in the file at its path."""
    print("The feedback database is deleted")
    count = Count()
    for name in ("", "-wal", "-shm"):
        database.with_name(database.name + name).unlink(missing_ok=True)
    for number in range(100):
        body = {"ticket_id": f"soak-{number}", "team": "payment"}
        status = call(server.port, "POST", "/feedback", body)[0]
        count.sent += 1
        count.answered += status == 200
        count.refused += status != 200
    with closing(sqlite3.connect(database)) as connection:
        (stored,) = connection.execute(
            "SELECT count(*) FROM feedback WHERE ticket_id LIKE 'soak-%'"
        ).fetchone()
    count.lost += max(0, count.answered - stored)
    count.expect("what was acknowledged is in the file", count.answered == stored > 0)
    return count


def shutdown(server: Process) -> Count:
    """Send SIGTERM under load: readiness must fail first, and accepted requests must be answered."""
    print("SIGTERM under load")
    with Clients(server.port, 8) as clients:
        time.sleep(2.0)
        os.kill(server.pid, signal.SIGTERM)
        red = until(lambda: call(server.port, "GET", "/readyz")[0] == 503, 3)
        still = call(server.port, "POST", "/route", {"text": "my card was charged twice"})[0] if red else 0
        time.sleep(7.0)
    count = clients.count
    count.expect("readiness fails first", red)
    count.expect("tickets are still answered then", still == 200)
    count.expect("no request is interrupted or lost", count.interrupted + count.lost == 0)
    return count


@dataclass
class Row:
    """One phase: counts, longest wait for /healthz in seconds, peak memory of a worker in MiB."""

    phase: str
    count: Count
    stall: float
    peak: float


def watched(rows: list[Row], server: Process, phase: str, run: Callable[[], Count]) -> None:
    """Run a phase under a watch and add its row."""
    with Watch(server) as watch:
        count = run()
    rows.append(Row(phase, count, watch.stall, watch.peak))


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| phase | sent | answered | refused | lost | longest stall of /healthz (s) "
        "| peak memory of a worker (MB) | two ready workers after (s) |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        count = row.count
        back = f"{count.back_seconds:.1f}" if count.back_seconds else ""
        lines.append(
            f"| {row.phase} | {count.sent:,} | {count.answered:,} | {count.refused:,} | {count.lost:,} "
            f"| {row.stall:.2f} | {row.peak * 1.048576:.0f} | {back} |"
        )
    return "\n".join(lines)


def soak(folder: Path, bundle: Path, arguments: argparse.Namespace) -> list[Row]:
    """Run every phase."""
    rows: list[Row] = []
    script = write_script(folder / "tickets.lua", list(tickets()))
    copy, doomed = folder / "copy", folder / "doomed"
    shutil.copytree(bundle, copy)
    shutil.copytree(bundle, doomed)
    with router(bundle=bundle, admin_key=ADMIN) as server:
        watched(rows, server, "overload", lambda: overload(server, script, arguments.seconds))
    # Short limits, so that the slow clients are closed within the run.
    with router(bundle=bundle, header_timeout_seconds=3, body_timeout_seconds=3) as server:
        for name in [*BODIES, *RAW]:
            watched(rows, server, name, lambda name=name: hostile(server, name, arguments.rounds))  # type: ignore[misc]
    with router(bundle=bundle, workers=2, admin_key=ADMIN, drain_seconds=4) as server:
        until(lambda: two_ready(server), 30)
        watched(rows, server, "reloads", lambda: reloads(server, bundle, copy, arguments.reloads))
        for how in (signal.SIGKILL, signal.SIGTERM):
            phase = f"{how.name} to one worker"
            watched(rows, server, phase, lambda how=how: lost_workers(server, arguments.kills, how))  # type: ignore[misc]
        watched(rows, server, "SIGTERM to the service", lambda: shutdown(server))
    with router(folder / "desk", bundle=doomed, workers=2, admin_key=ADMIN) as server:
        until(lambda: two_ready(server), 30)
        database = folder / "desk" / "feedback.db"
        watched(rows, server, "feedback database deleted", lambda: deleted_feedback(server, database))
        watched(rows, server, "bundle deleted, then SIGKILL", lambda: deleted_bundle(server, doomed))
    return rows


def main() -> int:
    """Run every phase and print the table and the counts."""
    parser = argparse.ArgumentParser(prog="python -m service.tools.soak", description=__doc__.split("\n")[0])
    parser.add_argument("--bundle", type=Path, default=SHIPPED_BUNDLE)
    parser.add_argument("--short", action="store_true", help="about a minute: fewer of everything")
    arguments = parser.parse_args()
    short = arguments.short
    arguments.seconds, arguments.reloads = (5.0, 10) if short else (30.0, 100)
    arguments.kills, arguments.rounds = (1, 1) if short else (3, 5)
    if shutil.which("wrk") is None:
        print("wrk is needed: `make packages`, or apt-get install wrk", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as name:
        rows = soak(Path(name), Path(os.path.realpath(arguments.bundle)), arguments)
    total = Count()
    for row in rows:
        total.add(row.count)
    print(f"\n{table(rows)}\n\n{total}")
    for guarantee in total.broken:
        print(f"BROKEN: {guarantee}")
    return int(bool(total.lost or total.broken))


if __name__ == "__main__":
    sys.exit(main())
