"""The dashboards as files: what Grafana would refuse or show badly; their data is tested live."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GRAFANA = ROOT / "deploy" / "grafana"
FILES = sorted((GRAFANA / "dashboards").glob("*.json"))


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    """Every panel that shows data, those of closed rows too."""
    flat = [inner for panel in board["panels"] for inner in [panel, *panel.get("panels", [])]]
    return [panel for panel in flat if panel["type"] != "row"]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    pytest.importorskip("grafana_foundation_sdk", reason="Grafana's library for dashboards is not installed")
    spec = importlib.util.spec_from_file_location("dashboards", GRAFANA / "dashboards.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["dashboards"] = module
    spec.loader.exec_module(module)
    return module


def test_the_files_are_what_the_code_writes(generator: ModuleType) -> None:
    written = generator.files()
    assert {path.name for path in FILES} == set(written) == {"service.json", "router.json"}
    for path in FILES:
        assert path.read_text(encoding="utf-8") == written[path.name], "run deploy/grafana/dashboards.py"


def test_grafanas_own_schema_reads_every_field(generator: ModuleType) -> None:
    """Through Grafana's library and back: a field that it does not know would be lost on the way."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    for path in FILES:
        board = read(path)
        again = JSONEncoder(sort_keys=True, indent=1).encode(Dashboard.from_json(board))
        assert json.loads(again) == board, path.name


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_dashboard_is_complete(path: Path) -> None:
    board = read(path)
    assert board["schemaVersion"] >= 41
    assert board["uid"]
    assert board["title"]
    assert board["description"]
    names = [variable["name"] for variable in board["templating"]["list"]]
    assert names[:3] == ["datasource", "job", "instance"]
    ids = [panel["id"] for panel in board["panels"]] + [
        inner["id"] for panel in board["panels"] for inner in panel.get("panels", [])
    ]
    assert len(ids) == len(set(ids))
    assert all(ids)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_panel_has_unit_description_source_and_queries(path: Path) -> None:
    board = read(path)
    shown = panels(board)
    assert len(shown) >= 15
    titles = [panel["title"] for panel in shown]
    assert len(set(titles)) == len(titles)
    for panel in shown:
        assert len(panel["description"]) > 8 or panel["title"] == "Drift now", panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            assert 'job="$job"' in target["expr"], (panel["title"], "all panels follow the variables")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_panels_do_not_overlap_and_fit_the_grid(path: Path) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in read(path)["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


def test_provisioning_points_to_what_is_mounted() -> None:
    source = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yaml").read_text())
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
    provider = yaml.safe_load((GRAFANA / "provisioning/dashboards/larkfield.yaml").read_text())
    folder = provider["providers"][0]["options"]["path"]
    compose = yaml.safe_load((ROOT / "deploy/docker/compose.yaml").read_text())
    mounts = [mount.split(":") for mount in compose["services"]["grafana"]["volumes"]]
    assert ["../grafana/dashboards", folder, "ro"] in mounts
