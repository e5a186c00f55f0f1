"""What may stand beside the overlays: doors for clients, monitoring, and a Job that brings models.

Objects of the Gateway API and of the Prometheus Operator were held against these projects' own definitions
(21 and 8 August 2026), strictly; they are too large to keep here, and the types below are theirs.
"""

from typing import Any

import kubernetes_validate
import pytest
import typer.main
import yaml

from chart.manifests import FOLDER, Manifest, Source, manifest, objects_of
from deploy.test_kuberay import Fields, unknown
from deploy.test_kubernetes import VERSION, option
from deploy.test_network_policies import DNS, MIGRATION, reaches
from diffuserve.cli.main import app
from support.monitoring import alerts

SELECTOR: Fields = {"matchLabels": {}}
ENDPOINT: Fields = {
    "port": str,
    "path": str,
    "interval": str,
    "authorization": {"type": str, "credentials": {"name": str, "key": str}},
    "relabelings": [{"targetLabel": str, "replacement": str}],
}
RULE: Fields = {"alert": str, "expr": str, "for": str, "labels": {}, "annotations": {}}
SPECS: Fields = {
    "ServiceMonitor": {"selector": SELECTOR, "endpoints": [ENDPOINT]},
    "PodMonitor": {"selector": SELECTOR, "podMetricsEndpoints": [ENDPOINT]},
    "PrometheusRule": {"groups": [{"name": str, "rules": [RULE]}]},
    "HTTPRoute": {
        "parentRefs": [{"name": str, "namespace": str}],
        "hostnames": list,
        "rules": [
            {
                "matches": [{"path": {"type": str, "value": str}}],
                "timeouts": {"request": str, "backendRequest": str},
                "backendRefs": [{"name": str, "port": int}],
            }
        ],
    },
}
COMPONENTS = ("gateway", "ingress", "models", "monitoring")


def of(component: str, kind: str) -> Any:
    [found] = [each for each in objects_of(component) if each["kind"] == kind]
    return found


def base(kind: str, name: str) -> Any:
    return manifest(Source("base"), kind, name)


def problems(each: Manifest) -> list[str]:
    """Return the fields that its kind does not have; raise for what Kubernetes itself refuses."""
    if each["kind"] in SPECS:
        return list(unknown(each["spec"], SPECS[each["kind"]]))
    kubernetes_validate.validate(each, VERSION, strict=True)
    return []


@pytest.mark.parametrize("component", COMPONENTS)
def test_every_object_has_the_fields_of_its_kind(component: str) -> None:
    assert [problem for each in objects_of(component) for problem in problems(each)] == []


def test_a_misspelt_field_is_found() -> None:
    monitor = of("monitoring", "ServiceMonitor")
    monitor = {**monitor, "spec": {**monitor["spec"], "endpoint": []}}
    assert problems(monitor) == ["spec.endpoint"]


def test_prometheus_reads_what_serves_metrics_under_the_names_that_alerts_ask_for() -> None:
    service, worker = base("Service", "control"), base("Deployment", "worker")["spec"]["template"]
    [of_control] = of("monitoring", "ServiceMonitor")["spec"]["endpoints"]
    [of_worker] = of("monitoring", "PodMonitor")["spec"]["podMetricsEndpoints"]
    for kind, scraped in (("ServiceMonitor", service), ("PodMonitor", worker)):
        selected = of("monitoring", kind)["spec"]["selector"]["matchLabels"]
        assert selected.items() <= scraped["metadata"]["labels"].items()
    assert of_control["port"] in {each["name"] for each in service["spec"]["ports"]}
    assert of_worker["port"] in {each["name"] for each in worker["spec"]["containers"][0]["ports"]}
    asked = alerts()["ControlPlaneMissing"]["expr"]
    assert f'job="{of_control["relabelings"][0]["replacement"]}"' in asked
    assert of_worker["relabelings"][0]["replacement"] == "diffuserve-worker"
    assert of_control["authorization"]["credentials"] == {"name": "monitor", "key": "key"}


def test_both_doors_lead_to_the_service_by_the_public_name() -> None:
    ingress, route = of("ingress", "Ingress")["spec"], of("gateway", "HTTPRoute")["spec"]
    settings = base("ConfigMap", "control-settings")["data"]
    host = settings["DIFFUSERVE_PUBLIC_API_URL"].removeprefix("https://")
    assert ([host], [host]) == (ingress["tls"][0]["hosts"], route["hostnames"])
    [rule] = ingress["rules"]
    [path] = rule["http"]["paths"]
    [backend] = route["rules"][0]["backendRefs"]
    [port] = base("Service", "control")["spec"]["ports"]
    assert rule["host"] == host
    assert path["backend"]["service"] == {"name": "control", "port": {"name": port["name"]}}
    assert backend == {"name": "control", "port": port["port"]}


def test_the_job_brings_models_to_where_workers_read_them() -> None:
    both = of("models", "Job"), base("Deployment", "worker")
    job, worker = (each["spec"]["template"]["spec"] for each in both)
    [container], group = job["containers"], typer.main.get_command(app)
    first, second, *args = container["args"]
    command: Any = group.commands[first].commands[second]  # type: ignore[attr-defined]
    given = command.make_context("pull", args).params  # raises for an unknown option
    [mount] = [each for each in container["volumeMounts"] if each["name"] == "models"]
    assert (str(given["model_cache"]), mount.get("readOnly", False)) == (mount["mountPath"], False)
    assert option(worker, "--model-volume") == mount["mountPath"]
    claims = [pod["volumes"][0]["persistentVolumeClaim"]["claimName"] for pod in (job, worker)]
    assert claims == [base("PersistentVolumeClaim", "model-pvc")["metadata"]["name"]] * 2
    with_it = manifest(Source("overlays/scaledjob", ("models",)), "ScaledJob", "worker")
    pod = with_it["spec"]["jobTargetRef"]["template"]["spec"]
    assert option(pod, "--model") == given["name"]


def test_the_job_reaches_the_store_and_nothing_private() -> None:
    pod = of("models", "Job")["spec"]["template"]["metadata"]["labels"]
    assert reaches("hpa", pod, "93.184.215.14", 443)
    assert reaches("hpa", pod, DNS, 53, "UDP", is_namespace=True)
    assert not reaches("hpa", pod, "10.0.0.5", 5432)
    assert not reaches("hpa", MIGRATION, "93.184.215.14", 443)


def test_components_are_those_of_the_folder() -> None:
    files = FOLDER.glob("*/kustomization.yaml")
    kinds = {path.parent.name: yaml.safe_load(path.read_text("utf-8"))["kind"] for path in files}
    assert {name for name, kind in kinds.items() if kind == "Component"} == {*COMPONENTS, "deletion-cost"}
