"""What every room's tests share: where the labelled tickets lie, and which tools this machine has."""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

import models  # noqa: F401  switches the telemetry of libraries off

# Continuous integration tries the same examples each time; a person's run tries new ones. No deadline: a busy
# machine is slow, which says nothing about the code.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("person", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "person")

ROOT = Path(__file__).parents[1]
SHARED_DATA = ROOT.parent / "shared" / "data"


@pytest.fixture(scope="session", autouse=True)
def _state_folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Servers that tests start keep their feedback database here, not in the user's own folder."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of labelled tickets beside the repository; tests that need it are skipped without it."""
    if not SHARED_DATA.is_dir():
        pytest.skip("the labelled tickets in ../shared/data are not here")
    return SHARED_DATA


@pytest.fixture(scope="session")
def larkfield(shared_data: Path) -> dict[str, list[dict[str, str]]]:
    """Larkfield's tickets: {"train": rows, "valid": rows}, each row {ticket_id, text, team, style}."""
    tickets = {}
    for split in ("train", "valid"):
        with (shared_data / "larkfield" / f"{split}.csv").open(newline="", encoding="utf-8") as file:
            tickets[split] = list(csv.DictReader(file))
    return tickets


@pytest.fixture(scope="session")
def shipped_bundle() -> Path:
    """The bundle that `make serve` starts with."""
    return ROOT / "models" / "larkfield"


@pytest.fixture(scope="session")
def tool() -> Callable[[str], str]:
    """tool("wrk") -> its path; the test skips where it is not installed."""

    def find(name: str) -> str:
        path = shutil.which(name)
        if path is None:
            pytest.skip(f"{name} is not installed here")
        return path

    return find
