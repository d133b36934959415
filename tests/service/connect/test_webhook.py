"""The web server: what is stored, what is refused, and how that is counted."""

from __future__ import annotations

import base64
import hmac
import json
import re
import sqlite3
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from service.connect import webhook
from service.connect.signatures import admits
from service.connect.webhook import Receiver, create_app
from tests.service.conftest import ROOT
from tests.service.connect.conftest import Bench

SECRET = "only-for-tests"
BODY = json.dumps({"ticket": 7, "version": "1"}).encode()
SIGNED = {"X-Hub-Signature": "sha256=" + hmac.new(SECRET.encode(), BODY, "sha256").hexdigest()}


@pytest.fixture
def client(bench: Bench) -> TestClient:
    receivers = {
        "desk": Receiver(bench.desk, "sha256", SECRET, bench.worker.wake.set),
        "searched": Receiver(bench.desk, "sha256", None, bench.worker.wake.set),
    }
    return TestClient(create_app(receivers, bench.store, bench.metrics), raise_server_exceptions=False)


def test_a_signed_event_is_stored_once(bench: Bench, client: TestClient) -> None:
    answers = [client.post("/webhook/desk", content=BODY, headers=SIGNED).json()["status"] for _ in range(2)]
    assert answers == ["stored", "repeated"]
    assert bench.store.counts() == {("desk", "waiting"): 1}
    assert bench.worker.wake.is_set()


def test_the_event_is_in_the_file_when_it_is_acknowledged(bench: Bench, client: TestClient) -> None:
    client.post("/webhook/desk", content=BODY, headers=SIGNED)
    with sqlite3.connect(bench.store.path) as other:
        assert other.execute("SELECT ticket, state FROM events").fetchall() == [("7", "waiting")]


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "reason"),
    [
        ("desk", BODY, {}, 401, "signature"),
        ("desk", BODY + b" ", SIGNED, 401, "signature"),
        ("desk/another-secret", BODY, {}, 401, "signature"),
        ("searched", BODY, SIGNED, 403, "signature"),
        ("desk/" + SECRET, b"<html>", {}, 422, "not_json"),
        ("desk/" + SECRET, b"[" * 100_000, {}, 422, "not_json"),
        ("desk/" + SECRET, b'{"other": 1}', {}, 422, "unknown_event"),
        ("desk/" + SECRET, b"[]", {}, 422, "unknown_event"),
        ("desk/" + SECRET, b'{"ticket": "\\ud800"}', {}, 422, "unknown_event"),
        ("desk/" + SECRET, b'{"ticket": "' + b"7" * 1000 + b'"}', {}, 422, "unknown_event"),
        ("desk/" + SECRET, b"x" * 9_000_000, {}, 413, "too_large"),
        ("nobody", BODY, {}, 404, "unknown_desk"),
    ],
)
def test_what_is_refused_says_why_and_is_counted(
    bench: Bench,
    client: TestClient,
    path: str,
    body: bytes,
    headers: dict[str, str],
    status: int,
    reason: str,
) -> None:
    answer = client.post(f"/webhook/{path}", content=body, headers=headers)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"]
    assert bench.store.counts() == {}
    name = {"searched": "searched", "nobody": ""}.get(path, "desk")
    labels = {"desk": name, "reason": reason}
    assert bench.metrics.registry.get_sample_value("larkfield_connect_refused_total", labels) == 1


@pytest.mark.parametrize("error", [KeyError("id"), TypeError(), AttributeError(), ValueError()])
def test_a_body_of_another_shape_than_documented_is_an_unknown_event(
    bench: Bench, client: TestClient, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def read_event(_: object) -> None:
        raise error

    monkeypatch.setattr(bench.desk, "read_event", read_event)
    answer = client.post(f"/webhook/desk/{SECRET}", content=BODY)
    assert answer.status_code == 422
    assert type(error).__name__ in answer.json()["detail"]
    assert bench.count("refused_total", reason="unknown_event") == 1


def test_a_store_that_fails_is_503_so_that_the_desk_sends_again(
    bench: Bench, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(bench.store, "add", full)
    answer = client.post("/webhook/desk", content=BODY, headers=SIGNED)
    assert answer.status_code == 503
    assert answer.headers["retry-after"]


def test_metrics_say_how_far_behind_the_connector_is(bench: Bench, client: TestClient) -> None:
    client.post("/webhook/desk", content=BODY, headers=SIGNED)
    bench.clock.now += 90
    lines = client.get("/metrics").text.splitlines()
    assert 'larkfield_connect_seconds_behind{desk="desk"} 90.0' in lines
    assert 'larkfield_connect_waiting{desk="desk"} 1.0' in lines


def test_signatures_of_the_desks() -> None:
    key = SECRET.encode()
    sha1 = "sha1=" + hmac.new(key, BODY, "sha1").hexdigest()
    assert admits("sha1", SECRET, {"x-hub-signature": sha1}, BODY, None)
    assert not admits("sha1", SECRET, {"x-hub-signature": sha1}, BODY + b" ", None)
    moment = "2026-11-03T11:51:13Z"
    signed = base64.b64encode(hmac.new(key, moment.encode() + BODY, "sha256").digest()).decode()
    names = ("x-zendesk-webhook-signature", "x-zendesk-webhook-signature-timestamp")
    assert admits("zendesk", SECRET, dict(zip(names, (signed, moment), strict=True)), BODY, None)
    later = dict(zip(names, (signed, "2026-11-03T11:51:14Z"), strict=True))
    assert not admits("zendesk", SECRET, later, BODY, None)
    assert not admits("zendesk", SECRET, {names[0]: signed}, BODY, None)
    assert admits("none", SECRET, {"authorization": f"Bearer {SECRET}"}, BODY, None)
    basic = base64.b64encode(f"desk:{SECRET}".encode()).decode()
    assert admits("none", SECRET, {"authorization": f"Basic {basic}"}, BODY, None)
    assert not admits("none", SECRET, {"authorization": "Basic %%%", "x-api-key": "wrong"}, BODY, "")


def test_a_body_that_comes_too_slowly_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import asyncio

    from starlette.requests import Request

    async def never() -> dict[str, object]:
        await asyncio.sleep(3600)
        raise AssertionError

    monkeypatch.setattr(webhook, "BODY_SECONDS", 0.01)
    request = Request({"type": "http", "method": "POST", "headers": []}, never)  # type: ignore[arg-type]
    with pytest.raises(webhook.Refused, match="did not come within"):
        asyncio.run(webhook._body(request))


def test_the_metrics_that_the_connectors_alerts_read_exist(client: TestClient) -> None:
    rules = (ROOT / "deploy" / "prometheus" / "rules" / "alerts.yml").read_text(encoding="utf-8")
    read = set(re.findall(r"larkfield_connect_\w+", rules))
    assert len(read) == 2
    exported = client.get("/metrics").text
    for name in read:
        assert f'\n{name}{{desk="desk"}} ' in exported, name
