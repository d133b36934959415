"""The next start removes temporary folders of killed processes, and keeps those of running ones."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from service.observe.metrics import PREFIX
from service.observe.temporary_folder import TemporaryFolder
from tests.service.conftest import ROOT, Running


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def left_by_the_dead(folder: Path) -> Path:
    """A scratch folder whose process ended at once."""
    code = (
        "import os; from service.observe.temporary_folder import TemporaryFolder; x = TemporaryFolder('try-')"
    )
    code += "; print(x.path, flush=True); os.abort()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode < 0
    return Path(done.stdout.strip())


def test_what_the_dead_left_goes_and_what_the_living_hold_stays(temporary: Path) -> None:
    dead = left_by_the_dead(temporary)
    (dead / "counter_0.db").write_bytes(b"x")
    living = TemporaryFolder("try-")
    assert not dead.exists()
    another = TemporaryFolder("try-")
    assert living.path.is_dir()
    living.remove()
    living.remove()
    assert not living.path.exists()
    assert another.path.is_dir()


def test_nothing_else_is_touched(temporary: Path) -> None:
    outside = temporary / "outside"
    outside.mkdir()
    (outside / "held").touch()
    (temporary / "try-link").symlink_to(outside)
    (temporary / "try-file").touch()
    (temporary / "try-without-a-lock").mkdir()
    with_link = temporary / "try-with-a-link"
    with_link.mkdir()
    (with_link / "held").symlink_to(outside / "held")
    other = temporary / "other-prefix"
    other.mkdir()
    (other / "held").touch()
    before = sorted(temporary.rglob("*"))
    TemporaryFolder("try-").remove()
    assert sorted(temporary.rglob("*")) == before


def test_a_folder_goes_with_the_last_reference(temporary: Path) -> None:
    scratch = TemporaryFolder("try-")
    path = scratch.path
    del scratch
    assert not path.exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_service_leaves_nothing_for_long(
    start: Callable[..., Running], tmp_path: Path, workers: int
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    killed = start(workers=workers, TMPDIR=shared)
    everyone = psutil.Process(killed.process.pid).children(recursive=True)
    assert len(list(shared.glob(f"{PREFIX}*"))) == 1
    killed.process.kill()
    killed.process.wait()
    psutil.wait_procs(everyone, timeout=240)
    running = start(workers=workers, TMPDIR=shared)
    assert running.route("parcel").status == 200
    assert len(list(shared.glob(f"{PREFIX}*"))) == 1
    assert running.stop() == 0
    assert not list(shared.glob(f"{PREFIX}*"))
