"""Compares the speed of the service with a constant answer and four other servers: `make bench`.

All servers run on this machine, one at a time, twice. Only ratios are compared, because times differ between
machines and between hours. Needs wrk and the extra `bench`. Uses the validation tickets if they are beside
the repository, otherwise made-up tickets of similar lengths.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from models.decision import decide
from models.text import join
from service.inference.runtime import Runtime, pad
from service.settings import SHIPPED_BUNDLE, Settings
from service.tools import ablation
from service.tools.load import DATA, text_of, tickets, write_script, wrk
from service.tools.processes import Process, memory_mb, router, scrape

SERVERS = Path(__file__).resolve().parent / "bench_servers"
LENGTHS = (8, 30, 55, 120, 500)
LEVELS = ("none", "tokens", "heads", "full")
PAUSE_SECONDS, GRAPH_ROUNDS = 0.002, 20


def others(bundle: Path, labelled: Path) -> list[Process]:
    """The floor (a constant answer), and four other ways to serve a router."""

    def script(name: str, file: str, *arguments: str) -> Process:
        command = [sys.executable, str(SERVERS / file), *arguments]
        return Process(name, command, {"BENCH_BUNDLE": str(bundle)})

    return [
        script("FastAPI that answers a constant", "floor.py", "{port}"),
        script("FastAPI + ONNX Runtime, the obvious way", "plain.py", "{port}", str(bundle)),
        script("mosec", "mosec_server.py", "--port", "{port}"),
        script("FastAPI + TF-IDF + logistic regression", "words.py", "{port}", str(labelled)),
        script("LitServe", "lit.py", "{port}", str(bundle)),
    ]


# ----------------------------------------------------------------------------------------------- parts


def compare(bundle: Path, folder: Path, script: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Every server at 1, 16 and 64 connections; medians over the rounds."""
    labelled = folder / "labelled.json"
    teams = json.loads((bundle / "config.json").read_text())["teams"]
    labelled.write_text(
        json.dumps([[ticket["text"], teams[n % len(teams)]] for n, ticket in enumerate(tickets())])
    )
    floor, *rest = others(bundle, labelled)
    servers = [floor, router(bundle=bundle), *rest]
    seen: dict[str, list[dict[str, float]]] = {server.name: [] for server in servers}
    for _ in range(rounds):
        for server in servers:
            with server:
                wrk(server.port, script, 4, 1)
                one, sixteen = wrk(server.port, script, 1, 3), wrk(server.port, script, 16, 4)
                row = {
                    "p50@1": one.p50_ms,
                    "p99@1": one.p99_ms,
                    "rps@16": sixteen.per_second,
                    "failed": one.failed + sixteen.failed,
                    "memory": memory_mb(server.pid),
                    "ready": server.ready_seconds,
                }
                if server.name.startswith("Larkfield"):
                    many = wrk(server.port, script, 64, 4)
                    row |= {"p50@64": many.p50_ms, "p99@64": many.p99_ms, "rps@64": many.per_second}
                seen[server.name].append(row)
    return {
        name: {key: median(row[key] for row in rows) for key in rows[0]}
        for name, rows in seen.items()
        if rows
    }


def stages(bundle: Path, script: Path) -> dict[str, float]:
    """Mean microseconds of each stage at one connection."""
    with router(bundle=bundle) as server:
        wrk(server.port, script, 1, 1)
        before = scrape(server.port)
        wrk(server.port, script, 1, 3)
        after = scrape(server.port)
    costs = {}
    for name in after:
        if match := re.match(r'larkfield_stage_seconds_sum\{stage="(\w+)"\}', name):
            count = name.replace("_sum", "_count")
            number = after[count] - before.get(count, 0.0)
            if number:
                costs[match[1]] = (after[name] - before.get(name, 0.0)) / number * 1e6
    return costs


