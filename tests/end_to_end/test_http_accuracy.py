"""The real server over HTTP gives exactly the accuracy that `training.evaluate` prints."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.conftest import ROOT, Running, launch


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory, shipped_bundle: Path) -> Iterator[Running]:
    running = launch(tmp_path_factory.mktemp("server"), bundle=shipped_bundle)
    yield running
    running.process.kill()
    running.process.wait()


def test_600_tickets_over_http(
    shipped: Running, shared_data: Path, shipped_bundle: Path, larkfield: dict[str, list[dict[str, str]]]
) -> None:
    data = shared_data / "larkfield" / "valid.csv"
    command = [sys.executable, "-m", "training.evaluate", "--bundle", str(shipped_bundle), "--json"]
    printed = subprocess.run(
        [*command, "--data", str(data)], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    evaluation = json.loads(printed.stdout)
    right = routed = 0
    for row in larkfield["valid"]:
        answer = shipped.route(row["text"], ticket_id=row["ticket_id"]).json()
        assert answer["ticket_id"] == row["ticket_id"]
        right += answer["team"] == row["team"]
        routed += answer["decision"] == "route"
    assert len(larkfield["valid"]) == evaluation["tickets"] == 600
    assert right / 600 == evaluation["accuracy"]
    # A confidence may equal the threshold up to the last bits, which batching changes.
    assert abs(routed - 600 * evaluation["coverage"]) <= 1.01


def test_batches_and_streams_say_the_same(
    shipped: Running, larkfield: dict[str, list[dict[str, str]]]
) -> None:
    """Batching pads and reorders; no ticket's answer may depend on its company."""
    rows = larkfield["valid"][:200]
    tickets = [{"ticket_id": row["ticket_id"], "text": row["text"]} for row in rows]
    alone = [shipped.call("POST", "/route", ticket).json() for ticket in tickets]
    batch = shipped.call("POST", "/route/batch", {"tickets": tickets}).json()["results"]
    lines = "\n".join(map(json.dumps, tickets)).encode()
    stream = shipped.call(
        "POST", "/route/stream", lines, content_type="application/x-ndjson"
    ).body.splitlines()
    for one, two, three in zip(alone, batch, map(json.loads, stream), strict=True):
        for other in (two, three):
            assert (other["ticket_id"], other["team"]) == (one["ticket_id"], one["team"])
            assert other["probabilities"] == pytest.approx(one["probabilities"], abs=1e-5)


def test_the_doubly_charged_customer_goes_to_payment(
    shipped: Running, larkfield: dict[str, list[dict[str, str]]]
) -> None:
    (text,) = (row["text"] for row in larkfield["valid"] if row["ticket_id"] == "T-65052")
    answer = shipped.route(text, ticket_id="T-65052").json()
    assert answer["team"] == "payment"
    assert answer["tokens"]["count"] == 30
