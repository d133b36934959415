"""Each part runs with what its extra installs: the service without torch, the client without ONNX Runtime."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

from tests.service.conftest import ROOT, launch

BLOCK = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in "torch onnx onnxscript sklearn pandas matplotlib pyarrow".split():
            raise ModuleNotFoundError(f"{name} is not installed", name=name)
sys.meta_path.insert(0, Blocker())
"""


def test_no_part_of_the_service_needs_the_training_stack(shipped_bundle: Path) -> None:
    script = (
        BLOCK
        + f"""
from pathlib import Path
from service.app import create_app
from service.settings import Settings
app = create_app(Settings(feedback_url="off"))
app.state.service.swap(app.state.service.load(Path({str(shipped_bundle)!r})))
print(app.state.service.runtime.name, len(app.openapi()["paths"]))
"""
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("larkfield ")


def without(extra: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m command` without the packages that serving needs and this extra does not bring."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    serve, kept = (
        {re.split(r"[\[<>=;]", line)[0] for line in lines} for lines in (extras["serve"], extras[extra])
    )
    away = {name.replace("-", "_") for name in serve - kept} - {"onnxruntime_gpu"} | {"onnxruntime"}
    if "pydantic-settings" not in kept:
        away.add("pydantic")
    script = BLOCK.replace('"torch onnx onnxscript sklearn pandas matplotlib pyarrow".split()', repr(away))
    script += (
        f"import runpy; sys.argv = {list(command)!r}; runpy.run_module({command[0]!r}, run_name='__main__')"
    )
    return subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize(
    ("extra", "command"),
    [("client", "service.client"), ("connect", "service.connect"), ("connect", "service.client")],
)
def test_an_extra_brings_what_its_command_needs(extra: str, command: str) -> None:
    done = without(extra, command, "--help")
    assert done.returncode == 0, done.stderr
    assert f"usage: python -m {command}" in done.stdout


def test_the_connector_takes_webhooks_with_what_its_extra_brings(tmp_path: Path) -> None:
    config = tmp_path / "connect.toml"
    config.write_text(
        '[router]\nurl = "http://127.0.0.1:1"\n[connect]\nport = 0\n'
        f'store = "{tmp_path / "connect.db"}"\n[desks.rt]\nkind = "rt"\nurl = "http://127.0.0.1:1"\n'
        'mode = "notes"\nentry = ["General"]\ntoken_env = "TOKEN"\n[desks.rt.teams]\npayment = "Payments"\n'
    )
    done = without("connect", "service.connect", "status", "--config", str(config))
    assert "ModuleNotFoundError" not in done.stderr
    assert "pip install" not in done.stderr


@pytest.mark.parametrize(
    ("command", "extra"),
    [("service", "serve"), ("service.connect", "connect")],
)
def test_a_command_without_its_packages_says_what_to_install(command: str, extra: str) -> None:
    done = without("client", command)
    assert done.returncode == 1
    (sentence,) = done.stderr.splitlines()
    assert sentence.endswith(f"pip install 'larkfield-router[{extra}]'")


def installed_by(home: Path, copy: Path, extra: str) -> set[str]:
    """Names of all packages after `pip install .[extra]` into a new environment at `home`."""
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    install = [python, "-m", "pip", "install", "-q", "-c", "constraints.txt", f".[{extra}]"]
    subprocess.run(install, cwd=copy, check=True, timeout=500, env=clean)
    listed = subprocess.run(
        [python, "-m", "pip", "list", "--format=freeze"],
        capture_output=True,
        text=True,
        check=True,
        env=clean,
    ).stdout
    return {line.partition("==")[0].lower() for line in listed.splitlines()}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what is installed."""
    copy = tmp_path / "project"
    for name in ("service", "models", "training", "kernels"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "constraints.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    return copy


@pytest.mark.slow
def test_a_fresh_environment_with_the_client_alone(tmp_path: Path, project: Path) -> None:
    installed = installed_by(tmp_path / "environment", project, "client")
    assert "httpx" in installed
    assert not {name for name in installed if name.startswith(("onnx", "numpy", "fastapi", "tokenizers"))}
    python = tmp_path / "environment" / "bin" / "python"
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    subprocess.run([python, "-c", "import service.client"], cwd=tmp_path, check=True, env=clean)


@pytest.mark.slow
def test_a_fresh_environment_with_what_serving_needs(
    tmp_path: Path, project: Path, shipped_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "environment"
    installed = installed_by(home, project, "serve")
    assert not installed & {"torch", "onnx", "scikit-learn", "pandas"}
    monkeypatch.setattr(sys, "executable", str(home / "bin" / "python"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    running = launch(tmp_path, bundle=shipped_bundle, cwd=tmp_path)
    try:
        assert running.route("My card was charged twice for one order").json()["team"] == "payment"
        assert running.call("GET", "/").status == 200
    finally:
        running.process.kill()
        running.process.wait()
