"""The manifests are what Kubernetes and KEDA accept, and name images, options and settings that there are.

They were never applied to a cluster: none can run here.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
import typer.main
import yaml

from diffuserve.cli.main import app
from diffuserve.domain.resources.scale import ScaleResource
from diffuserve.settings import Settings

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
OVERLAYS = sorted(path.name for path in (FOLDER / "overlays").iterdir())
VERSION = "1.34"
KEDA_KINDS = ("ScaledObject", "ScaledJob", "TriggerAuthentication")
AUTOSCALERS = ("HorizontalPodAutoscaler", "ScaledObject", "ScaledJob")
NUM_OBJECTS = {"hpa": 15, "keda": 15, "scaledjob": 15, "spot": 17}

Manifest = Mapping[str, Any]


@pytest.fixture(scope="module", params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def manifests(overlay: str) -> list[Manifest]:
    return rendered(overlay)


@cache
def rendered(overlay: str) -> list[Manifest]:
    return rendered_in(FOLDER / "overlays" / overlay)


def rendered_in(folder: Path) -> list[Manifest]:
    kubectl = Path(sys.executable).with_name("kubectl")
    command = [str(kubectl), "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def of_kind(manifests: list[Manifest], *kinds: str) -> list[Manifest]:
    return [each for each in manifests if each["kind"] in kinds]


def pods(manifests: list[Manifest]) -> Iterator[Manifest]:
    """Yield the pod specs of all workloads."""
    for each in of_kind(manifests, "Deployment", "Job"):
        yield each["spec"]["template"]["spec"]
    for each in of_kind(manifests, "ScaledJob"):
        yield each["spec"]["jobTargetRef"]["template"]["spec"]


def workers(manifests: list[Manifest]) -> list[Manifest]:
    """Return the pod specs of workers, each with one container."""
    return [pod for pod in pods(manifests) if pod["containers"][0]["name"] == "worker"]


def option(pod: Manifest, name: str) -> str | None:
    """Return the value of an option of a pod's command; `None` if it has none."""
    args = pod["containers"][0]["args"]
    return args[args.index(name) + 1] if name in args else None


def with_plain_pods(scaled_job: Manifest) -> Manifest:
    """Check the Jobs that KEDA starts as Jobs; leave out their pods, whose numbers KEDA's model refuses."""
    job = scaled_job["spec"]["jobTargetRef"]
    named = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "worker"}}
    kubernetes_validate.validate({**named, "spec": job}, VERSION, strict=True)
    plain = {**job, "template": {**job["template"], "spec": {"containers": []}}}
    return {**scaled_job, "spec": {**scaled_job["spec"], "jobTargetRef": plain}}


def follows_its_schema(each: Manifest) -> bool:
    """Return whether an object has a schema, and no field beyond it; raise for bad values."""
    if each["kind"] not in KEDA_KINDS:
        kubernetes_validate.validate(each, VERSION, strict=True)  # raises for what it does not know
        return True
    if each["kind"] == "ScaledJob":
        each = with_plain_pods(each)
    # KEDA's models let unknown fields pass, and forget them: what is missing afterwards is misspelt.
    model = _keda_model(each["kind"])
    return bool(model.model_validate(each).model_dump(by_alias=True, exclude_unset=True) == each)


def _keda_model(kind: str) -> Any:
    from cloudcoil.models.keda import v1alpha1  # here: importing it takes a second

    return getattr(v1alpha1, kind)


def test_every_object_has_a_schema_and_follows_it(overlay: str, manifests: list[Manifest]) -> None:
    assert sum(map(follows_its_schema, manifests)) == len(manifests) == NUM_OBJECTS[overlay]


def test_a_misspelt_field_of_keda_is_found(manifests: list[Manifest]) -> None:
    for each in of_kind(manifests, "ScaledObject", "ScaledJob"):
        assert not follows_its_schema({**each, "spec": each["spec"] | {"maxReplicas": 20}})


def test_a_misspelt_field_is_found(manifests: list[Manifest]) -> None:
    worker = yaml.safe_load(yaml.safe_dump(of_kind(manifests, "Deployment")[0]))
    worker["spec"]["replica"] = 2
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(worker, VERSION, strict=True)


def test_one_autoscaler_has_the_workers_to_itself(overlay: str, manifests: list[Manifest]) -> None:
    [_one] = of_kind(manifests, *AUTOSCALERS)
    deployments = {each["metadata"]["name"]: each["spec"] for each in of_kind(manifests, "Deployment")}
    assert deployments.pop("control")["replicas"] == 2
    if overlay == "scaledjob":
        assert deployments == {}
    else:
        assert deployments["worker"].get("replicas") == (2 if overlay == "spot" else None)


def test_no_container_may_more_than_it_needs(manifests: list[Manifest]) -> None:
    for pod in pods(manifests):
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            locked = container["securityContext"]
            assert (locked["allowPrivilegeEscalation"], locked["readOnlyRootFilesystem"]) == (False, True)
            assert locked["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"]


def test_commands_and_settings_exist(manifests: list[Manifest]) -> None:
    group: Any = typer.main.get_command(app)
    containers = {each["name"]: each for pod in pods(manifests) for each in pod["containers"]}
    for worker in workers(manifests):
        args = ["--metrics-host", "0.0.0.0", "--metrics-port", "9100", *worker["containers"][0]["args"]]
        group.commands["worker"].make_context("worker", args)  # raises for an unknown option
    assert containers["migration"]["args"] == ["db", "upgrade"]
    [settings] = [each["data"] for each in of_kind(manifests, "ConfigMap")]
    names = {name.removeprefix("DIFFUSERVE_").lower() for name in settings if name.startswith("DIFFUSERVE_")}
    assert names
    assert names <= set(Settings.model_fields)


