"""The service and training report nothing to anyone: no name lookups, no files in the home folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from models.telemetry import SWITCHES
from service.tools.processes import ROOT, Process

# What a process does with sockets; an address of IPv4 or IPv6 that is not this machine's own is a finding.
WATCH = ["strace", "-f", "--seccomp-bpf", "-qq", "-e", "trace=connect,sendto,sendmsg,sendmmsg", "-s", "256"]
ADDRESS = re.compile(r'inet_addr\("([^"]+)"\)|inet_pton\(AF_INET6, "([^"]+)"')
HERE = ("127.", "::1", "0.0.0.0")


def lookups(trace: Path) -> list[str]:
    """The lines of a trace that name another machine (a name server too)."""
    found = []
    for line in trace.read_text(errors="replace").splitlines():
        match = ADDRESS.search(line)
        if match and not (match[1] or match[2]).startswith(HERE):
            found.append(line)
    return found


def without_switches(home: Path) -> dict[str, str]:
    """A user's environment: nothing switched off, a home folder of its own."""
    names = ("XDG_", "LARKFIELD_", *SWITCHES)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    return kept | {"HOME": str(home), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def traced(tool: Callable[[str], str], trace: Path) -> list[str]:
    tool("strace")
    if subprocess.run([*WATCH, "-o", str(trace), "true"], capture_output=True).returncode:
        pytest.skip("strace may not watch processes here")
    return [*WATCH, "-o", str(trace)]


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_the_service_looks_up_no_names_and_writes_only_its_feedback(
    tool: Callable[[str], str], tmp_path: Path, shipped_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, trace = tmp_path / "home", tmp_path / "trace"
    home.mkdir()
    for name in list(os.environ):
        if name.startswith(("XDG_", "LARKFIELD_", *SWITCHES)):
            monkeypatch.delenv(name)
    command = [*traced(tool, trace), sys.executable, "-m", "service", "--port", "{port}"]
    environment = without_switches(home) | {"LARKFIELD_BUNDLE": str(shipped_bundle)}
    with Process("service", command, environment, folder=tmp_path / "run", ready_path="/readyz") as server:
        body = b'{"ticket_id": "T-1", "text": "my card was charged twice", "explain": "tokens"}'
        request = urllib.request.Request(server.url + "/route", body, {"content-type": "application/json"})
        urllib.request.urlopen(request, timeout=60).close()
    assert lookups(trace) == []
    state = "larkfield/feedback.db"
    left = {name.removesuffix("-wal").removesuffix("-shm") for name in files_in(home)}
    assert {name.split(".local/state/")[-1] for name in left} <= {state}, left


READS_A_GRAPH = """
import sys
import training.train, training.evaluate, training.report
import onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
"""


def test_training_looks_up_no_names_and_writes_nothing_about_itself(
    tool: Callable[[str], str], tmp_path: Path, shipped_bundle: Path
) -> None:
    pytest.importorskip("torch", reason="the extra `train` is not installed")
    home, trace = tmp_path / "home", tmp_path / "trace"
    home.mkdir()
    command = [*traced(tool, trace), sys.executable, "-c", READS_A_GRAPH, str(shipped_bundle / "model.onnx")]
    subprocess.run(command, env=without_switches(home), cwd=ROOT, check=True, capture_output=True)
    assert lookups(trace) == []
    assert not [name for name in files_in(home) if "matplotlib" not in name]


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.gpu"])
def test_images_switch_telemetry_off(name: str) -> None:
    text = (ROOT / "deploy" / "docker" / name).read_text(encoding="utf-8")
    for switch in ("ORT_DISABLE_TELEMETRY", "HF_HUB_DISABLE_TELEMETRY", "DO_NOT_TRACK"):
        assert f"{switch}={SWITCHES[switch]}" in text


def test_grafana_contacts_nobody() -> None:
    compose = yaml.safe_load((ROOT / "deploy" / "docker" / "compose.yaml").read_text(encoding="utf-8"))
    settings = compose["services"]["grafana"]["environment"]
    off = ("ANALYTICS_REPORTING", "ANALYTICS_CHECK_FOR_UPDATES", "ANALYTICS_CHECK_FOR_PLUGIN_UPDATES", "NEWS")
    for name in off:
        assert [value for key, value in settings.items() if key.startswith(f"GF_{name}")] == ["false"], name
    assert settings["GF_SECURITY_DISABLE_GRAVATAR"] == "true"
    assert settings["GF_PLUGINS_PREINSTALL_DISABLED"] == "true"


def test_make_switches_telemetry_off() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for name, value in SWITCHES.items():
        assert f"export {name} ?= {value}" in makefile
