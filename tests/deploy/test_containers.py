"""The images, with no engine to build them: every path exists, and the commands run in a clean folder."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import yaml

from service.settings import Settings

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "deploy" / "docker"
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))
DOCKERFILES = {"cpu": DOCKER / "Dockerfile", "gpu": DOCKER / "Dockerfile.gpu"}


def instructions(path: Path) -> list[tuple[str, str]]:
    """(instruction, rest) for each; continued lines joined, comments dropped."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(encoding="utf-8"), flags=re.M)
    joined = re.sub(r"\\\n\s*", " ", text)
    return [
        (word, rest.strip())
        for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line.strip())
    ]


@pytest.mark.parametrize("kind", DOCKERFILES)
def test_every_copied_path_exists_and_is_sent_to_the_build(kind: str) -> None:
    sent = [
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line.startswith("!")
    ]
    for word, rest in instructions(DOCKERFILES[kind]):
        if word != "COPY" or rest.startswith("--from"):
            continue
        for path in rest.split()[:-1]:
            assert (ROOT / path).exists(), path
            assert any(path == each or path.startswith(each + "/") for each in sent), path


@pytest.mark.parametrize("kind", DOCKERFILES)
def test_hadolint_finds_nothing(kind: str) -> None:
    program = Path(sys.executable).with_name("hadolint")
    if not program.exists():
        pytest.skip("hadolint is not installed")
    done = subprocess.run(
        [program, "--no-color", DOCKERFILES[kind]], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", DOCKERFILES)
def test_an_image_is_staged_small_and_without_root(kind: str) -> None:
    found = instructions(DOCKERFILES[kind])
    words = [word for word, _ in found]
    assert words.count("FROM") == 2
    assert ("FROM", "${BASE} AS build") in found
    base = dict(found)["ARG"]
    assert re.fullmatch(r"BASE=python:3\.\d+-slim-\w+", base), "a pinned release of Python and of the system"
    last = found[words.index("FROM", words.index("FROM") + 1) :]
    assert ("USER", "10001:10001") in last
    assert "HEALTHCHECK" in dict(last)
    assert "RUN" not in [word for word, _ in last[[w for w, _ in last].index("USER") :]]
    assert dict(last)["ENTRYPOINT"] == '["python", "-m", "service"]'
    environment = dict(re.findall(r"(LARKFIELD_\w+)=(\S+)", dict(last)["ENV"]))
    assert set(environment) <= {f"LARKFIELD_{name.upper()}" for name in Settings.model_fields}
    pinned = [rest for word, rest in found if word == "RUN" and "-r requirements.txt" in rest]
    assert len(pinned) == 1
    assert "-c constraints.txt" in pinned[0]


def test_the_two_files_differ_only_in_the_runtime() -> None:
    cpu, gpu = (instructions(path) for path in DOCKERFILES.values())
    assert [word for word, _ in cpu] == [word for word, _ in gpu]
    differing = [word for (word, one), (_, other) in zip(cpu, gpu, strict=True) if one != other]
    assert differing == ["COPY", "RUN", "ENV"]


def requirements(kind: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, DOCKER / "requirements.py", kind, ROOT / "pyproject.toml"],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split("\n")[:-1]


def test_an_image_gets_one_runtime_and_everything_else_of_the_project() -> None:
    cpu, gpu = requirements("cpu"), requirements("gpu")
    assert [line for line in cpu if line.startswith("onnxruntime")] == ["onnxruntime"]
    assert [line for line in gpu if line.startswith("onnxruntime")] == ["onnxruntime-gpu[cuda,cudnn]"]
    assert cpu[:-1] == gpu[:-1]
    names = {re.split(r"[\[<>=;]", line)[0] for line in cpu}
    assert {"fastapi", "uvicorn", "sqlalchemy", "psycopg", "tokenizers", "httpx"} <= names
    assert not names & {"torch", "onnx", "pandas", "scikit-learn", "larkfield-router"}


def test_compose_mounts_what_exists_and_publishes_to_this_machine_alone() -> None:
    assert set(COMPOSE["services"]) == {"router", "prometheus", "grafana"}
    named = set(COMPOSE["volumes"])
    for name, service in COMPOSE["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        for mount in service["volumes"]:
            source = mount.split(":")[0]
            assert source in named or (DOCKER / source).exists(), source
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), name
        if "image" in service and name != "router":
            assert re.search(r":v?\d+\.\d+\.\d+$", service["image"]), "a pinned version"
    build = COMPOSE["services"]["router"]["build"]
    assert (DOCKER / build["context"] / build["dockerfile"]).exists()
    environment = COMPOSE["services"]["router"]["environment"]
    Settings(**{key.removeprefix("LARKFIELD_").lower(): value for key, value in environment.items()})


def test_prometheus_scrapes_the_service_that_compose_names() -> None:
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text(encoding="utf-8"))
    [job] = [job for job in config["scrape_configs"] if job["job_name"] == "larkfield"]
    assert job["static_configs"] == [{"targets": ["router:8000"]}]


@pytest.mark.slow
def test_the_commands_of_the_cpu_image_make_a_service(tmp_path: Path) -> None:
    """Each RUN of the build stage, in a folder instead of an image; then its entry point and health check."""
    source, target = tmp_path / "src", tmp_path / "opt"
    source.mkdir()
    stage = instructions(DOCKERFILES["cpu"])
    for word, rest in stage[: [word for word, _ in stage].index("FROM", 2)]:
        if word == "COPY":
            *paths, into = rest.split()
            for path in paths:
                copy = shutil.copytree if (ROOT / path).is_dir() else shutil.copy
                copy(ROOT / path, source / (into if (ROOT / path).is_dir() else Path(path).name))
        elif word == "RUN":
            command = rest.replace("/opt/larkfield", str(target))
            command = command.replace("python -m venv", f"{shlex.quote(sys.executable)} -m venv", 1)
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", command],
                cwd=source,
                capture_output=True,
                text=True,
                timeout=420,
            )
            assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    python = target / "bin" / "python"
    assert not list(target.glob("lib/*/site-packages/torch")), "no training package in the image"
    check_served(python, tmp_path)


def check_served(python: Path, folder: Path) -> None:
    """The entry point answers a ticket as in the image: another home, nothing of this repository in reach."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        "PATH": f"{python.parent}:/usr/bin:/bin",
        "HOME": "/nonexistent",
        "OMP_NUM_THREADS": "1",
        "LARKFIELD_PORT": str(port),
        "LARKFIELD_FEEDBACK_URL": f"sqlite:///{folder / 'feedback.db'}",
    }
    [health] = [rest for word, rest in instructions(DOCKERFILES["cpu"]) if word == "HEALTHCHECK"]
    check = yaml.safe_load(health.partition("CMD ")[2])
    server = subprocess.Popen(
        [python, "-m", "service"],
        env=environment,
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=(folder / "log").open("wb"),
    )
    try:
        deadline = time.monotonic() + 60
        while subprocess.run([python, *check[1:]], env=environment, capture_output=True).returncode:
            assert server.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, "the health check never turned green"
            time.sleep(0.2)
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/route",
            b'{"text": "I was charged two times for one order"}',
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as response:
            assert response.status == 200
    finally:
        os.kill(server.pid, signal.SIGTERM)
        server.wait(30)
    assert server.returncode == 0
