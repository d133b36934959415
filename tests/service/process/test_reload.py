"""Another bundle without a pause: for all workers or for none, and back again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.service.conftest import ROOT, Reply, Running, until
from tests.service.process.test_workers import Load, children

ADMIN = {"x_api_key": "chief"}


def reload(running: Running, **order: Any) -> Reply:
    return running.call("POST", "/admin/reload", order, **ADMIN)


def versions(running: Running, times: int = 12) -> set[str]:
    """Versions that answer on fresh connections, which the kernel spreads over the workers."""
    return {running.route("parcel").json()["model"]["version"] for _ in range(times)}


@pytest.mark.parametrize("workers", [1, 2])
def test_switch_refuse_and_go_back(
    start: Callable[..., Running], second_bundle: Path, tmp_path: Path, workers: int
) -> None:
    running = start(workers=workers, admin_key="chief")
    until(lambda: running.metrics().get("larkfield_ready_workers") == workers, "all workers are ready")
    assert versions(running) == {"1"}

    done = reload(running, bundle=str(second_bundle))
    assert done.status == 200
    assert done.json() == {
        "model": {"name": "small", "version": "2"},
        "previous": {"name": "small", "version": "1"},
        "workers": workers,
    }
    assert versions(running) == {"2"}
    assert running.call("GET", "/readyz").json()["model"]["version"] == "2"

    broken = tmp_path / "broken"
    shutil.copytree(second_bundle, broken)
    with (broken / "model.onnx").open("ab") as file:
        file.write(b"x")
    refused = reload(running, bundle=str(broken))
    assert refused.status == 409
    assert "model.onnx" in refused.json()["detail"]
    assert str(tmp_path) not in refused.json()["detail"]
    missing = reload(running, bundle=str(tmp_path / "nothing"))
    assert missing.status == 409
    assert str(tmp_path) not in missing.json()["detail"]
    assert versions(running) == {"2"}

    assert reload(running, previous=True).json()["model"]["version"] == "1"
    assert versions(running) == {"1"}
    assert reload(running, previous=True).json()["model"]["version"] == "2"

    metrics = running.metrics()
    assert metrics['larkfield_reloads_total{outcome="switched"}'] == 3 * workers
    assert metrics['larkfield_reloads_total{outcome="refused"}'] == 2
    assert metrics['larkfield_bundle_info{name="small",provider="CPU",version="2"}'] == workers
    assert metrics['larkfield_bundle_info{name="small",provider="CPU",version="1"}'] == 0


def test_an_order_that_makes_no_sense_is_refused(start: Callable[..., Running], tmp_path: Path) -> None:
    running = start(admin_key="chief")
    for order in ({"bundle": ""}, {"bundle": "a\0b"}, {"bundle": "a", "previous": True}, {"previous": 1}):
        assert reload(running, **order).status == 422
    for body in (b"", b"{", b"\xff", b"[" * 20_000):
        reply = running.call("POST", "/admin/reload", body, **ADMIN)
        assert reply.status == 422
        assert [error["field"] for error in reply.json()["errors"]] == ["body"]
    assert running.call("POST", "/admin/reload", b"{}", content_type="text/plain", **ADMIN).status == 415
    for folder in (tmp_path, Path("/"), Path("/dev/null"), tmp_path / ("x" * 300)):
        refused = reload(running, bundle=str(folder))
        assert refused.status == 409
        assert str(tmp_path) not in refused.json()["detail"]
    assert running.route("parcel").status == 200


def test_there_may_be_nothing_to_go_back_to(start: Callable[..., Running]) -> None:
    running = start(admin_key="chief")
    refused = reload(running, previous=True)
    assert refused.status == 409
    assert "no previous bundle" in refused.json()["detail"]
    assert reload(running, bundel="x").status == 422


def test_reloads_under_load_fail_nothing(
    start: Callable[..., Running], bundle: Path, second_bundle: Path
) -> None:
    running = start(workers=2, admin_key="chief")
    with Load(running.port, clients=4) as load:
        until(lambda: load.outcomes["200"] > 20, "load")
        for number in range(20):
            assert reload(running, bundle=str((second_bundle, bundle)[number % 2])).status == 200
    assert set(load.outcomes) == {"200"}
    assert set(load.versions) == {"1", "2"}


def test_a_replaced_worker_serves_what_the_others_serve(
    start: Callable[..., Running], second_bundle: Path
) -> None:
    running = start(workers=2, admin_key="chief")
    assert reload(running, bundle=str(second_bundle)).status == 200
    before = {child.pid for child in children(running)}
    os.kill(min(before), signal.SIGKILL)
    until(lambda: len({c.pid for c in children(running)} - before) == 1, "a new worker is there")
    until(lambda: running.metrics().get("larkfield_ready_workers") == 2, "both workers are ready")
    assert versions(running) == {"2"}
    # The new one never had the first bundle in memory, and goes back all the same.
    assert reload(running, previous=True).json()["model"]["version"] == "1"
    assert versions(running) == {"1"}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_link_that_leads_elsewhere_is_followed(
    start: Callable[..., Running], bundle: Path, second_bundle: Path, tmp_path: Path, workers: int
) -> None:
    link = tmp_path / "current"
    link.symlink_to(bundle)
    running = start(workers=workers, bundle=link, bundle_watch_seconds=0.1, admin_key="chief")
    until(lambda: running.metrics().get("larkfield_ready_workers") == workers, "all workers are ready")
    assert versions(running) == {"1"}
    other = tmp_path / "next"
    other.symlink_to(second_bundle)
    other.replace(link)
    until(lambda: versions(running) == {"2"}, "the new bundle answers")
    assert reload(running, previous=True).json()["model"]["version"] == "1"


def test_one_command_switches_and_goes_back(start: Callable[..., Running], second_bundle: Path) -> None:
    running = start(admin_key="chief")

    def command(*flags: str, key: str = "chief") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "service.reload", "--url", running.url, *flags],
            cwd=ROOT,
            env=os.environ | {"LARKFIELD_ADMIN_KEY": key},
            capture_output=True,
            text=True,
            timeout=240,
        )

    assert command("--bundle", str(second_bundle)).returncode == 0
    assert versions(running) == {"2"}
    assert command("--previous").returncode == 0
    assert versions(running) == {"1"}
    wrong = command("--previous", key="nobody")
    assert wrong.returncode == 1
    assert "key" in wrong.stderr


def test_a_bundle_that_is_still_being_copied_is_tried_again(
    start: Callable[..., Running], bundle: Path, second_bundle: Path, tmp_path: Path
) -> None:
    served = tmp_path / "served"
    shutil.copytree(bundle, served)
    running = start(bundle=served, bundle_watch_seconds=0.1)
    model = (second_bundle / "model.onnx").read_bytes()
    (served / "model.onnx").write_bytes(model[:100])
    for name in ("tokenizer.json", "MODEL_CARD.md", "config.json"):
        shutil.copy(second_bundle / name, served / name)
    name = 'larkfield_reloads_total{outcome="refused"}'
    until(lambda: running.metrics()[name] >= 1, "half of it is refused")
    (served / "model.onnx").write_bytes(model)
    until(lambda: versions(running) == {"2"}, "the whole of it answers")


def test_reloads_at_the_same_time_are_no_failures(start: Callable[..., Running], bundle: Path) -> None:
    running = start(workers=2, admin_key="chief")
    until(lambda: running.metrics().get("larkfield_ready_workers") == 2, "both workers are ready")
    with ThreadPoolExecutor(6) as pool:
        statuses = list(pool.map(lambda _: reload(running, bundle=str(bundle)).status, range(12)))
    assert 200 in statuses
    assert set(statuses) <= {200, 409}
    assert running.metrics().get('larkfield_reloads_total{outcome="refused"}', 0) == 0
