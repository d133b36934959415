"""Shadow deployment: a second bundle decides live tickets, and the differences are counted.

Each worker has a shadow process with a low priority. The worker sends a ticket to it over a socket after the
answer is ready. If the socket is full, the ticket is skipped and counted, so no answer waits. Set
LARKFIELD_SHADOW_BUNDLE to use it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

import orjson
from fastapi import FastAPI

from models.decision import decide
from service.inference.runtime import Runtime, pad
from service.settings import Settings

if TYPE_CHECKING:
    from service.inference.service import Answer, Service

log = logging.getLogger("larkfield.shadow")

OUTCOMES = ("same", "other_decision", "other_team")
REASONS = ("full", "error")
REPORT_SECONDS = 0.25
_SECONDS = [0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25]
_LARGEST_MESSAGE = 1 << 20


def install(app: FastAPI, service: Service) -> None:
    """Start the comparison if LARKFIELD_SHADOW_BUNDLE names a bundle."""
    if service.settings.shadow_bundle is None:
        return
    shadow = Shadow(service)
    service.observers.append(shadow.observe)
    service.on_start.append(shadow.start)
    service.on_stop.append(shadow.stop)


class Shadow:
    """The worker's side: sends tickets and receives counts four times a second."""

    def __init__(self, service: Service) -> None:
        self.sample = service.settings.shadow_sample
        self.folder = service.settings.shadow_bundle
        self.process: subprocess.Popen[bytes] | None = None
        self.socket: socket.socket | None = None
        self.comparing = False
        metrics = service.metrics
        self.tickets = metrics.counter("shadow_tickets", "Tickets compared with the shadow.", "outcome")
        self.changes = metrics.counter(
            "shadow_changes", "Tickets that the shadow gives to another team.", "team", "shadow_team"
        )
        self.skipped = metrics.counter("shadow_skipped", "Tickets not compared.", "reason")
        self.seconds = metrics.histogram("shadow_seconds", "Time to compare one ticket.", _SECONDS)
        self.info = metrics.gauge("shadow_bundle_info", "1 for the shadow bundle.", "name", "version")

    def start(self) -> None:
        """Start the process; tickets are sent once it reports that its bundle is loaded."""
        worker_side, shadow_side = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        worker_side.setblocking(False)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "service.feedback.shadow", str(shadow_side.fileno()), str(self.folder)],
            pass_fds=[shadow_side.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        shadow_side.close()
        self.socket = worker_side
        asyncio.get_running_loop().add_reader(worker_side.fileno(), self.receive)

    def stop(self) -> None:
        """End the process."""
        if self.socket is not None:
            self.socket.close()
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def observe(self, answer: Answer) -> None:
        """Send a ticket, or skip it; never waits."""
        if self.socket is None or not self.comparing or (self.sample < 1 and random.random() >= self.sample):
            return
        ticket = [answer.joined.text, answer.decision.team, answer.decision.decision]
        try:
            self.socket.send(orjson.dumps(ticket))
        except BlockingIOError:
            self.skipped.labels("full").inc()
        except (OSError, TypeError):  # the message is too long, or the text has lone surrogates
            self.skipped.labels("error").inc()

    def receive(self) -> None:
        """Handle one message of the process."""
        assert self.socket is not None
        try:
            message = self.socket.recv(_LARGEST_MESSAGE)
        except BlockingIOError:
            return
        if not message:
            self.disconnected()
            return
        report = orjson.loads(message)
        if "refused" in report:
            log.error("the shadow bundle cannot be loaded", extra={"reason": report["refused"]})
        elif "version" in report:
            self.start_comparing(report["name"], report["version"])
        else:
            self.count(report)

    def start_comparing(self, name: str, version: str) -> None:
        """The bundle is loaded: publish its version and start all counters at 0."""
        for outcome in OUTCOMES:
            self.tickets.labels(outcome)
        for reason in REASONS:
            self.skipped.labels(reason)
        self.info.labels(name, version).set(1)
        self.comparing = True

    def count(self, report: dict[str, Any]) -> None:
        """Add the counts of one report to the metrics."""
        for outcome, number in report["outcomes"].items():
            self.tickets.labels(outcome).inc(number)
        for team, shadow_team, number in report["changes"]:
            self.changes.labels(team, shadow_team).inc(number)
        if report["errors"]:
            self.skipped.labels("error").inc(report["errors"])
        for seconds in report["seconds"]:
            self.seconds.observe(seconds)

    def disconnected(self) -> None:
        """The process ended: stop sending tickets."""
        assert self.socket is not None
        asyncio.get_running_loop().remove_reader(self.socket.fileno())
        if self.comparing:
            log.error("the shadow's process ended; tickets are no longer compared")
        self.comparing = False


class Comparer:
    """The shadow's side: decides with the second bundle and counts the differences."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.clear()

    def clear(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.changes: Counter[tuple[str, str]] = Counter()
        self.seconds: list[float] = []
        self.errors = 0

    def compare(self, text: str, team: str, decision: str) -> None:
        """Decide one ticket and count whether the answer was the same."""
        began = perf_counter()
        encoding = self.runtime.tokenizer.encode(text)
        shadow = decide(self.runtime.run(pad([encoding.ids]))[0], encoding, self.runtime.config)
        if shadow.team != team:
            self.outcomes["other_team"] += 1
            self.changes[team, shadow.team] += 1
        else:
            self.outcomes["same" if shadow.decision == decision else "other_decision"] += 1
        self.seconds.append(perf_counter() - began)

    def report(self) -> dict[str, Any]:
        """Return the counts since the last report, and reset them."""
        report = {
            "outcomes": dict(self.outcomes),
            "changes": [[*pair, number] for pair, number in self.changes.items()],
            "seconds": self.seconds,
            "errors": self.errors,
        }
        self.clear()
        return report


def serve(connection: socket.socket, folder: Path) -> None:
    """Compare tickets until the worker closes its side."""
    try:
        runtime = Runtime.load(folder, Settings())
    except (ValueError, OSError) as error:
        connection.send(orjson.dumps({"refused": str(error)}))
        return
    connection.send(orjson.dumps({"name": runtime.name, "version": runtime.version}))
    comparer = Comparer(runtime)
    connection.settimeout(REPORT_SECONDS)
    reported = monotonic()
    while True:
        with suppress(TimeoutError):
            message = connection.recv(_LARGEST_MESSAGE)
            if not message:
                return
            try:
                comparer.compare(*orjson.loads(message))
            except Exception:
                comparer.errors += 1
        due = monotonic() - reported > REPORT_SECONDS
        if due and (comparer.outcomes or comparer.errors):
            connection.send(orjson.dumps(comparer.report()))
            reported = monotonic()


if __name__ == "__main__":
    os.nice(10)  # about a tenth of a busy core; with 19 it would get almost no time on a busy machine
    with suppress(BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        serve(socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2]))
