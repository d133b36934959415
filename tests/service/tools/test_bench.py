"""What the benchmark reads and judges, and a short soak against the real service."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from service.tools import bench, load
from tests.service.conftest import ROOT

PRINTED = """Running 4s test @ http://127.0.0.1:1/route
  1 threads and 16 connections
  Latency Distribution
     50%  417.00us
     75%    1.05ms
     90%    1.29ms
     99%    1.05s
  16318 requests in 4.00s, 9.21MB read
  Socket errors: connect 1, read 2, write 3, timeout 4
  Non-2xx or 3xx responses: 7
Requests/sec:   4078.64
Transfer/sec:      2.30MB
"""


def test_what_wrk_prints_is_read() -> None:
    run = load.read_wrk(PRINTED)
    assert (run.p50_ms, run.p99_ms) == (0.417, 1050.0)
    assert run.per_second == 4078.64
    assert (run.refused, run.broken, run.unopened, run.failed) == (7, 5, 5, 17)
    calm = load.read_wrk("\n".join(line for line in PRINTED.splitlines() if "errors" not in line))
    assert (calm.broken, calm.unopened) == (0, 0)


def test_a_target_that_is_missed_is_called_missed(capsys: pytest.CaptureFixture[str]) -> None:
    floor = {"p50@1": 0.2, "rps@16": 8000.0}
    mine = {"p50@1": 0.3, "rps@16": 5000.0, "p50@64": 10.0, "p99@64": 50.0, "memory": 120.0, "ready": 1.5}
    table = {"floor": floor, "mine": mine, "other": {"p50@1": 1.0, "rps@16": 2000.0}}
    scale = {
        "1 worker, pinned to one core": 3000.0,
        "1 worker, all cores": 5000.0,
        "2 workers, all cores": 5400.0,
    }
    bench.targets(table, scale, (120.0, 121.0))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.endswith(("met |", "MISSED |"))]
    judged = [line.rsplit("| ", 1)[1] for line in lines]
    met, missed = "met |", "MISSED |"
    assert judged == [met, met, met, met, missed, met, missed, met, met, met]


def test_made_up_tickets_have_the_length_that_is_asked(tmp_path: Path) -> None:
    for tokens in bench.LENGTHS:
        assert len(load.text_of(tokens).split()) == tokens
    script = load.write_script(tmp_path / "x.lua", [{"text": "a ]] b"}]).read_text()
    assert json.dumps({"text": "a ]] b"}) in script


@pytest.mark.slow
def test_a_short_soak_loses_nothing(tool: Callable[[str], str], shipped_bundle: Path) -> None:
    tool("wrk")
    command = [sys.executable, "-m", "service.tools.soak", "--bundle", str(shipped_bundle)]
    command += ["--short"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", 0 lost" in done.stdout
