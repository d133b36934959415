"""The first bundle of a worker is loaded in the background; a reload may be faster."""

from __future__ import annotations

import threading
from pathlib import Path

from starlette.testclient import TestClient

from service.app import create_app
from service.inference.runtime import Runtime
from service.settings import Settings
from tests.service.conftest import until


def test_a_reload_that_is_faster_than_the_first_load_stays(bundle: Path, second_bundle: Path) -> None:
    app = create_app(Settings(bundle=bundle, provider="cpu", admin_key="chief", feedback_url="off"))
    service = app.state.service
    load, slow, loaded = service.load, threading.Event(), threading.Event()

    def load_slowly(folder: Path) -> Runtime:
        if folder != bundle:
            return load(folder)
        slow.wait(30)
        try:
            return load(folder)
        finally:
            loaded.set()

    service.load = load_slowly
    with TestClient(app, base_url="http://localhost") as client:
        answer = client.post(
            "/admin/reload", json={"bundle": str(second_bundle)}, headers={"x-api-key": "chief"}
        )
        assert answer.status_code == 200, answer.text
        slow.set()
        until(loaded.is_set, "the first bundle is loaded")
        for _ in range(20):  # time to swap it in
            assert client.get("/readyz").json()["model"]["version"] == "2"