def graph_alone(bundle: Path) -> dict[str, float]:
    """Median microseconds of one run of the graph in this process, by what came between two runs.

    In the service, a run follows the reading of the ticket, and its core may have slept before.
    """
    runtime = Runtime.load(bundle, Settings(provider="cpu"))
    ids = pad([runtime.tokenizer.encode(text_of(55, 0)).ids])

    def spin() -> None:
        until = time.perf_counter() + PAUSE_SECONDS
        while time.perf_counter() < until:
            pass

    def sleep() -> None:
        time.sleep(PAUSE_SECONDS)

    def read_and_decide() -> None:
        for number in range(5):
            encoding = runtime.tokenizer.encode(join(None, text_of(55, number)).text)
            json.loads(json.dumps(decide(logits, encoding, runtime.config).probabilities))

    def both() -> None:
        read_and_decide()
        sleep()

    logits = runtime.run(ids)[0]
    pauses: dict[str, Callable[[], object]] = {
        "in a loop": lambda: None,
        "after 2 ms of a busy core": spin,
        "after 2 ms asleep": sleep,
        "after reading and deciding five tickets": read_and_decide,
        "after both": both,
    }
    found: dict[str, list[float]] = {name: [] for name in pauses}
    for _ in range(GRAPH_ROUNDS):
        for name, pause in pauses.items():
            for _ in range(20):
                pause()
                began = time.perf_counter()
                runtime.run(ids)
                found[name].append((time.perf_counter() - began) * 1e6)
    return {name: median(times) for name, times in found.items()}


def lengths_and_levels(bundle: Path, folder: Path) -> tuple[dict[int, float], dict[str, float]]:
    """p50 in milliseconds at one connection, by tokens of the ticket and by explain level."""
    by_length, by_level = {}, {}
    with router(bundle=bundle) as server:
        for tokens in LENGTHS:
            script = write_script(folder / "length.lua", [{"text": text_of(tokens, n)} for n in range(20)])
            by_length[tokens] = wrk(server.port, script, 1, 1).p50_ms
        for level in LEVELS:
            bodies = [{"text": text_of(55, n), "explain": level} for n in range(20)]
            one = wrk(server.port, write_script(folder / "level.lua", bodies), 1, 1)
            if not one.failed:
                by_level[level] = one.p50_ms
    return by_length, by_level


def workers(bundle: Path, script: Path, rounds: int) -> dict[str, float]:
    """Requests per second at 32 connections: one worker on one core, one on all, two on all."""
    cores = os.cpu_count() or 1
    load = str(cores - 1) if cores > 2 else None
    cases: dict[str, tuple[dict[str, Any], str | None]] = {
        "1 worker, pinned to one core": ({"workers": 1}, "0"),
        "1 worker, all cores": ({"workers": 1}, None),
        "2 workers, all cores": ({"workers": 2}, None),
    }
    seen: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, (settings, cpus) in cases.items():
            with router(bundle=bundle, cpus=cpus, **settings) as server:
                time.sleep(1.0)  # the second worker may still be loading
                wrk(server.port, script, 32, 1, load)
                seen[name].append(wrk(server.port, script, 32, 4, load).per_second)
    return {name: median(values) for name, values in seen.items()}


def long_memory(bundle: Path, script: Path, requests: int) -> tuple[float, float]:
    """Resident MB after a tenth of the requests, and after all of them."""
    name = 'larkfield_requests_total{route="/route",status="200"}'
    with router(bundle=bundle) as server:
        early = 0.0
        while (done := scrape(server.port).get(name, 0.0)) < requests:
            if not early and done >= requests / 10:
                early = memory_mb(server.pid)
            wrk(server.port, script, 16, 4)
        return early, memory_mb(server.pid)


# ---------------------------------------------------------------------------------------------- report


def report(table: dict[str, dict[str, float]]) -> None:
    """The table of servers, with ratios to the floor."""
    floor = next(iter(table.values()))
    print("| server | p50 at 1 | × floor | requests/s at 16 | × floor | memory | failed |")
    print("|---|---|---|---|---|---|---|")
    for name, row in table.items():
        one, sixteen = row["p50@1"] / floor["p50@1"], row["rps@16"] / floor["rps@16"]
        print(
            f"| {name} | {row['p50@1']:.2f} ms | {one:.2f} | {row['rps@16']:,.0f} | {sixteen:.2f} |", end=""
        )
        print(f" {row['memory']:.0f} MB | {row['failed']:.0f} |")


