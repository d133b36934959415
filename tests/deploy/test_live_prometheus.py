"""The proof: a real Prometheus with the shipped files scrapes the real service with two workers under load.

Every panel's and every rule's expression is evaluated through Prometheus' API: each parses and returns data.
Then each alert is provoked. A test cannot wait for days, so it rewrites the rule files on their way, and only
there, as `hurried` says; promtool tests the shipped durations.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import signal
import sqlite3
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from models.bundle import CONFIG, load_bundle, seal
from service.tools import processes, watch
from service.tools.load import LABELLED, Helpdesk
from service.tools.processes import Process, wait_for
from service.tools.watch import Expression, Prometheus, expressions

DOUBTFUL = [
    ("Blorp fizzwick zanthor quibble nax, vorpal grume snee!", "account"),
    ("Refund the parcel, return the password, repair the invoice, deliver the account.", "returns"),
    ("Hello?", "delivery"),
]


class Live(NamedTuple):
    router: Process
    prometheus: Prometheus
    load: Helpdesk


@pytest.fixture(scope="module")
def live(
    tool: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory, shipped_bundle: Path
) -> Iterator[Live]:
    """Service, load and Prometheus, until there is enough to see."""
    tool("prometheus")
    folder = tmp_path_factory.mktemp("live")
    settings = {"workers": 2, "drift_seconds": 1, "drift_least": 50, "shadow_bundle": shipped_bundle}
    with processes.router(folder / "router", **settings) as router:
        with Prometheus(folder / "prometheus", [f"127.0.0.1:{router.port}"], every="1s") as prometheus:
            with Helpdesk(router.port, levels=("tokens",)) as load:
                wait_for(
                    "enough tickets and feedback",
                    lambda: (
                        prometheus.query("larkfield_feedback_accuracy{decision='route'} >= 0")
                        and prometheus.query("sum(larkfield_predictions_total) > 400")
                        and prometheus.query("larkfield_feedback_unknown_team > 0")
                        and prometheus.query("sum(larkfield_shadow_changes_total) >= 0 or vector(0)")
                    ),
                    300,
                )
                time.sleep(8)  # some scrapes and evaluations more
                yield Live(router, prometheus, load)


def finite(series: list[dict[str, Any]]) -> list[float]:
    values = [float(one["value"][1]) for one in series]
    return [value for value in values if math.isfinite(value)]


def test_both_workers_are_scraped_as_one_replica(live: Live) -> None:
    assert finite(live.prometheus.query('up{job="larkfield"}')) == [1]
    assert finite(live.prometheus.query("larkfield_ready_workers")) == [2]
    assert len(live.prometheus.query("larkfield_worker_memory_bytes")) == 2


@pytest.mark.parametrize(
    "each", list(expressions("10s", "1m")), ids=lambda each: f"{each.panel}: {each.legend or 'value'}"
)
def test_every_panel_shows_data(live: Live, each: Expression) -> None:
    if each.panel == "Where they differ":  # the shadow is the same bundle: it must parse, and show nothing
        assert live.prometheus.query(each.expression) == []
        return
    series = live.prometheus.query(each.expression)
    assert series, each.expression
    assert finite(series), (each.expression, series)


def test_every_rule_is_healthy_and_records_data(live: Live) -> None:
    rules = live.prometheus.rules()
    assert len(rules) >= 30
    unhealthy = {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"}
    assert not unhealthy
    for name in sorted({rule["name"] for rule in rules if rule["type"] == "recording"}):
        assert finite(live.prometheus.query(name)), name


def test_the_metrics_that_alerts_read_exist(live: Live) -> None:
    """An alert on a metric that nobody exports would be silent for ever.

    tests/service/connect holds the same for the connector, which exports its own.
    """
    for rule in live.prometheus.rules():
        if rule["type"] == "alerting" and not rule["name"].startswith("LarkfieldConnect"):
            for name in set(re.findall(r"[a-z_:]*larkfield_[a-z0-9_:]+", rule["query"])):
                assert live.prometheus.query(name), (rule["name"], name)


def test_every_metric_is_explained(live: Live) -> None:
    """The list of docs/operations.md names each metric that the service exports."""
    with urllib.request.urlopen(live.router.url + "/metrics", timeout=10) as response:
        text = response.read().decode()
    exported = set(re.findall(r"^# TYPE larkfield_(\w+) ", text, re.M))
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
    listed = page.partition("## Metrics")[2].partition("\n## ")[0]
    explained = set(re.findall(r"`(\w+)`", listed))
    assert len(exported) > 30
    assert exported - explained == set()


def test_figures_follow_the_tickets(live: Live) -> None:
    """What Prometheus has counted is what the load got answered, no more and at most a scrape less."""
    before = live.load.answers["/route", 200]
    wait_for(
        "the count",
        lambda: finite(live.prometheus.query("sum(larkfield_predictions_total)"))[0] >= before,
        30,
    )
    total = finite(live.prometheus.query("sum(larkfield_predictions_total)"))[0]
    assert total <= live.load.answers["/route", 200] + 2, "two tickets may be on their way to the load"
    assert 0.5 < finite(live.prometheus.query('larkfield_feedback_accuracy{decision="route"}'))[0] <= 1


def hurried(text: str) -> str:
    """Rules for a test: seconds instead of minutes and days, and two limits that a healthy service passes."""
    text = re.sub(r"for: \d+[mh]", "for: 2s", text)
    for window, short in {"5m": "10s", "10m": "15s", "30m": "10s", "1h": "15s", "6h": "20s"}.items():
        text = text.replace(f"[{window}]", f"[{short}]")
    text = text.replace("> 600 * 1024 * 1024", "> 60 * 1024 * 1024")  # the memory of a healthy worker
    return text.replace('le="0.05"', 'le="0.0001"')  # 0.1 ms: no ticket is answered that fast


def other_version(bundle: Path, target: Path) -> Path:
    """The same bundle under another version."""
    shutil.copytree(bundle, target)
    config = load_bundle(bundle).config.model_copy(update={"version": "another"})
    (target / CONFIG).write_bytes(seal(config)[0])
    return target


def by_decision(router: Process) -> dict[str, list[tuple[str, str]]]:
    """Tickets by what the served bundle decides: it is for the test to know, not for the test to guess."""
    found: dict[str, list[tuple[str, str]]] = {"route": [], "review": []}
    for text, team in LABELLED + DOUBTFUL:
        request = urllib.request.Request(
            router.url + "/route", json.dumps({"text": text}).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10) as response:
            found[json.load(response)["decision"]].append((text, team))
    return found


def firing(prometheus: Prometheus, *names: str) -> None:
    """Wait until these alerts fire."""
    states: dict[str, str] = {}

    def all_fire() -> bool:
        states.update(prometheus.alert_states())
        return all(states[name] == "firing" for name in names)

    try:
        wait_for("the alerts", all_fire, 200)
    except TimeoutError:
        pytest.fail(str({name: states.get(name) for name in names}))


@pytest.mark.slow
def test_make_watch_prints_every_panel_and_alert(
    tool: Callable[[str], str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tool("prometheus")
    monkeypatch.setattr("sys.argv", ["watch", "--seconds", "45"])
    assert watch.main() == 0, "no open panel shows nothing"
    said = capsys.readouterr().out
    for each in expressions():
        assert each.panel in said
    for rule in ("LarkfieldDown", "LarkfieldReloadRefused"):
        assert re.search(rf"^{rule} +inactive$", said, re.M)
    assert "0 queries showed nothing" in said


@pytest.mark.slow
def test_each_alert_fires_when_it_is_provoked(
    tool: Callable[[str], str], tmp_path: Path, shipped_bundle: Path
) -> None:
    tool("prometheus")
    another = other_version(shipped_bundle, tmp_path / "another")
    settings = {"drift_seconds": 0.5, "drift_least": 50, "drift_window": 200, "admin_key": "k"}
    provoked: set[str] = set()

    def expect(*names: str) -> None:
        firing(prometheus, *names)
        provoked.update(names)

    with (
        processes.router(tmp_path / "one", workers=2, **settings) as one,
        processes.router(tmp_path / "two", bundle=another, max_queue=1, drain_seconds=12, **settings) as two,
        Prometheus(
            tmp_path / "prometheus",
            [f"127.0.0.1:{router.port}" for router in (one, two)],
            every="1s",
            edit=hurried,
        ) as prometheus,
    ):
        tickets = by_decision(one)
        with Helpdesk(one.port, 1, tickets=tickets["route"], wrong=0.0):
            expect("LarkfieldBundleMismatch", "LarkfieldMemoryHigh")
            expect("LarkfieldLatencyBurnFast", "LarkfieldLatencyBurnSlow")
            time.sleep(10)  # a quiet past, which the review rate is compared with
            assert prometheus.alert_states()["LarkfieldReviewRateJump"] == "inactive"
            assert prometheus.alert_states()["LarkfieldErrorBurnFast"] == "inactive"
            assert prometheus.alert_states()["LarkfieldQueueFull"] == "inactive"
        with Helpdesk(one.port, tickets=tickets["review"], wrong=0.0):
            expect("LarkfieldReviewRateJump", "LarkfieldDrift")
        with Helpdesk(one.port, tickets=tickets["route"], wrong=0.8):
            expect("LarkfieldAccuracyDrop", "LarkfieldCalibrationOff")
        with Helpdesk(one.port, tickets=[(text, "legal") for text, _ in tickets["route"]], wrong=0.0):
            expect("LarkfieldUnknownTeam")
        lock = sqlite3.connect(tmp_path / "one" / "feedback.db", isolation_level=None)
        lock.execute("BEGIN IMMEDIATE")
        with Helpdesk(one.port, tickets=tickets["route"]):
            expect("LarkfieldFeedbackStoreFailing")
        lock.close()
        with Helpdesk(two.port, 24, 0.0):
            expect("LarkfieldQueueFull", "LarkfieldErrorBurnFast", "LarkfieldErrorBurnSlow")
        (tmp_path / "broken").mkdir()
        request = urllib.request.Request(
            one.url + "/admin/reload",
            json.dumps({"bundle": str(tmp_path / "broken")}).encode(),
            {"Content-Type": "application/json", "X-API-Key": "k"},
        )
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(request, timeout=30)
        expect("LarkfieldReloadRefused")
        assert two.process is not None
        two.process.send_signal(signal.SIGTERM)
        expect("LarkfieldNotReady")
        expect("LarkfieldDown")
        prometheus.targets = []
        prometheus.reload()
        expect("LarkfieldAbsent")
        # The connector's two are left to promtool (deploy/prometheus/tests).
        alerts = {name for name in prometheus.alert_states() if not name.startswith("LarkfieldConnect")}
        assert provoked == alerts, "every alert was provoked"
