"""Writes prometheus-rule.yaml: the rules of deploy/prometheus as a PrometheusRule."""

from __future__ import annotations

from pathlib import Path

import yaml

HERE = Path(__file__).parent
RULES = HERE.parent / "prometheus" / "rules"
HEADER = "# Written by rules.py from deploy/prometheus/rules; a test checks that they are the same.\n"


def document() -> str:
    """The PrometheusRule with every group of every rule file."""
    groups = [
        group
        for path in sorted(RULES.glob("*.yml"))
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    ]
    rule = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        # kube-prometheus-stack selects rules and monitors by this label.
        "metadata": {"name": "larkfield-router", "labels": {"release": "kube-prometheus-stack"}},
        "spec": {"groups": groups},
    }
    return HEADER + yaml.safe_dump(rule, sort_keys=False, width=1000)


if __name__ == "__main__":
    (HERE / "prometheus-rule.yaml").write_text(document(), encoding="utf-8")