def test_a_worker_has_the_time_to_finish_its_jobs(manifests: list[Manifest]) -> None:
    for worker in workers(manifests):
        seconds = option(worker, "--notice-seconds") or option(worker, "--drain-seconds")
        assert worker["terminationGracePeriodSeconds"] >= float(seconds or "nan")


@pytest.mark.parametrize("overlay", ["scaledjob", "spot"])
def test_keda_starts_what_the_control_plane_asks_for_and_stops_nothing(overlay: str) -> None:
    [scaled] = [each["spec"] for each in of_kind(rendered(overlay), "ScaledJob")]
    assert (scaled["minReplicaCount"], scaled["rollout"], scaled["scalingStrategy"]["strategy"]) == (
        0,
        {"strategy": "gradual"},
        "default",
    )
    job, pod = scaled["jobTargetRef"], scaled["jobTargetRef"]["template"]["spec"]
    assert (job["backoffLimit"], pod["restartPolicy"]) == (0, "Never")
    assert "activeDeadlineSeconds" not in job
    assert option(pod, "--leave-when-idle")


@pytest.mark.parametrize(("overlay", "query"), [("scaledjob", ""), ("spot", "kind=spot")])
def test_the_scaler_asks_the_route_for_the_model_with_a_key(overlay: str, query: str) -> None:
    manifests = rendered(overlay)
    [scaled] = [each["spec"] for each in of_kind(manifests, "ScaledJob")]
    [trigger] = scaled["triggers"]
    url = urlsplit(trigger["metadata"]["url"])
    [service] = of_kind(manifests, "Service")
    assert f"{url.hostname}:{url.port}" == f"{service['metadata']['name']}.diffuserve:8000"
    model = Path(option(scaled["jobTargetRef"]["template"]["spec"], "--model") or "").name
    assert (url.path, url.query) == (f"/internal/v1/scale/{model}", query)
    assert trigger["metadata"]["valueLocation"] in {each.name for each in fields(ScaleResource)}
    [authentication] = of_kind(manifests, "TriggerAuthentication")
    assert trigger["authenticationRef"] == {"name": authentication["metadata"]["name"]}


def test_workers_on_demand_stay_beside_those_on_spot() -> None:
    on_demand, spot = workers(rendered("spot"))
    assert (option(on_demand, "--spot"), option(on_demand, "--leave-when-idle")) == (None, None)
    assert (option(spot, "--spot"), spot["terminationGracePeriodSeconds"]) == ("gcp", 15)
    assert "cloud.google.com/gke-spot" in spot["nodeSelector"]
    assert "nodeSelector" not in on_demand


@pytest.mark.slow
@pytest.mark.parametrize("overlay", OVERLAYS, indirect=True)
def test_checkov_finds_nothing_but_what_is_excused(
    overlay: str, manifests: list[Manifest], tmp_path: Path
) -> None:
    checkov = shutil.which("checkov")
    if checkov is None:
        pytest.skip("checkov is not installed; `pipx install checkov` puts it into an environment of its own")
    (tmp_path / f"{overlay}.yaml").write_text(yaml.safe_dump_all(manifests), encoding="utf-8")
    config = ["--config-file", str(FOLDER / "checkov.yaml")]
    done = subprocess.run(
        [checkov, *config, "-d", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_workers_that_tell_what_their_end_costs_may_do_that_alone(tmp_path: Path) -> None:
    base = os.path.relpath(FOLDER, tmp_path.resolve())
    parts = {"resources": [f"{base}/overlays/hpa"], "components": [f"{base}/deletion-cost"]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(parts), encoding="utf-8")
    manifests = rendered_in(tmp_path)
    assert sum(map(follows_its_schema, manifests)) == len(manifests) == NUM_OBJECTS["hpa"] + 6
    [role] = of_kind(manifests, "Role")
    assert role["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}]
    [worker] = workers(manifests)
    assert (worker["serviceAccountName"], worker["automountServiceAccountToken"]) == ("worker", True)
    [policy] = of_kind(manifests, "ValidatingAdmissionPolicy")
    rules = " ".join(each["expression"] for each in policy["spec"]["validations"])
    assert "pod-name" in rules
    assert "object.spec == oldObject.spec" in rules
    assert "--pod-deletion-cost" in worker["containers"][0]["args"]


def test_prometheus_reaches_control_planes_and_workers_by_one_label(manifests: list[Manifest]) -> None:
    policies = {each["metadata"]["name"]: each["spec"] for each in of_kind(manifests, "NetworkPolicy")}
    scrapes = {"namespaceSelector": {"matchLabels": {"diffuserve.example.com/scrapes": "true"}}}
    for name, port in (("control", 8000), ("worker", 9100)):
        rules = [rule for rule in policies[name]["ingress"] if scrapes in rule["from"]]
        assert [rule["ports"] for rule in rules] == [[{"protocol": "TCP", "port": port}]], name


def test_no_annotation_has_prometheus_scrape_what_needs_a_key(manifests: list[Manifest]) -> None:
    for each in of_kind(manifests, "Deployment"):
        annotations = each["spec"]["template"]["metadata"].get("annotations", {})
        is_worker = each["metadata"]["name"].startswith("worker")
        assert ("prometheus.io/scrape" in annotations) == is_worker, each["metadata"]["name"]
