"""Starts a server on a free port, waits until it answers, and ends it; for benchmark, soak and tests."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).resolve().parents[2]


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(what: str, ready: Callable[[], Any], seconds: float = 150.0) -> Any:
    """Call `ready` until it returns something true, and return that; TimeoutError after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with suppress(OSError, http.client.HTTPException, KeyError, IndexError, ValueError):
            if found := ready():
                return found
        time.sleep(0.02)
    raise TimeoutError(f"{what} did not come within {seconds:g} s")


class Process:
    """A server in a child process, as a context manager.

    `{port}` in `command` becomes the port. The child runs in `folder` (default: the repository), with its
    output in `folder/log` (default: a temporary file), on the cores `cpus` (a list as taskset takes it).
    It is ready when GET `ready_path` answers 200; without one, when it answers a ticket.
    """

    def __init__(
        self,
        name: str,
        command: list[str],
        environment: dict[str, str] | None = None,
        *,
        folder: Path | None = None,
        cpus: str | None = None,
        ready_path: str | None = None,
    ) -> None:
        self.name = name
        self.command = command
        self.environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **(environment or {})}
        self.folder = folder
        self.cpus = cpus
        self.ready_path = ready_path
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.ready_seconds = 0.0
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the child; it must have been started."""
        assert self.process is not None
        return self.process.pid

    def ready(self) -> bool:
        """Whether the server answers; an exception also means no."""
        if self.ready_path is not None:
            request = urllib.request.Request(self.url + self.ready_path)
        else:
            body = b'{"text": "my card was charged twice"}'
            request = urllib.request.Request(self.url + "/route", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=5) as answer:
            return bool(answer.status == 200)

    def __enter__(self) -> Self:
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
        pin = ["taskset", "-c", self.cpus] if self.cpus and shutil.which("taskset") else []
        self._log = (self.folder / "log").open("a+b") if self.folder else tempfile.TemporaryFile()
        began = time.perf_counter()
        self.process = subprocess.Popen(
            [*pin, *(part.replace("{port}", str(self.port)) for part in self.command)],
            cwd=self.folder or ROOT,
            env=os.environ | self.environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        try:
            wait_for(f"{self.name} on port {self.port}", self._answering)
        except BaseException:
            self.end()
            raise
        self.ready_seconds = time.perf_counter() - began
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def _answering(self) -> bool:
        """`ready`; RuntimeError with the end of the log if the process has ended."""
        if self.process is not None and self.process.poll() is not None:
            self._log.seek(0)
            raise RuntimeError(f"{self.name} ended: " + self._log.read().decode(errors="replace")[-4000:])
        return self.ready()

    def end(self) -> None:
        """SIGTERM to the process, SIGKILL to it and its children after 30 s."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._log.close()


def router(folder: Path | None = None, *, cpus: str | None = None, **settings: Any) -> Process:
    """This service; `settings` are LARKFIELD_… variables in lower case, without the prefix.

    Feedback is stored in `folder`, if given.
    """
    name = " ".join(["Larkfield router", *(f"{k}={v}" for k, v in settings.items() if k != "bundle")])
    database = f"sqlite:///{folder / 'feedback.db'}" if folder else "off"
    given = {"feedback_url": database, "drain_seconds": 0} | settings
    environment = {f"LARKFIELD_{key.upper()}": str(value) for key, value in given.items()}
    command = [sys.executable, "-m", "service", "--port", "{port}"]
    return Process(name, command, environment, folder=folder, cpus=cpus, ready_path="/readyz")


def memory_mb(pid: int) -> float:
    """Resident memory of a process and its children, in MiB."""
    import psutil

    process = psutil.Process(pid)
    return sum(p.memory_info().rss for p in [process, *process.children(recursive=True)]) / 2**20


def cpu_seconds(pid: int) -> float:
    """Processor time that a process and its children have used."""
    import psutil

    process = psutil.Process(pid)
    times = [p.cpu_times() for p in [process, *process.children(recursive=True)]]
    return sum(each.user + each.system for each in times)


def scrape(port: int) -> dict[str, float]:
    """The service's metrics, by sample."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(v) for name, v in (x.rsplit(" ", 1) for x in lines if not x.startswith("#"))}


def get(url: str) -> dict[str, Any]:
    """The JSON document at an address."""
    with urllib.request.urlopen(url, timeout=10) as response:
        answer: dict[str, Any] = json.load(response)
        return answer
