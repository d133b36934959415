"""The manifests, offline: against Kubernetes' schemas, each other, and the service's settings."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.settings import Settings

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text(encoding="utf-8"))
RESOURCES: dict[str, dict[str, Any]] = {
    name: yaml.safe_load((FOLDER / name).read_text(encoding="utf-8")) for name in KUSTOMIZATION["resources"]
}
CUSTOM = ("service-monitor.yaml", "prometheus-rule.yaml")
LABELS = {"app.kubernetes.io/name": "larkfield-router"}


def test_every_manifest_is_a_resource() -> None:
    others = {"kustomization.yaml"}
    assert {path.name for path in FOLDER.glob("*.yaml")} - others == set(RESOURCES)


@pytest.mark.parametrize("name", [name for name in RESOURCES if name not in CUSTOM])
def test_a_manifest_keeps_kubernetes_schema(name: str) -> None:
    validate = pytest.importorskip("kubernetes_validate")
    oldest, newest = "1.30", validate.latest_version()
    for version in (oldest, newest):
        validate.validate(RESOURCES[name], version, strict=True)


def container() -> dict[str, Any]:
    [found] = RESOURCES["deployment.yaml"]["spec"]["template"]["spec"]["containers"]
    return found


def test_the_pod_may_nothing_that_it_does_not_need() -> None:
    pod = RESOURCES["deployment.yaml"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert pod["automountServiceAccountToken"] is False
    assert container()["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {mount["mountPath"] for mount in container()["volumeMounts"]} == {
        "/tmp",
        "/var/lib/larkfield",
        "/etc/larkfield",
    }


def test_selectors_ports_and_names_meet() -> None:
    deployment = RESOURCES["deployment.yaml"]["spec"]
    assert deployment["selector"]["matchLabels"] == deployment["template"]["metadata"]["labels"] == LABELS
    assert RESOURCES["service.yaml"]["spec"]["selector"] == LABELS
    assert RESOURCES["service.yaml"]["metadata"]["labels"] == LABELS
    for name in ("disruption-budget.yaml", "service-monitor.yaml"):
        assert RESOURCES[name]["spec"]["selector"]["matchLabels"] == LABELS
    assert RESOURCES["network-policy.yaml"]["spec"]["podSelector"]["matchLabels"] == LABELS
    [port] = container()["ports"]
    assert port == {"name": "http", "containerPort": 8000}
    assert RESOURCES["service.yaml"]["spec"]["ports"][0]["targetPort"] == port["name"]
    assert RESOURCES["service-monitor.yaml"]["spec"]["endpoints"][0]["port"] == "http"
    target = RESOURCES["autoscaler.yaml"]["spec"]["scaleTargetRef"]
    assert target["name"] == RESOURCES["deployment.yaml"]["metadata"]["name"]
    [image] = KUSTOMIZATION["images"]
    assert image["name"] == container()["image"]
    [generated] = KUSTOMIZATION["configMapGenerator"]
    assert container()["envFrom"] == [{"configMapRef": {"name": generated["name"]}}]


def test_the_configuration_is_made_of_settings_that_exist() -> None:
    [generated] = KUSTOMIZATION["configMapGenerator"]
    given = dict(literal.split("=", 1) for literal in generated["literals"])
    given |= {each["name"]: "sqlite:///x.db" for each in container()["env"]}
    known = {f"LARKFIELD_{name.upper()}" for name in Settings.model_fields}
    assert set(given) <= known
    values = {name.removeprefix("LARKFIELD_").lower(): value for name, value in given.items()}
    settings = Settings(**values)
    settings.refuse_unprotected()
    mounts = {mount["mountPath"] for mount in container()["volumeMounts"]}
    assert str(settings.api_keys_file.parent) in mounts


def test_the_end_of_a_pod_is_longer_than_the_end_of_the_service() -> None:
    settings = Settings(drain_seconds=5)
    grace = RESOURCES["deployment.yaml"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > settings.drain_seconds + settings.shutdown_seconds


def test_the_probes_are_addresses_of_the_service() -> None:
    from service.http.routes import router

    known = {route.path for route in router.routes}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container()[probe]["httpGet"]["path"] in known


def test_the_operators_rules_are_prometheus_rules() -> None:
    spec = importlib.util.spec_from_file_location("kubernetes_rules", FOLDER / "rules.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (FOLDER / "prometheus-rule.yaml").read_text(encoding="utf-8") == module.document(), "run rules.py"
    groups = RESOURCES["prometheus-rule.yaml"]["spec"]["groups"]
    assert sum(len(group["rules"]) for group in groups) >= 30
