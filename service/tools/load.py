"""Load for a server: wrk for speed, `Clients` where each request must be accounted for."""

from __future__ import annotations

import csv
import http.client
import json
import random
import re
import shutil
import subprocess
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from service.tools.processes import ROOT

DATA = ROOT.parent / "shared" / "data" / "larkfield" / "valid.csv"
_UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3}
_TRIES = 20


# ---------------------------------------------------------------------------------------------- tickets


def tickets() -> list[dict[str, str]]:
    """The 600 validation tickets, or as many made-up ones with the same spread of lengths."""
    if DATA.exists():
        with DATA.open(newline="", encoding="utf-8") as file:
            return [{"ticket_id": row["ticket_id"], "text": row["text"]} for row in csv.DictReader(file)]
    rng = random.Random(0)
    lengths = [max(5, min(120, int(rng.gauss(53, 18)))) for _ in range(600)]
    return [{"ticket_id": f"T-{n}", "text": text_of(length, n)} for n, length in enumerate(lengths)]


def text_of(tokens: int, seed: int = 0) -> str:
    """A ticket of that many tokens."""
    choices = ["my", "order", "was", "charged", "twice", "please", "send", "the", "money", "back"]
    rng = random.Random(seed)
    return " ".join(rng.choice(choices) for _ in range(tokens))


# -------------------------------------------------------------------------------------------------- wrk


@dataclass
class Run:
    """One run of wrk: milliseconds, requests per second, and what went wrong.

    `refused` answers were not 2xx; `broken` connections ended within a request; `unopened` ones could not be
    opened, or had not been by the time wrk looked (it counts these as timeouts).
    """

    p50_ms: float
    p99_ms: float
    per_second: float
    requests: int
    refused: int
    broken: int
    unopened: int

    @property
    def failed(self) -> int:
        """Requests without a good answer."""
        return self.refused + self.broken + self.unopened


def write_script(path: Path, bodies: list[dict[str, Any]]) -> Path:
    """A wrk script that sends these bodies in turn."""
    lines = ["local bodies = {"]
    lines += [f"[==[{json.dumps(body)}]==]," for body in bodies]
    lines += [
        "}",
        "local requests, place = {}, 0",
        "function init() for i, body in ipairs(bodies) do requests[i] = wrk.format('POST', '/route',",
        "  {['content-type'] = 'application/json'}, body) end end",
        "function request() place = place % #requests + 1; return requests[place] end",
    ]
    path.write_text("\n".join(lines))
    return path


def wrk(port: int, script: Path, connections: int, seconds: float, cpu: str | None = None) -> Run:
    """Load from one thread of wrk, on one core if `cpu` names it."""
    pin = ["taskset", "-c", cpu] if cpu and shutil.which("taskset") else []
    command = [*pin, "wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--latency"]
    command += ["--timeout", "20s", "-s", str(script), f"http://127.0.0.1:{port}/route"]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds + 60).stdout
    return read_wrk(out)


def read_wrk(out: str) -> Run:
    """What wrk printed, as figures."""
    found = {
        key: float(v) * _UNITS[unit] for key, v, unit in re.findall(r"(50|99)%\s+([\d.]+)(us|ms|s)", out)
    }
    rate = re.search(r"Requests/sec:\s+([\d.]+)", out)
    requests = re.search(r"(\d+) requests in", out)
    failed = re.search(r"Non-2xx or 3xx responses: (\d+)", out)
    errors = re.search(r"connect (\d+), read (\d+), write (\d+), timeout (\d+)", out)
    connect, read, write, late = map(int, errors.groups()) if errors else (0, 0, 0, 0)
    return Run(
        found["50"],
        found["99"],
        per_second=float(rate[1]) if rate else 0.0,
        requests=int(requests[1]) if requests else 0,
        refused=int(failed[1]) if failed else 0,
        broken=read + write,
        unopened=connect + late,
    )


# ---------------------------------------------------------------------------------------------- clients


@dataclass
class Count:
    """What became of the requests."""

    sent: int = 0
    answered: int = 0
    refused: int = 0  # 503 or 504, or no connection: the service did not accept it
    interrupted: int = 0  # the connection broke; sent again and answered
    lost: int = 0
    broken: list[str] = field(default_factory=list)

    def add(self, other: Count) -> None:
        """Add the counts of another."""
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
    """Helpdesks with kept connections that send ticket after ticket, and again when a connection breaks.

    Started and ended as a context manager; `count` holds what became of each request.
    """

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

    def __enter__(self) -> Self:
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
        attempts = 0
        for _ in range(_TRIES):
            try:
                if connection.sock is None:
                    connection.connect()
            except OSError:
                if not attempts or self._stopping.is_set():
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
                attempts += 1
                continue
            self._note(response.status, answer, time.perf_counter() - began, attempts)
            return
        with self._lock:
            self.count.sent += 1
            self.count.lost += attempts > 0
            self.count.refused += attempts == 0
        time.sleep(0.05)

    def _note(self, status: int, answer: bytes, seconds: float, attempts: int) -> None:
        with self._lock:
            self.count.sent += 1
            self.count.interrupted += attempts > 0
            if status == 200:
                self.count.answered += 1
                self.latencies.append(seconds)
                self.versions[json.loads(answer)["model"]["version"]] += 1
            else:
                self.count.refused += 1
