"""Runs the service under load beside a real Prometheus and prints each panel's value: `make watch`.

It prints what the dashboards show after two minutes, and the state of each alert, without Grafana.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from service.tools.load import Helpdesk
from service.tools.processes import ROOT, Process, get, router

DEPLOY = ROOT / "deploy"


class Prometheus(Process):
    """Prometheus with the shipped configuration, but other targets and intervals.

    `targets` are host:port of routers. `edit` changes the text of a rule file before it is used.
    """

    def __init__(
        self,
        folder: Path,
        targets: list[str],
        *,
        every: str = "5s",
        edit: Callable[[str], str] = lambda text: text,
    ) -> None:
        command = [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            "--web.listen-address=127.0.0.1:{port}",
            "--web.enable-lifecycle",
        ]
        super().__init__("Prometheus", command, folder=folder, ready_path="/-/ready")
        self.configuration = folder
        self.targets = targets
        self.every = every
        self.edit = edit
        self.configure()

    def configure(self) -> None:
        """Write the configuration; `reload` makes a running Prometheus read it."""
        text = (DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
        text = text.replace('["router:8000"]', json.dumps(self.targets))
        text = text.replace("localhost:9090", f"127.0.0.1:{self.port}")
        text = text.replace("_interval: 15s", f"_interval: {self.every}")
        text = text.replace("scrape_timeout: 5s", "scrape_timeout: 1s")
        rules = self.configuration / "rules"
        rules.mkdir(parents=True, exist_ok=True)
        (self.configuration / "prometheus.yml").write_text(text, encoding="utf-8")
        for path in (DEPLOY / "prometheus" / "rules").glob("*.yml"):
            shipped = path.read_text(encoding="utf-8").replace("interval: 15s", f"interval: {self.every}")
            (rules / path.name).write_text(self.edit(shipped), encoding="utf-8")

    def reload(self) -> None:
        """Make Prometheus read its configuration again, with the present targets."""
        self.configure()
        request = urllib.request.Request(self.url + "/-/reload", method="POST")
        urllib.request.urlopen(request, timeout=10).close()

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Series of an instant query; ValueError with Prometheus' message if it does not parse."""
        address = self.url + "/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        try:
            answer = get(address)
        except urllib.error.HTTPError as error:
            raise ValueError(f"{expression}\n{json.load(error).get('error')}") from None
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def rules(self) -> list[dict[str, Any]]:
        """Every rule with its health, last error and, for alerts, state."""
        groups = get(self.url + "/api/v1/rules")["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def alert_states(self) -> dict[str, str]:
        """Alert name -> inactive, pending or firing."""
        return {rule["name"]: rule["state"] for rule in self.rules() if rule["type"] == "alerting"}


class Expression(NamedTuple):
    """One query of one panel, as Grafana would send it."""

    dashboard: str
    panel: str
    unit: str
    legend: str
    expression: str
    collapsed: bool  # in a row that is collapsed until someone opens it


def expressions(interval: str = "15s", shown: str = "2m") -> Iterator[Expression]:
    """Every query of every panel, its variables filled in as Grafana does for "All"."""
    values = {"$__rate_interval": interval, "$__range": shown, "$job": "larkfield"}
    values |= {"$instance": ".*", "$team": ".*"}
    for path in sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"), reverse=True):
        board = json.loads(path.read_text(encoding="utf-8"))
        for outer in board["panels"]:
            for panel in [outer, *outer.get("panels", [])]:
                for target in panel.get("targets", []):
                    text = target["expr"]
                    for name, value in values.items():
                        text = text.replace(name, value)
                    unit = panel["fieldConfig"]["defaults"]["unit"]
                    legend = target.get("legendFormat", "")
                    yield Expression(
                        board["title"], panel["title"], unit, legend, text, bool(outer.get("panels"))
                    )


def shown(value: float, unit: str) -> str:
    """A value with its unit, as Grafana shows it."""
    if math.isnan(value):
        return "-"
    if unit == "percentunit":
        return f"{value:.1%}"
    if unit == "s":
        return f"{value * 1e3:.2f} ms"
    if unit == "bytes":
        return f"{value / 2**20:.0f} MiB"
    suffix = {"reqps": "/s", "cpm": "/min"}.get(unit, "")
    return f"{value:.4g}{suffix}"


def legend(template: str, labels: dict[str, str]) -> str:
    """A legend with its {{label}} filled in."""
    for name, value in labels.items():
        template = template.replace("{{" + name + "}}", value)
    if "{{" not in template and template in ("workers", "feedbacks", "tickets"):  # tables show their labels
        return " ".join(value for name, value in labels.items() if name != "__name__")
    return template


def report(prometheus: Prometheus, interval: str) -> int:
    """Print each panel's current value and each alert's state; how many panels showed nothing."""
    empty = 0
    previous = ("", "")
    for each in expressions(interval):
        if each.dashboard != previous[0]:
            print(f"\n== {each.dashboard} ==")
        series = prometheus.query(each.expression)
        empty += not series and not each.collapsed
        heatmap = each.legend == "{{le}}"
        values = [
            f"{legend(each.legend, one['metric'])} {shown(float(one['value'][1]), each.unit)}"
            for one in sorted(series, key=lambda one: sorted(one["metric"].items()))
        ]
        text = f"{len(series)} buckets" if heatmap and series else ", ".join(values) or "nothing"
        title = each.panel if previous[1] != each.panel else ""
        print(f"{title:24} {text}")
        previous = (each.dashboard, each.panel)
    print("\n== Alerts ==")
    for name, state in prometheus.alert_states().items():
        print(f"{name:32} {state}")
    return empty


def main() -> int:
    """Print what the dashboards and alerts show under load; exit status 1 when a panel showed nothing."""
    parser = argparse.ArgumentParser(prog="python -m service.tools.watch", description=main.__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long the load runs")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--bundle", type=Path, help="default: the shipped one")
    chosen = parser.parse_args()
    settings: dict[str, Any] = {"workers": chosen.workers, "drift_seconds": 5}
    if chosen.bundle:
        settings["bundle"] = chosen.bundle.resolve()
    if shutil.which("prometheus") is None:
        print("prometheus is not installed: apt-get install prometheus", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="larkfield-watch-") as name:
        folder = Path(name)
        with router(folder / "router", **settings) as server:
            with Prometheus(folder / "prometheus", [f"127.0.0.1:{server.port}"]) as prometheus:
                print(f"router {server.url}, Prometheus {prometheus.url}, {chosen.seconds:g} s of load …")
                with Helpdesk(server.port, levels=("tokens", "heads", "full")) as load:
                    time.sleep(chosen.seconds)
                    empty = report(prometheus, "20s")
    answers = ", ".join(f"{path} {status}: {count}" for (path, status), count in sorted(load.answers.items()))
    print(f"\nanswers by status: {answers}")
    print(f"{empty} queries showed nothing")
    return int(empty > 0)


if __name__ == "__main__":
    raise SystemExit(main())
