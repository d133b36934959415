"""Measures what each hand-written mechanism is worth: the service with all of them against one without it.

`python -m service.tools.bench --ablation` runs it. Both servers run at the same time and are loaded in turn,
so that other load on the machine affects both alike. A ratio compares the best turn of each server, because
other processes can only make a turn slower. The first row compares the service with itself: its distance from
1 is the noise.

`python -m service.tools.ablation MECHANISM --port …` starts the service without that mechanism. The mechanism
is replaced in that process, so the service needs no settings for it.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from service.tools.load import wrk
from service.tools.processes import Process, cpu_seconds, router


def _short_path() -> None:
    from service.http.middleware import Middleware

    construct = Middleware.__init__

    def without_direct(self: Any, app: Any, service: Any, direct: Any) -> None:
        construct(self, app, service, {})

    Middleware.__init__ = without_direct  # type: ignore[method-assign]


def _log_thread() -> None:
    import orjson

    from service.observe.logs import Writer

    def line(self: Any, document: dict[str, Any]) -> None:
        os.write(self._descriptor, orjson.dumps(document, default=str, option=orjson.OPT_APPEND_NEWLINE))

    Writer.line = line  # type: ignore[method-assign]


def _direct_metrics() -> None:
    from service.observe.metrics import DirectMetric

    def inc(self: Any, *labels: str) -> None:
        (self._metric.labels(*labels) if labels else self._metric).inc()

    def observe(self: Any, value: float, *labels: str) -> None:
        (self._metric.labels(*labels) if labels else self._metric).observe(value)

    DirectMetric.inc, DirectMetric.observe = inc, observe  # type: ignore[method-assign]


def _second_thread() -> None:
    from service.inference import queue

    queue.usable_cores = lambda: 1


def _ascii_words() -> None:
    from models import tokenizer

    tokenizer._is_word_tokenizer = lambda library: False


def _run_on_loop() -> None:
    from service.inference.queue import Engine

    Engine.run_now = lambda *_: None  # type: ignore[method-assign]


def _frozen_objects() -> None:
    from service.process import worker

    worker._freeze_objects = lambda: None


MECHANISMS: dict[str, Callable[[], None]] = {
    "nothing": lambda: None,
    "own path for /route": _short_path,
    "log writer thread": _log_thread,
    "direct metrics writing": _direct_metrics,
    "second thread for batches": _second_thread,
    "ASCII tokenizer": _ascii_words,
    "run on the event loop": _run_on_loop,
    "frozen garbage collection": _frozen_objects,
}


def without(mechanism: str, bundle: Path) -> Process:
    """The service without one of MECHANISMS."""
    server = router(bundle=bundle)
    server.name = mechanism
    server.command = [sys.executable, "-m", "service.tools.ablation", mechanism, "--port", "{port}"]
    return server


def pair(bundle: Path, mechanism: str, script: Path, rounds: int) -> dict[str, float]:
    """The ratio without ÷ with, between the best turns of both, for each measured quantity."""
    seen: list[list[dict[str, float]]] = [[], []]
    with without("nothing", bundle) as whole, without(mechanism, bundle) as less:
        for server in (whole, less):
            wrk(server.port, script, 16, 1)
        for turn in range(rounds):
            for place in (0, 1) if turn % 2 else (1, 0):
                seen[place].append(_measure((whole, less)[place], script))
    best = [{name: _best(name, rows) for name in rows[0]} for rows in seen]
    return {name: best[1][name] / best[0][name] for name in best[0]}


def _best(name: str, rows: list[dict[str, float]]) -> float:
    return (max if name.startswith("requests/s") else min)(row[name] for row in rows)


def _measure(server: Process, script: Path) -> dict[str, float]:
    row = {}
    for connections in (1, 16):
        began = cpu_seconds(server.pid)
        run = wrk(server.port, script, connections, 1)
        if run.failed:
            raise RuntimeError(f"{run.failed} requests failed without {server.name}")
        row[f"CPU per request at {connections}"] = (cpu_seconds(server.pid) - began) / run.requests
        row["p50 at 1" if connections == 1 else "requests/s at 16"] = (
            run.p50_ms if connections == 1 else run.per_second
        )
    return row


def report(bundle: Path, script: Path, rounds: int) -> None:
    """Print a table: what the service becomes without each mechanism."""
    columns = ("p50 at 1", "requests/s at 16", "CPU per request at 1", "CPU per request at 16")
    print(f"Without one mechanism ÷ with all, best of {rounds} turns each\n")
    print("| without | " + " | ".join(columns) + " |\n|" + "---|" * (len(columns) + 1), flush=True)
    for mechanism in MECHANISMS:
        row = pair(bundle, mechanism, script, rounds)
        cells = (f"{row[column]:.2f}" for column in columns)
        print(f"| {mechanism} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    MECHANISMS[sys.argv.pop(1)]()
    runpy.run_module("service", run_name="__main__")
