"""A second bundle on live tickets: what would it have said? It answers nobody and delays nobody.

It runs in a process of its own at a low priority, beside each worker. The worker only drops a ticket
into a socket after its answer is ready; when the socket is full, because the machine has better things to do,
the ticket is skipped and counted. Set LARKFIELD_SHADOW_BUNDLE to use it.
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
    """Compare live tickets where LARKFIELD_SHADOW_BUNDLE names a bundle."""
    if service.settings.shadow_bundle is None:
        return
    shadow = Shadow(service)
    service.observers.append(shadow.observe)
    service.on_start.append(shadow.start)
    service.on_stop.append(shadow.stop)


class Shadow:
    """The worker's end: tickets go out, counts come back four times a second."""

    def __init__(self, service: Service) -> None:
        self.sample = service.settings.shadow_sample
        self.folder = service.settings.shadow_bundle
        self.process: subprocess.Popen[bytes] | None = None
        self.end: socket.socket | None = None
        self.comparing = False
        metrics = service.metrics
        self.tickets = metrics.counter("shadow_tickets", "Tickets compared with the shadow.", "outcome")
        self.changes = metrics.counter(
            "shadow_changes", "Tickets that the shadow sends elsewhere.", "team", "shadow_team"
        )
        self.skipped = metrics.counter("shadow_skipped", "Tickets not compared.", "reason")
        self.seconds = metrics.histogram("shadow_seconds", "Time to compare one ticket.", _SECONDS)
        self.info = metrics.gauge("shadow_bundle_info", "1 for the shadow bundle.", "name", "version")

    def start(self) -> None:
        """Start the process; it tells when its bundle is loaded, and tickets go to it from then on."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "service.feedback.shadow", str(theirs.fileno()), str(self.folder)],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        theirs.close()
        self.end = ours
        asyncio.get_running_loop().add_reader(ours.fileno(), self.hear)

    def stop(self) -> None:
        """End the process."""
        if self.end is not None:
            self.end.close()
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def observe(self, answer: Answer) -> None:
        """Send a ticket, or skip it; never waits."""
        if self.end is None or not self.comparing or (self.sample < 1 and random.random() >= self.sample):
            return
        ticket = [answer.joined.text, answer.decision.team, answer.decision.decision]
        try:
            self.end.send(orjson.dumps(ticket))
        except BlockingIOError:
            self.skipped.labels("full").inc()
        except (OSError, TypeError):  # a message too long, or text that is no text
            self.skipped.labels("error").inc()

    def hear(self) -> None:
        """Count what the process reports."""
        assert self.end is not None
        try:
            message = self.end.recv(_LARGEST_MESSAGE)
        except BlockingIOError:
            return
        if not message:
            self.lost()
            return
        report = orjson.loads(message)
        if "refused" in report:
            log.error("the shadow bundle is left out", extra={"reason": report["refused"]})
        elif "version" in report:
            self.begin(report["name"], report["version"])
        else:
            self.count(report)

    def begin(self, name: str, version: str) -> None:
        """Its bundle is loaded: show which, and begin to count at 0."""
        for outcome in OUTCOMES:
            self.tickets.labels(outcome)
        for reason in REASONS:
            self.skipped.labels(reason)
        self.info.labels(name, version).set(1)
        self.comparing = True

    def count(self, report: dict[str, Any]) -> None:
        """Add a report of the process to the metrics."""
        for outcome, number in report["outcomes"].items():
            self.tickets.labels(outcome).inc(number)
        for team, shadow_team, number in report["changes"]:
            self.changes.labels(team, shadow_team).inc(number)
        if report["errors"]:
            self.skipped.labels("error").inc(report["errors"])
        for seconds in report["seconds"]:
            self.seconds.observe(seconds)

    def lost(self) -> None:
        """The process ended: no more tickets for it."""
        assert self.end is not None
        asyncio.get_running_loop().remove_reader(self.end.fileno())
        if self.comparing:
            log.error("the shadow's process ended; tickets are no longer compared")
        self.comparing = False


class Comparer:
    """The other end: decides with the second bundle and keeps count."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.clear()

    def clear(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.changes: Counter[tuple[str, str]] = Counter()
        self.seconds: list[float] = []
        self.errors = 0

    def compare(self, text: str, team: str, decision: str) -> None:
        """Decide on one ticket and count how that compares with what was answered."""
        began = perf_counter()
        encoding = self.runtime.tokenizer.encode(text)
        mine = decide(self.runtime.run(pad([encoding.ids]))[0], encoding, self.runtime.config)
        if mine.team != team:
            self.outcomes["other_team"] += 1
            self.changes[team, mine.team] += 1
        else:
            self.outcomes["same" if mine.decision == decision else "other_decision"] += 1
        self.seconds.append(perf_counter() - began)

    def report(self) -> dict[str, Any]:
        """The counts since the last report."""
        report = {
            "outcomes": dict(self.outcomes),
            "changes": [[*pair, number] for pair, number in self.changes.items()],
            "seconds": self.seconds,
            "errors": self.errors,
        }
        self.clear()
        return report


def serve(end: socket.socket, folder: Path) -> None:
    """Compare tickets until the worker's end is closed."""
    try:
        runtime = Runtime.load(folder, Settings())
    except (ValueError, OSError) as error:
        end.send(orjson.dumps({"refused": str(error)}))
        return
    end.send(orjson.dumps({"name": runtime.name, "version": runtime.version}))
    comparer = Comparer(runtime)
    end.settimeout(REPORT_SECONDS)
    reported = monotonic()
    while True:
        with suppress(TimeoutError):
            message = end.recv(_LARGEST_MESSAGE)
            if not message:
                return
            try:
                comparer.compare(*orjson.loads(message))
            except Exception:
                comparer.errors += 1
        due = monotonic() - reported > REPORT_SECONDS
        if due and (comparer.outcomes or comparer.errors):
            end.send(orjson.dumps(comparer.report()))
            reported = monotonic()


if __name__ == "__main__":
    os.nice(10)  # a tenth of a busy core; at 19 it would see nothing of a busy day
    with suppress(BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        serve(socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2]))
