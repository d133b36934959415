"""A router, a load, a real Prometheus with the shipped rules; each panel's value: `make watch`.

What an operator's screens would show after two minutes, without Grafana. The tests of `deploy/` use the same
pieces: `Router`, `Prometheus` and `Load` are context managers that start, wait until ready, and clean up.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import math
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"

TICKETS = [
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

# Feedback comes this many solved tickets later: a ticket is never solved the moment it is routed.
SOLVED_LATER = 20


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(what: str, ready: Callable[[], Any], seconds: float = 150.0) -> Any:
    """Call `ready` until it returns something true; TimeoutError names what did not come."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with suppress(OSError, http.client.HTTPException, KeyError, IndexError, ValueError):
            if found := ready():
                return found
        time.sleep(0.2)
    raise TimeoutError(f"{what} did not come within {seconds:g} s")


class Program:
    """A child process in a folder of its own, ended with SIGTERM and, if need be, SIGKILL."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def ready(self) -> bool:
        raise NotImplementedError

    def __enter__(self) -> Self:
        log = self.folder / "log"
        with log.open("ab") as file:
            self.process = subprocess.Popen(
                self.command(),
                cwd=self.folder,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        try:
            wait_for(f"{type(self).__name__} on port {self.port}", self.answering)
        except BaseException:
            self.end()
            raise
        return self

    def answering(self) -> bool:
        """`ready`, unless the process has ended: then RuntimeError with the end of its log."""
        if self.process is not None and self.process.poll() is not None:
            raise RuntimeError((self.folder / "log").read_text(errors="replace")[-4000:])
        return self.ready()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """End the process, politely first."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Router(Program):
    """The service on a free port; `settings` are LARKFIELD_… variables without the prefix, in lower case."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder)
        defaults = {
            "feedback_url": f"sqlite:///{folder / 'feedback.db'}",
            "log_requests": False,
            "drain_seconds": 0,
        }
        self.settings = defaults | settings

    def command(self) -> list[str]:
        return [sys.executable, "-m", "service", "--port", str(self.port)]

    def environment(self) -> dict[str, str]:
        given = {f"LARKFIELD_{name.upper()}": str(value) for name, value in self.settings.items()}
        home = str(Path(__file__).resolve().parents[2])
        return super().environment() | {"OMP_NUM_THREADS": "1", "PYTHONPATH": home} | given

    def ready(self) -> bool:
        return bool(get(self.url + "/readyz")["status"] == "ready")


class Prometheus(Program):
    """Prometheus with the shipped configuration; only the targets and the intervals are others.

    `targets` are host:port of routers; `edit` may rewrite a rule file's text on its way.
    """

    def __init__(
        self,
        folder: Path,
        targets: list[str],
        *,
        every: str = "5s",
        edit: Callable[[str], str] = lambda text: text,
    ) -> None:
        super().__init__(folder)
        self.targets = targets
        self.every = every
        self.edit = edit

    def command(self) -> list[str]:
        program = shutil.which("prometheus")
        if program is None:
            raise RuntimeError("prometheus is not installed here")
        self.configure()
        return [
            program,
            f"--config.file={self.folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--web.enable-lifecycle",
        ]

    def configure(self) -> None:
        """Write the configuration; `reload` makes a running Prometheus read it."""
        text = (DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
        text = text.replace('["router:8000"]', json.dumps(self.targets))
        text = text.replace("localhost:9090", f"127.0.0.1:{self.port}")
        text = text.replace("_interval: 15s", f"_interval: {self.every}")
        text = text.replace("scrape_timeout: 5s", "scrape_timeout: 1s")
        (self.folder / "prometheus.yml").write_text(text, encoding="utf-8")
        rules = self.folder / "rules"
        rules.mkdir(exist_ok=True)
        for path in (DEPLOY / "prometheus" / "rules").glob("*.yml"):
            shipped = path.read_text(encoding="utf-8").replace("interval: 15s", f"interval: {self.every}")
            (rules / path.name).write_text(self.edit(shipped), encoding="utf-8")

    def reload(self) -> None:
        """Take the configuration in again, with the targets of now."""
        self.configure()
        request = urllib.request.Request(self.url + "/-/reload", method="POST")
        urllib.request.urlopen(request, timeout=10).close()

    def ready(self) -> bool:
        with urllib.request.urlopen(self.url + "/-/ready", timeout=2) as response:
            return bool(response.status == 200)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Series of an instant query; ValueError with Prometheus' words where it does not parse."""
        address = self.url + "/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        try:
            answer = get(address)
        except urllib.error.HTTPError as error:
            raise ValueError(f"{expression}\n{json.load(error).get('error')}") from None
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def rules(self) -> list[dict[str, Any]]:
        """Every rule with its health, last error and, for alerts, state."""
        groups = get(self.url + "/api/v1/rules")["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def alert_states(self) -> dict[str, str]:
        """Alert name -> inactive, pending or firing."""
        return {rule["name"]: rule["state"] for rule in self.rules() if rule["type"] == "alerting"}


def get(url: str) -> dict[str, Any]:
    """JSON of a URL."""
    with urllib.request.urlopen(url, timeout=10) as response:
        answer: dict[str, Any] = json.load(response)
        return answer


class Load:
    """Threads that post tickets and feedback to a router, and count the answers by status.

    `pause_seconds` between two tickets of a thread; `wrong` is the share of feedback that names another team.
    """

    def __init__(
        self,
        router: Router,
        *,
        threads: int = 2,
        pause_seconds: float = 0.02,
        wrong: float = 0.05,
        tickets: list[tuple[str, str]] = TICKETS,
        levels: tuple[str, ...] = ("none",),
    ) -> None:
        self.router = router
        self.pause_seconds = pause_seconds
        self.wrong = wrong
        self.tickets = tickets
        self.levels = levels
        self.answers: Counter[tuple[str, int]] = Counter()
        self._stop = threading.Event()
        self._run = os.urandom(4).hex()
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(threads)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _work(self, thread: int) -> None:
        chance = random.Random(thread)
        connection = http.client.HTTPConnection("127.0.0.1", self.router.port, timeout=10)
        solved: deque[dict[str, str]] = deque()
        for number in itertools.count():
            if self._stop.wait(self.pause_seconds):
                break
            text, team = chance.choice(self.tickets)
            ticket_id = f"{self._run}-{thread}-{number}"
            level = self.levels[number % 20] if number % 20 < len(self.levels) else "none"
            ticket = {"ticket_id": ticket_id, "text": text, "explain": level}
            self._post(connection, "/route", ticket)
            if number % 3 == 0:
                others = sorted({other for _, other in self.tickets} - {team}) or [team]
                said = chance.choice(others) if chance.random() < self.wrong else team
                solved.append({"ticket_id": ticket_id, "team": said})
            if len(solved) > SOLVED_LATER:
                self._post(connection, "/feedback", solved.popleft())
            if number % 50 == 1:
                self._post(connection, "/route", {"txt": "a wrong request"})
        connection.close()

    def _post(self, connection: http.client.HTTPConnection, path: str, body: dict[str, Any]) -> None:
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            response.read()
            self.answers[path, response.status] += 1
        except (OSError, http.client.HTTPException):
            self.answers[path, 0] += 1
            connection.close()
            self._stop.wait(0.1)


class Expression(NamedTuple):
    """One query of one panel, as Grafana would send it."""

    dashboard: str
    panel: str
    unit: str
    legend: str
    expression: str
    closed: bool  # in a row that is closed until someone opens it


def expressions(interval: str = "15s", shown: str = "2m") -> Iterator[Expression]:
    """Every query of every panel, its variables filled in as Grafana does for "All"."""
    values = {"$__rate_interval": interval, "$__range": shown, "$job": "larkfield"}
    values |= {"$instance": ".*", "$team": ".*"}
    for path in sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"), reverse=True):
        board = json.loads(path.read_text(encoding="utf-8"))
        for outer in board["panels"]:
            for panel in [outer, *outer.get("panels", [])]:
                for target in panel.get("targets", []):
                    text = target["expr"]
                    for name, value in values.items():
                        text = text.replace(name, value)
                    unit = panel["fieldConfig"]["defaults"]["unit"]
                    legend = target.get("legendFormat", "")
                    yield Expression(
                        board["title"], panel["title"], unit, legend, text, bool(outer.get("panels"))
                    )


def shown(value: float, unit: str) -> str:
    """A value as a person reads it."""
    if math.isnan(value):
        return "-"
    if unit == "percentunit":
        return f"{value:.1%}"
    if unit == "s":
        return f"{value * 1e3:.2f} ms"
    if unit == "bytes":
        return f"{value / 2**20:.0f} MiB"
    suffix = {"reqps": "/s", "cpm": "/min"}.get(unit, "")
    return f"{value:.4g}{suffix}"


def legend(template: str, labels: dict[str, str]) -> str:
    """A legend with its {{label}} filled in."""
    for name, value in labels.items():
        template = template.replace("{{" + name + "}}", value)
    if "{{" not in template and template in ("workers", "feedbacks", "tickets"):  # tables show their labels
        return " ".join(value for name, value in labels.items() if name != "__name__")
    return template


def report(prometheus: Prometheus, interval: str) -> int:
    """Print each panel's current value and each alert's state; how many panels showed nothing."""
    empty = 0
    previous = ("", "")
    for each in expressions(interval):
        if each.dashboard != previous[0]:
            print(f"\n== {each.dashboard} ==")
        series = prometheus.query(each.expression)
        empty += not series and not each.closed
        heatmap = each.legend == "{{le}}"
        values = [
            f"{legend(each.legend, one['metric'])} {shown(float(one['value'][1]), each.unit)}"
            for one in sorted(series, key=lambda one: sorted(one["metric"].items()))
        ]
        text = f"{len(series)} buckets" if heatmap and series else ", ".join(values) or "nothing"
        title = each.panel if previous[1] != each.panel else ""
        print(f"{title:24} {text}")
        previous = (each.dashboard, each.panel)
    print("\n== Alerts ==")
    for name, state in prometheus.alert_states().items():
        print(f"{name:32} {state}")
    return empty


def main() -> int:
    """Start everything, wait, report; 1 when a panel showed nothing."""
    parser = argparse.ArgumentParser(prog="python -m service.tools.watch", description=main.__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long the load runs")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--bundle", type=Path, help="default: the shipped one")
    chosen = parser.parse_args()
    settings: dict[str, Any] = {"workers": chosen.workers, "drift_seconds": 5}
    if chosen.bundle:
        settings["bundle"] = chosen.bundle.resolve()
    if shutil.which("prometheus") is None:
        print("prometheus is not installed: apt-get install prometheus", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="larkfield-watch-") as name:
        folder = Path(name)
        with Router(folder / "router", **settings) as router:
            with Prometheus(folder / "prometheus", [f"127.0.0.1:{router.port}"]) as prometheus:
                print(f"router {router.url}, Prometheus {prometheus.url}, {chosen.seconds:g} s of load …")
                with Load(router, levels=("tokens", "heads", "full")) as load:
                    time.sleep(chosen.seconds)
                    empty = report(prometheus, "20s")
    answers = ", ".join(f"{path} {status}: {count}" for (path, status), count in sorted(load.answers.items()))
    print(f"\nanswers by status: {answers}")
    print(f"{empty} queries showed nothing")
    return int(empty > 0)


if __name__ == "__main__":
    raise SystemExit(main())
