"""The manifests for KubeRay: its fields, pods as Kubernetes accepts them, commands and names that there are.

They were held against KubeRay's own definitions (19 August 2026) as well, which are too large to keep here:
the types below are theirs, of our own fields. They were never applied to a cluster.
"""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer.main
import yaml

from diffuserve.cli.main import app
from diffuserve.settings import Settings

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes" / "kuberay"
Fields = Mapping[str, Any]
POD: Fields = {"metadata": dict, "spec": dict}
GROUP: Fields = {"rayStartParams": {}, "template": POD, "labels": {}, "resources": {}}
RAY_CLUSTER: Fields = {
    "rayVersion": str,
    "enableInTreeAutoscaling": bool,
    "authOptions": {"mode": str, "secretName": str, "enableK8sTokenAuth": bool},
    "autoscalerOptions": {"version": str, "idleTimeoutSeconds": int, "upscalingMode": str, "image": str},
    "headGroupSpec": {**GROUP, "serviceType": str, "enableIngress": bool},
    "workerGroupSpecs": [
        {
            **GROUP,
            "groupName": str,
            **{"replicas": int, "minReplicas": int, "maxReplicas": int, "numOfHosts": int},
        }
    ],
}
RAY_JOB: Fields = {
    "entrypoint": str,
    "submissionMode": str,
    "backoffLimit": int,
    "ttlSecondsAfterFinished": int,
    "shutdownAfterJobFinishes": bool,
    "suspend": bool,
    "rayClusterSpec": RAY_CLUSTER,
}
RAY_SERVICE: Fields = {
    "serveConfigV2": str,
    "excludeHeadPodFromServeSvc": bool,
    "rayClusterDeletionDelaySeconds": int,
    "suspend": bool,
    "rayClusterConfig": RAY_CLUSTER,
}
CLUSTERS = pytest.mark.parametrize(
    ("name", "cluster"), [("rayjob", "rayClusterSpec"), ("rayservice", "rayClusterConfig")]
)


def manifest(name: str) -> Any:
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))


def unknown(found: Any, fields: Any, path: str = "spec") -> Iterator[str]:
    """Yield the places that are not as the fields say; `{}` holds texts by any name."""
    if isinstance(fields, type):
        if not isinstance(found, fields):
            yield path
    elif isinstance(fields, list):
        for number, item in enumerate(found):
            yield from unknown(item, fields[0], f"{path}[{number}]")
    else:
        for name, value in found.items():
            if fields and name not in fields:
                yield f"{path}.{name}"
            else:
                yield from unknown(value, fields.get(name, str), f"{path}.{name}")


@pytest.mark.parametrize(("kind", "fields"), [("RayJob", RAY_JOB), ("RayService", RAY_SERVICE)])
def test_every_field_is_one_of_kuberay(kind: str, fields: Fields) -> None:
    found = manifest(kind.lower())
    assert (found["apiVersion"], found["kind"]) == ("ray.io/v1", kind)
    assert list(unknown(found["spec"], fields)) == []


def test_a_misspelt_field_is_found() -> None:
    found = manifest("rayjob")["spec"]
    found["rayClusterSpec"]["workerGroupSpecs"][0]["maxReplica"] = 3
    found["backoffLimit"] = "20"
    group = "spec.rayClusterSpec.workerGroupSpecs[0]"
    assert list(unknown(found, RAY_JOB)) == ["spec.backoffLimit", f"{group}.maxReplica"]


@CLUSTERS
def test_pods_are_what_kubernetes_accepts(name: str, cluster: str) -> None:
    found = manifest(name)["spec"][cluster]
    for group in (found["headGroupSpec"], *found["workerGroupSpecs"]):
        named = {"metadata": {"name": "pod", **group["template"]["metadata"]}}
        pod = {"apiVersion": "v1", "kind": "Pod", **group["template"], **named}
        kubernetes_validate.validate(pod, "1.34", strict=True)


@CLUSTERS
def test_the_operator_reaches_the_dashboard_with_a_token_alone(name: str, cluster: str) -> None:
    found = manifest(name)["spec"][cluster]
    assert "dashboard-host" not in found["headGroupSpec"]["rayStartParams"]  # by default it listens to others
    assert found["authOptions"] == {"mode": "token"}


def test_the_command_exists_and_its_bounds_are_those_of_the_cluster() -> None:
    spec = manifest("rayjob")["spec"]
    command: Any = typer.main.get_command(app)
    words = shlex.split(spec["entrypoint"])
    assert words[:3] == ["diffuserve", "fleet", "ray"]
    fleet = command.commands["fleet"].commands["ray"]
    options = fleet.make_context("ray", words[3:]).params  # raises for an unknown option
    [group] = spec["rayClusterSpec"]["workerGroupSpecs"]
    assert options["max"] == group["maxReplicas"]
    assert options["grows"]
    [container] = group["template"]["spec"]["containers"]
    folders = [Path(mount["mountPath"]) for mount in container["volumeMounts"]]
    assert options["worker_key_file"].parent in folders  # no key is an argument
    assert options["api_key"] is None
    [head] = spec["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"]
    sources = {each["name"]: each.get("valueFrom") for each in head["env"]}
    autoscaling = (FOLDER.parent / "scaledjob" / "scaledjob.yaml").read_text("utf-8")
    [monitor] = (each for each in yaml.safe_load_all(autoscaling) if each["kind"] == "TriggerAuthentication")
    [same] = monitor["spec"]["secretTargetRef"]
    assert sources["DIFFUSERVE_API_KEY"] == {"secretKeyRef": {name: same[name] for name in ("name", "key")}}


def test_the_application_exists_with_its_settings_and_the_bounds_of_its_cluster() -> None:
    spec = manifest("rayservice")["spec"]
    [served] = yaml.safe_load(spec["serveConfigV2"])["applications"]
    module, _, function = served["import_path"].partition(":")  # what needs Ray itself, a slow test runs
    source = Path(__file__).parents[2] / "src" / f"{module.replace('.', '/')}.py"
    assert f"def {function}(arguments: " in source.read_text("utf-8")
    arguments = dict(served["args"])
    [group] = spec["rayClusterConfig"]["workerGroupSpecs"]
    for least, most in (("min_replicas", "minReplicas"), ("max_replicas", "maxReplicas")):
        assert arguments.pop(least) == group[most]
    [container] = group["template"]["spec"]["containers"]
    assert arguments.pop("num_gpus") == container["resources"]["limits"]["nvidia.com/gpu"]
    assert arguments.keys() <= Settings.model_fields.keys()