def targets(
    table: dict[str, dict[str, float]], scale: dict[str, float], memory: tuple[float, float] | None
) -> None:
    """Print each target with the measured value; `memory` is None if the long run was omitted."""
    rows = list(table.values())
    floor, mine, rest = rows[0], rows[1], rows[2:]
    best_other = max(row["rps@16"] for row in rest)
    two = scale["2 workers, all cores"]
    checks = [
        ("p50 at 1 connection, × floor", mine["p50@1"] / floor["p50@1"], "≤", 2.0),
        ("requests/s at 16 connections, × floor", mine["rps@16"] / floor["rps@16"], "≥", 0.5),
        ("requests/s at 16 connections, × the best other server", mine["rps@16"] / best_other, "≥", 2.3),
        ("p50 at 1 connection of the obvious server, × ours", rest[0]["p50@1"] / mine["p50@1"], "≥", 1.4),
        ("p99 at 64 connections, × its p50", mine["p99@64"] / mine["p50@64"], "≤", 3.0),
        ("2 workers, × 1 worker on one core", two / scale["1 worker, pinned to one core"], "≥", 1.6),
        ("2 workers, × 1 worker on all cores", two / scale["1 worker, all cores"], "≥", 1.6),
        ("memory of a worker, MB", mine["memory"], "≤", 250.0),
        ("seconds from start to first answer", mine["ready"], "≤", 2.0),
    ]
    if memory is not None:
        checks.append(("memory growth over the long run, MB", memory[1] - memory[0], "≤", 10.0))
    print("\n| target | reached | wanted | |\n|---|---|---|---|")
    for name, value, sign, wanted in checks:
        good = value <= wanted if sign == "≤" else value >= wanted
        print(f"| {name} | {value:.2f} | {sign} {wanted:g} | {'met' if good else 'MISSED'} |")


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m service.tools.bench", description=__doc__.split("\n")[0])
    parser.add_argument("--bundle", type=Path, default=SHIPPED_BUNDLE)
    parser.add_argument("--rounds", type=int, default=2, help="of an ablation: pairs for each mechanism")
    parser.add_argument(
        "--ablation", action="store_true", help="only measure what each hand-written mechanism is worth"
    )
    parser.add_argument("--long-requests", type=int, default=200_000, help="0 omits the long run")
    arguments = parser.parse_args()
    if shutil.which("wrk") is None:
        print("wrk is needed: `make packages`, or apt-get install wrk", file=sys.stderr)
        return 2
    bundle = arguments.bundle.absolute()
    print(f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, ", end="")
    made_up = "" if DATA.exists() else " made-up"
    print(f"{len(tickets())}{made_up} tickets, bundle {bundle.name}\n", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = write_script(folder / "tickets.lua", list(tickets()))
        if arguments.ablation:
            ablation.report(bundle, script, arguments.rounds)
            return 0
        table = compare(bundle, folder, script, arguments.rounds)
        report(table)
        print("\nMean cost of a stage at 1 connection, µs: ", end="")
        print(", ".join(f"{stage} {cost:.0f}" for stage, cost in stages(bundle, script).items()), flush=True)
        print("The graph alone at 55 tokens, median µs: ", end="")
        print(", ".join(f"{name} {cost:.0f}" for name, cost in graph_alone(bundle).items()), flush=True)
        by_length, by_level = lengths_and_levels(bundle, folder)
        print("p50 by tokens of the ticket, ms: ", end="")
        print(", ".join(f"{tokens}: {ms:.2f}" for tokens, ms in by_length.items()))
        print("p50 by explain level at 55 tokens, ms: ", end="")
        print(", ".join(f"{level} {ms:.2f}" for level, ms in by_level.items()), flush=True)
        scale = workers(bundle, script, arguments.rounds)
        print("Requests/s at 32 connections: ", end="")
        print(", ".join(f"{name}: {rate:,.0f}" for name, rate in scale.items()), flush=True)
        memory = None
        if arguments.long_requests:
            memory = long_memory(bundle, script, arguments.long_requests)
            print(f"Memory over {arguments.long_requests:,} requests: {memory[0]:.0f} → {memory[1]:.0f} MB")
        targets(table, scale, memory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
