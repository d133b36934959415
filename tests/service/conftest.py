"""Small bundles, made without training, and real servers that answer with them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.client import HTTPMessage
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.bundle import BundleConfig, write_bundle
from models.tokenizer import Tokenizer, build_word_tokenizer
from models.tradeoff import Thresholds, Tradeoff
from tests.models.small_graph import small_graph

ROOT = Path(__file__).parents[2]
TEXTS = ["my parcel is late, my parcel is lost", "refund my card, refund my order", "parcel late card lost"]
TEAMS = ["delivery", "payment", "account"]
PATIENCE_SECONDS = 150.0


def make_bundle(
    folder: Path, version: str = "1", max_tokens: int = 600, tradeoff: Tradeoff | None = None
) -> Path:
    """A sound bundle: "parcel", "late", "lost" speak for delivery, "card" and "refund" for payment."""
    library = build_word_tokenizer(TEXTS)
    tokenizer = Tokenizer(library, max_tokens)
    table = np.zeros((tokenizer.vocab_size, len(TEAMS)), np.float32)
    for team, words in ((0, ("parcel", "late", "lost")), (1, ("card", "refund"))):
        for word in words:
            if library.token_to_id(word) is not None:
                table[library.token_to_id(word), team] = 3.0
    write_bundle(
        folder,
        model=small_graph(tokenizer.vocab_size, len(TEAMS), table=table),
        tokenizer_json=library.to_str(),
        config=BundleConfig(
            name="small",
            version=version,
            teams=TEAMS,
            max_tokens=max_tokens,
            vocab_size=tokenizer.vocab_size,
            temperature=1.0,
            thresholds=tradeoff.thresholds(tradeoff.default()) if tradeoff else Thresholds(confidence=0.7),
            tradeoff=tradeoff,
        ),
        model_card="# Small\nKnows three teams.\n",
    )
    return folder


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small sound bundle, version "1"."""
    return make_bundle(tmp_path_factory.mktemp("bundles") / "one")


@pytest.fixture(scope="session")
def second_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another one, version "2"."""
    return make_bundle(tmp_path_factory.mktemp("bundles") / "two", version="2")


@dataclass
class Reply:
    """What came back."""

    status: int
    headers: HTTPMessage
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Running:
    """A real server, and a plain client for it."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    output: Path
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """Send a request; bytes as they are, anything else as JSON. `x_request_id` is X-Request-Id."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if data is not None:
            given.setdefault("content-type", "application/json")
        request = urllib.request.Request(self.url + path, data, {**self.headers, **given}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as response:
                return Reply(response.status, response.headers, response.read())
        except urllib.error.HTTPError as error:
            return Reply(error.code, error.headers, error.read())

    def route(self, text: str, **fields: Any) -> Reply:
        return self.call("POST", "/route", {"text": text, **fields})

    def metrics(self) -> dict[str, float]:
        """Every sample, by name and labels as they are written."""
        lines = self.call("GET", "/metrics").body.decode().splitlines()
        samples = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in samples}

    def log_lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_SECONDS)

    def stop(self) -> int:
        """SIGTERM, and the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_SECONDS)


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait until `condition()` is true, generously, and return it."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        try:
            if value := condition():
                return value
        except (OSError, urllib.error.URLError):
            pass
        time.sleep(0.02)
    raise AssertionError(f"it did not happen: {what}")


def launch(folder: Path, *, wait: bool = True, cwd: Path = ROOT, **settings: Any) -> Running:
    """Start `python -m service` on a free port, with LARKFIELD_ settings given in lower case.

    A name in capitals is a variable of the environment as it is.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("LARKFIELD_")}
    defaults = {"port": port, "feedback_url": "off", "drain_seconds": 0.1}
    given = {k if k.isupper() else f"LARKFIELD_{k.upper()}": str(v) for k, v in (defaults | settings).items()}
    log, output = folder / "log", folder / "output"
    with log.open("wb") as errors, output.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "service"],
            cwd=cwd,
            # What a killed server leaves in the temporary folder goes with the test.
            env=environment | {"TMPDIR": str(folder), "OMP_NUM_THREADS": "1"} | given,
            stdout=out,
            stderr=errors,
        )
    running = Running(process, port, log, output)
    if wait:
        try:
            until(lambda: ready(running), "the server is ready")
        except AssertionError:
            process.kill()
            raise
    return running


def ready(running: Running) -> bool:
    if running.process.poll() is not None:
        raise AssertionError(f"the server ended: {running.log.read_text()[-2000:]}")
    return running.call("GET", "/readyz").status == 200


@pytest.fixture
def start(tmp_path: Path, bundle: Path) -> Iterator[Callable[..., Running]]:
    """start(workers=2, max_queue=8, …) -> a server that is ready; it is stopped after the test."""
    started: list[Running] = []

    def make(**settings: Any) -> Running:
        folder = tmp_path / f"server-{len(started)}"
        folder.mkdir()
        started.append(launch(folder, **({"bundle": bundle} | settings)))
        return started[-1]

    yield make
    for running in started:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, bundle: Path) -> Iterator[Running]:
    """One server for all tests of a module that leave it as they found it."""
    running = launch(tmp_path_factory.mktemp("server"), bundle=bundle)
    yield running
    running.process.kill()
    running.process.wait()
