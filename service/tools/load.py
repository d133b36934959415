"""Load generators: wrk for speed, `Clients` to count every request, `Helpdesk` with feedback."""

from __future__ import annotations

import csv
import http.client
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

from service.tools.processes import ROOT

DATA = ROOT.parent / "shared" / "data" / "larkfield" / "valid.csv"
_UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3}
_TRIES = 20

# (text, team): tickets that the shipped bundle predicts correctly, and one that belongs to no team.
LABELLED = [
    ("My card was charged twice for one order. Please refund the second charge.", "payment"),
    ("The amount on my bank statement is higher than the price at checkout.", "payment"),
    ("Your site declined my credit card although it works everywhere else.", "payment"),
    ("I paid by bank transfer last week and the order still says unpaid.", "payment"),
    ("The discount code was accepted but not taken off the invoice.", "payment"),
    ("My parcel was due on Monday and the tracking page has not moved since.", "delivery"),
    ("The driver left the box in the rain and the lamp inside is broken.", "delivery"),
    ("Two of the four garden chairs are missing from the delivery.", "delivery"),
    ("The package went to my old address, can the courier bring it here?", "delivery"),
    ("The vase arrived cracked, the carton had a hole in it.", "delivery"),
    ("I would like to send the rug back, the colour does not suit the room.", "returns"),
    ("How many days do I have to return an unopened kettle?", "returns"),
    ("I need a label to return the curtains that are too short.", "returns"),
    ("I sent the blender back ten days ago and nobody confirmed the return.", "returns"),
    ("Can I exchange the blanket for a larger size?", "returns"),
    ("The hedge trimmer stopped working after eight months, is it under warranty?", "warranty"),
    ("The coffee grinder makes a burning smell, I bought it last year.", "warranty"),
    ("The hinge of the cabinet broke within the guarantee period.", "warranty"),
    ("My vacuum cleaner no longer charges, please repair or replace it.", "warranty"),
    ("The pump of the fountain died after one season, here is the serial number.", "warranty"),
    ("I cannot log in, the password reset mail never arrives.", "account"),
    ("Please change the e-mail address of my account.", "account"),
    ("Someone signed in to my account from another country.", "account"),
    ("How do I delete my profile and all my data?", "account"),
    ("My two accounts should be merged into one.", "account"),
    ("Blorp fizzwick zanthor quibble nax, vorpal grume!", "account"),
]

# Feedback on a ticket is sent after this many further solved tickets, as helpdesks do.
SOLVED_LATER = 20


# ---------------------------------------------------------------------------------------------- tickets


