"""The precision of a bundle: chosen by a setting, stated in every answer, refused if it cannot be shown."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from models.bundle import BundleError
from models.tradeoff import Choice, Tradeoff
from service.app import create_app
from service.inference.runtime import Runtime
from service.settings import Settings
from tests.service.conftest import make_bundle, until


def choice(precision: float, score: float, coverage: float) -> Choice:
    routed = [round(100 * coverage), round(60 * coverage), 0]
    return Choice(
        precision=precision,
        score=score,
        coverage=coverage,
        at_least=precision - 0.04,
        doubtful=0.1,
        team_routed=routed,
        team_at_least=[0.9, 0.8, 0.0],
    )


TRADEOFF = Tradeoff(
    tickets=200,
    team_tickets=[100, 60, 40],
    shifts=[2.0, 0.0, -1.0],
    choices=[
        choice(0.9, 1.0, 0.6),
        choice(0.95, 2.0, 0.3),
        choice(0.98, 9.0, 0.02),
        Choice(precision=0.99),
    ],
)


@pytest.fixture(scope="module")
def with_tradeoff(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bundle(tmp_path_factory.mktemp("bundles") / "traded", tradeoff=TRADEOFF)


def settings(bundle: Path, precision: float | None = None) -> Settings:
    return Settings(bundle=bundle, provider="cpu", precision=precision, feedback_url="off")


@contextmanager
def serving(settings: Settings) -> Iterator[TestClient]:
    """A client of an application whose bundle is loaded."""
    with TestClient(create_app(settings), base_url="http://localhost") as client:
        until(lambda: client.get("/readyz").status_code == 200, "the bundle is loaded")
        yield client


@pytest.fixture(scope="module")
def client(with_tradeoff: Path) -> Iterator[TestClient]:
    with serving(settings(with_tradeoff)) as client:
        yield client


def test_every_answer_says_what_its_team_had_to_reach(client: TestClient) -> None:
    delivery = client.post("/route", json={"text": "parcel late"}).json()
    assert delivery["precision"] == 0.95  # the default: .98 routes too few
    assert delivery["threshold"] == pytest.approx(0.5)  # log-odds of 2.0 - 2.0
    assert delivery["decision"] == "route"
    payment = client.post("/route", json={"text": "card"}).json()
    assert payment["threshold"] == pytest.approx(0.880797)
    assert payment["confidence"] == pytest.approx(delivery["threshold"] + 0.4, abs=0.2)
    assert (payment["decision"] == "route") == (payment["confidence"] >= payment["threshold"])


def test_a_setting_chooses_another_precision(with_tradeoff: Path) -> None:
    with serving(settings(with_tradeoff, 0.9)) as client:
        answer = client.post("/route", json={"text": "card"}).json()
        assert (answer["precision"], answer["threshold"]) == (0.9, pytest.approx(0.731059))
        assert client.get("/tradeoff").json()["precision"] == 0.9


@pytest.mark.parametrize("precision", [0.99, 0.995])
def test_what_cannot_be_shown_is_refused_with_what_can(with_tradeoff: Path, precision: float) -> None:
    with pytest.raises(BundleError) as refused:
        Runtime.load(with_tradeoff, settings(with_tradeoff, precision))
    told = {
        0.99: "200 validation tickets cannot show a precision of 0.99; they can: 0.98 routes 2.0%; "
        "0.95 routes 30.0%; 0.9 routes 60.0%",
        0.995: "a precision of 0.995 is more than validation tickets can show; "
        "the highest to ask for is 0.99",
    }
    assert refused.value.reason == told[precision]


def test_a_bundle_without_a_trade_off_serves_as_before_and_no_other_precision(bundle: Path) -> None:
    with serving(settings(bundle)) as client:
        answer = client.post("/route", json={"text": "parcel late"}).json()
        assert (answer["threshold"], answer["precision"]) == (0.7, 0.99)
        document = client.get("/tradeoff").json()
        assert (document["tickets"], document["choices"], document["caution"]) == (None, [], "")
        assert [one["threshold"] for one in document["teams"]] == [0.7] * 3
    with pytest.raises(BundleError, match="has only one threshold"):
        Runtime.load(bundle, settings(bundle, 0.9))


def test_a_precision_that_routes_nearly_nothing_is_told(
    with_tradeoff: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="larkfield.runtime"):
        runtime = Runtime.load(with_tradeoff, settings(with_tradeoff, 0.98))
    assert "0.98 routes only 2.0%" in runtime.caution
    assert [record.message for record in caplog.records] == ["few or no tickets will be routed"]


def test_the_table_is_there_to_read(client: TestClient) -> None:
    document = client.get("/tradeoff").json()
    assert (document["precision"], document["tickets"], document["caution"]) == (0.95, 200, "")
    assert [one["precision"] for one in document["choices"]] == [0.9, 0.95, 0.98]
    assert document["choices"][1] == {
        "precision": 0.95,
        "coverage": 0.3,
        "at_least": pytest.approx(0.91),
        "wrong_per_hour": 2.0,
    }
    assert document["teams"][0] == {
        "team": "delivery",
        "threshold": pytest.approx(0.5),
        "tickets": 100,
        "routed": 30,
        "at_least": 0.9,
    }


def test_nothing_routed_has_no_threshold(tmp_path: Path) -> None:
    """Such a bundle comes from a small file: everything goes to review, and each answer says that."""
    nothing = Tradeoff(
        tickets=6,
        team_tickets=[2, 2, 2],
        choices=[Choice(precision=precision) for precision in (0.9, 0.95, 0.98, 0.99)],
    )
    with serving(settings(make_bundle(tmp_path / "small", tradeoff=nothing))) as client:
        answer = client.post("/route", json={"text": "parcel late parcel"}).json()
        assert (answer["decision"], answer["reasons"]) == ("review", ["low_confidence"])
        assert answer["threshold"] is None
        document = client.get("/tradeoff").json()
        assert "cannot show a precision of 0.9" in document["caution"]
        assert document["teams"][0]["threshold"] is None


def test_the_table_names_teams_and_so_needs_a_key(with_tradeoff: Path) -> None:
    keyed = Settings(bundle=with_tradeoff, provider="cpu", api_keys="secret", feedback_url="off")
    with serving(keyed) as client:
        assert client.get("/tradeoff").status_code == 401
        assert client.get("/tradeoff", headers={"x-api-key": "secret"}).status_code == 200
