"""A real local Ray cluster: an archive job that loses a worker, one that is killed, and the app on Serve."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.tools.load import LABELLED
from service.tools.processes import free_port, wait_for

pytestmark = pytest.mark.slow
ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "ray"


@pytest.fixture
def environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ADDRESS": "",
    }


def big(path: Path, number: int) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["ticket_id", "text"])
        for n in range(number):
            writer.writerow([f"A-{n}", LABELLED[n % len(LABELLED)][0] + f"\nOrder {n}"])
    return path


def start(data: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    """The job as a user starts it, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, str(FOLDER / "archive.py"), str(data), "--workers", "2", "--compare", "0"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def descendants(process: subprocess.Popen[str]) -> list[Any]:
    import psutil

    return psutil.Process(process.pid).children(recursive=True)


def workers(process: subprocess.Popen[str]) -> list[Any]:
    """The Ray actors that route chunks."""
    import psutil

    found = []
    for child in descendants(process):
        try:
            if "MapWorker" in " ".join(child.cmdline()):
                found.append(child)
        except psutil.Error:
            continue
    return found


def some_parts(job: subprocess.Popen[str], data: Path, number: int) -> None:
    """Wait until the job has written some parts, or has ended without them."""

    def there() -> bool:
        if job.poll() is not None:
            pytest.fail(f"the job ended early: {job.stdout.read()[-3000:] if job.stdout else ''}")
        return len(parts(data)) >= number

    wait_for(f"{number} parts", there, 400)


def end(process: subprocess.Popen[str]) -> None:
    """Kill a job with everything it started, by their numbers."""
    import psutil

    children = descendants(process) if process.poll() is None else []
    for each in [*children, process]:
        try:
            each.kill()
        except (psutil.Error, ProcessLookupError):
            continue
    process.wait(30)


def parts(data: Path) -> list[Path]:
    return sorted((data.parent / f"{data.stem}-routed").glob("part-*.parquet"))


def ids(data: Path) -> list[str]:
    import pyarrow.parquet

    return sorted(
        value
        for path in parts(data)
        for value in pyarrow.parquet.read_table(path, columns=["ticket_id"])["ticket_id"].to_pylist()
    )


def test_a_worker_that_dies_loses_and_doubles_nothing(tmp_path: Path, environment: dict[str, str]) -> None:
    number = 40_000
    data = big(tmp_path / "tickets.csv", number)
    job = start(data, environment)
    try:
        some_parts(job, data, 2)
        victims = workers(job)
        assert victims, "no worker was found"
        victims[0].send_signal(signal.SIGKILL)
        left = len(parts(data))
        output, _ = job.communicate(timeout=400)
        assert left < number // 2000, "the worker died in the middle of the job"
        assert job.returncode == 0, output
        assert f"{number:,} tickets in, {number:,} out" in output
        assert "tickets/s" in output
        assert ids(data) == sorted(f"A-{n}" for n in range(number))
    finally:
        end(job)


def test_a_job_that_is_killed_whole_goes_on(tmp_path: Path, environment: dict[str, str]) -> None:
    number = 16_000
    data = big(tmp_path / "tickets.csv", number)
    job = start(data, environment)
    try:
        some_parts(job, data, 3)
    finally:
        end(job)
    before = {path.name: path.stat().st_mtime_ns for path in parts(data)}
    assert 3 <= len(before) < 8
    job = start(data, environment)
    try:
        output, _ = job.communicate(timeout=400)
        assert job.returncode == 0, output
        assert "were routed by an earlier start" in output
        assert ids(data) == sorted(f"A-{n}" for n in range(number))
        after = {path.name: path.stat().st_mtime_ns for path in parts(data)}
        assert {name: after[name] for name in before} == before, "what was done is not done again"
    finally:
        end(job)


@pytest.fixture
def cluster(environment: dict[str, str], tmp_path: Path) -> Iterator[str]:
    """Ray Serve with the router on a free port, as `serve run` starts it."""
    port = free_port()
    script = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "import archive, ray; from ray import serve\n"
        "archive.join_cluster()\n"
        "serve.start(http_options={'host': '127.0.0.1', 'port': int(sys.argv[2])})\n"
        "import serve_app\n"
        "serve.run(serve_app.router, route_prefix='/')\n"
        "print('the router ' + 'answers', flush=True); sys.stdin.read()\n"
        "serve.shutdown(); ray.shutdown()\n"
    )
    environment = {**environment, "LARKFIELD_FEEDBACK_URL": f"sqlite:///{tmp_path / 'f.db'}"}
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-c", script, str(FOLDER), str(port)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
            text=True,
        )
    try:
        deadline = time.monotonic() + 400
        while "the router answers" not in (tmp_path / "log").read_text():
            assert server.poll() is None, (tmp_path / "log").read_text()[-3000:]
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()[-3000:]
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
        assert server.stdin is not None
        server.stdin.close()
        server.wait(60)
    finally:
        end(server)


def test_the_same_application_on_ray_serve(cluster: str) -> None:
    def call(path: str, body: Any = None) -> tuple[int, dict[str, Any], Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(cluster + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return response.status, json.load(response), response.headers
        except urllib.error.HTTPError as error:
            return error.code, json.load(error), error.headers

    status, answer, headers = call("/route", {"ticket_id": "R-1", "text": LABELLED[0][0]})
    assert (status, answer["team"]) == (200, "payment")
    assert headers["x-request-id"]
    assert call("/readyz")[1]["status"] == "ready"
    status, _, headers = call("/route", {"txt": "no text"})
    assert status == 422
    assert headers["content-type"] == "application/problem+json"
    assert call("/feedback", {"ticket_id": "R-1", "team": "payment"})[1]["correct"] is True
    status, batch, _ = call("/route/batch", {"tickets": [{"text": text} for text, _ in LABELLED]})
    assert (status, batch["routed"]) == (200, len(LABELLED))


def test_the_clusters_configuration_names_what_exists() -> None:
    import yaml
    from ray.serve.schema import ServeDeploySchema

    from service.settings import Settings

    config = yaml.safe_load((FOLDER / "serve.yaml").read_text(encoding="utf-8"))
    read = ServeDeploySchema.model_validate(config)
    [application] = read.applications
    module, _, name = application.import_path.partition(":")
    assert f"{name} = serve.deployment" in (FOLDER / f"{module}.py").read_text(encoding="utf-8")
    variables = config["applications"][0]["runtime_env"]["env_vars"]
    known = {f"LARKFIELD_{field.upper()}" for field in Settings.model_fields}
    assert {key for key in variables if key.startswith("LARKFIELD_")} <= known