def tickets() -> list[dict[str, str]]:
    """The 600 validation tickets, or as many made-up ones with a similar distribution of lengths."""
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
    """One run of wrk: latencies, requests per second, and failures.

    `refused` counts answers other than 2xx, `broken` connections that ended within a request, `unopened` ones
    that could not be opened or were not opened in time (wrk counts these as timeouts).
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
    """Run wrk with one thread, on the core `cpu` if given."""
    pin = ["taskset", "-c", cpu] if cpu and shutil.which("taskset") else []
    command = [*pin, "wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--latency"]
    command += ["--timeout", "20s", "-s", str(script), f"http://127.0.0.1:{port}/route"]
    out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds + 60).stdout
    return read_wrk(out)


def read_wrk(out: str) -> Run:
    """Parse the output of wrk."""
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
    """Outcomes of requests."""

    sent: int = 0
    answered: int = 0
    refused: int = 0  # 503 or 504, or no connection: the service did not accept it
    interrupted: int = 0  # the connection broke; sent again and answered
    lost: int = 0
    back_seconds: float = 0.0  # the longest time from the end of a worker until all were ready again
    broken: list[str] = field(default_factory=list)

    def add(self, other: Count) -> None:
        """Add the counts of another."""
        self.sent += other.sent
        self.answered += other.answered
        self.refused += other.refused
        self.interrupted += other.interrupted
        self.lost += other.lost
        self.back_seconds = max(self.back_seconds, other.back_seconds)
        self.broken += other.broken

    def expect(self, guarantee: str, kept: bool) -> None:
        """Print whether a guarantee was kept; note it in `broken` if not."""
        print(f"  {'kept  ' if kept else 'BROKEN'}  {guarantee}", flush=True)
        if not kept:
            self.broken.append(guarantee)

    def __str__(self) -> str:
        return (
            f"{self.sent:,} sent, {self.answered:,} answered, {self.refused:,} refused, "
            f"{self.interrupted:,} interrupted and answered on the next try, {self.lost:,} lost"
        )


class Threads:
    """Threads that run until the `with` block ends, when `_stopping` is set."""

    def __init__(self, targets: Iterable[Callable[[], None]]) -> None:
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=target, daemon=True) for target in targets]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(60)


class Connections(Threads):
    """Threads with a keep-alive connection each, which call `step` until the `with` block ends."""

    def __init__(self, port: int, number: int, pause_seconds: float) -> None:
        super().__init__(partial(self._run, thread) for thread in range(number))
        self.port = port
        self._pause_seconds = pause_seconds

    def _run(self, thread: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        for number in itertools.count():
            if self._stopping.wait(self._pause_seconds):
                break
            self.step(connection, thread, number)
        connection.close()

    def step(self, connection: http.client.HTTPConnection, thread: int, number: int) -> None:
        """Send the requests of one round; `number` counts the rounds of this thread from 0."""
        raise NotImplementedError


class Clients(Connections):
    """Sends tickets, and a ticket again if its connection breaks; `count` has the outcomes."""

    def __init__(self, port: int, number: int, pause_seconds: float = 0.0) -> None:
        super().__init__(port, number, pause_seconds)
        self.count = Count()
        self.latencies: list[float] = []
        self.versions: Counter[str] = Counter()
        self._bodies = [json.dumps(ticket) for ticket in tickets()[:50]]
        self._lock = threading.Lock()

    def step(self, connection: http.client.HTTPConnection, thread: int, number: int) -> None:
        """Send one ticket until it is answered or refused."""
        body = self._bodies[number % len(self._bodies)]
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


UNKNOWN_TEAM = "legal"  # a team that the bundle does not know, in one feedback of twenty


class Helpdesk(Connections):
    """Sends tickets, later feedback on every third one, and sometimes an invalid request.

    `tickets` are (text, team). `levels` are the explain levels of the first tickets of each twenty. `wrong`
    is the share of feedback that names another team. `answers` counts them by path and status.
    """

    def __init__(
        self,
        port: int,
        number: int = 2,
        pause_seconds: float = 0.02,
        *,
        tickets: list[tuple[str, str]] = LABELLED,
        wrong: float = 0.05,
        levels: tuple[str, ...] = ("none",),
    ) -> None:
        super().__init__(port, number, pause_seconds)
        self.tickets = tickets
        self.wrong = wrong
        self.levels = levels
        self.answers: Counter[tuple[str, int]] = Counter()
        self._name = os.urandom(4).hex()
        self._random = [random.Random(thread) for thread in range(number)]
        self._solved: list[deque[dict[str, str]]] = [deque() for _ in range(number)]

    def step(self, connection: http.client.HTTPConnection, thread: int, number: int) -> None:
        """Send one ticket, and feedback or an invalid request if due."""
        chance, solved = self._random[thread], self._solved[thread]
        text, team = chance.choice(self.tickets)
        ticket_id = f"{self._name}-{thread}-{number}"
        level = self.levels[number % 20] if number % 20 < len(self.levels) else "none"
        self._post(connection, "/route", {"ticket_id": ticket_id, "text": text, "explain": level})
        if number % 3 == 0:
            others = sorted({other for _, other in self.tickets} - {team}) or [team]
            named = chance.choice(others) if chance.random() < self.wrong else team
            if number % 60 == 0:
                named = UNKNOWN_TEAM
            solved.append({"ticket_id": ticket_id, "team": named})
        if len(solved) > SOLVED_LATER:
            self._post(connection, "/feedback", solved.popleft())
        if number % 50 == 1:
            self._post(connection, "/route", {"txt": "a wrong request"})

    def _post(self, connection: http.client.HTTPConnection, path: str, body: dict[str, Any]) -> None:
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            response.read()
            self.answers[path, response.status] += 1
        except (OSError, http.client.HTTPException):
            self.answers[path, 0] += 1
            connection.close()
            self._stopping.wait(0.1)
