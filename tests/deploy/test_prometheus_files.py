"""Scrape configuration, rules and alerts: valid, tested by promtool, each with a place in the runbook."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "prometheus"
RULES = sorted((FOLDER / "rules").glob("*.yml"))
ALERTS = [
    rule
    for path in RULES
    for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
    if "alert" in rule
]


def promtool(tool: Callable[[str], str], *arguments: str) -> str:
    done = subprocess.run(
        [tool("promtool"), *arguments], capture_output=True, text=True, cwd=FOLDER, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_configuration_and_its_rules_are_valid(tool: Callable[[str], str]) -> None:
    said = promtool(tool, "check", "config", "prometheus.yml")
    assert f"{len(RULES)} rule files found" in said
    assert "duplicate" not in said


def test_every_alert_by_promtool(tool: Callable[[str], str]) -> None:
    assert "SUCCESS" in promtool(tool, "test", "rules", "tests/alerts_test.yml")


def test_every_alert_has_a_promtool_test() -> None:
    cases = yaml.safe_load((FOLDER / "tests" / "alerts_test.yml").read_text(encoding="utf-8"))["tests"]
    fired = {
        case["alertname"]
        for group in cases
        for case in group.get("alert_rule_test", [])
        if case["exp_alerts"]
    }
    assert fired == {alert["alert"] for alert in ALERTS}


def anchors() -> set[str]:
    """The runbook's headings, as a reader's browser addresses them."""
    text = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
    return {heading.strip().lower().replace(" ", "-") for heading in re.findall(r"^#+ (.+)$", text, re.M)}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_says_what_how_bad_and_what_to_do(alert: dict) -> None:
    assert alert["labels"]["severity"] in ("critical", "warning")
    assert alert["annotations"]["summary"]
    page, _, anchor = alert["annotations"]["runbook"].partition("#")
    assert page == "docs/runbook.md"
    assert anchor == alert["alert"].lower()
    assert anchor in anchors()
