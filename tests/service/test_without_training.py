"""The service starts where torch, onnx and scikit-learn are not installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
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


@pytest.mark.slow
def test_a_fresh_environment_with_what_serving_needs(
    tmp_path: Path, shipped_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "environment"
    venv.create(home, with_pip=True)
    copy = tmp_path / "project"
    for name in ("service", "models", "training", "kernels"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "constraints.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    python = home / "bin" / "python"
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    install = [python, "-m", "pip", "install", "-q", "-c", "constraints.txt", "."]
    subprocess.run(install, cwd=copy, check=True, timeout=500, env=clean)
    listed = subprocess.run(
        [python, "-m", "pip", "list", "--format=freeze"],
        capture_output=True,
        text=True,
        check=True,
        env=clean,
    ).stdout
    installed = {line.partition("==")[0].lower() for line in listed.splitlines()}
    assert not installed & {"torch", "onnx", "scikit-learn", "pandas"}
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    running = launch(tmp_path, bundle=shipped_bundle, cwd=tmp_path)
    try:
        assert running.route("My card was charged twice for one order").json()["team"] == "payment"
        assert running.call("GET", "/").status == 200
    finally:
        running.process.kill()
        running.process.wait()
