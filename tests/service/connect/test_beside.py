"""LARKFIELD_CONNECT: the connector runs beside the service and ends with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("httpx", reason="the extra `client` (httpx) is not installed")

from service.tools.processes import free_port, wait_for
from tests.service.conftest import ROOT, Running

CONFIG = """
[connect]
port = {port}
[desks.mine]
kind = "generic"
url = "http://127.0.0.1:9"
entry = ["inbox"]
webhook_secret_env = "WEBHOOK_SECRET"
[desks.mine.teams]
payment = "billing"
[desks.mine.generic]
ticket = "id"
"""


def healthy(port: int) -> bool:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
        return bool(answer.status == 200)


def test_it_takes_webhooks_and_ends_with_the_service(tmp_path: Path, start: Callable[..., Running]) -> None:
    port = free_port()
    (tmp_path / "connect.toml").write_text(CONFIG.format(port=port))
    server = start(connect=tmp_path / "connect.toml", WEBHOOK_SECRET="only-for-tests")
    wait_for("the connector", lambda: healthy(port))
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/webhook/mine", b'{"id": 7}', {"X-API-Key": "only-for-tests"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert json.load(answer) == {"status": "stored"}
    server.stop()
    with pytest.raises(OSError):
        healthy(port)


def test_a_wrong_configuration_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "connect.toml").write_text('[desks.mine]\nkind = "generic"\n')
    done = subprocess.run(
        [sys.executable, "-m", "service", "--port", "0"],
        cwd=ROOT,
        env=os.environ | {"LARKFIELD_CONNECT": str(tmp_path / "connect.toml")},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert "desks.mine.url: is missing" in done.stderr
