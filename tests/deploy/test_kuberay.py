"""The fleet on KubeRay: fields that its RayJob has, pods as Kubernetes accepts them, a command that there is.

It was held against KubeRay's own definition of a RayJob (19 August 2026) as well, which is too large to keep
here: the types below are its, of its own fields. It was never applied to a cluster.
"""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import typer.main
import yaml

from diffuserve.cli.main import app

FILE = Path(__file__).parents[2] / "deploy" / "kubernetes" / "kuberay" / "rayjob.yaml"
Fields = Mapping[str, Any]
POD: Fields = {"metadata": dict, "spec": dict}
GROUP: Fields = {"rayStartParams": {}, "template": POD, "labels": {}, "resources": {}}
RAY_JOB: Fields = {
    "entrypoint": str,
    "submissionMode": str,
    "backoffLimit": int,
    "ttlSecondsAfterFinished": int,
    "shutdownAfterJobFinishes": bool,
    "suspend": bool,
    "rayClusterSpec": {
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
    },
}


def job() -> Any:
    return yaml.safe_load(FILE.read_text(encoding="utf-8"))


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


def test_every_field_is_one_of_kuberay() -> None:
    found = job()
    assert (found["apiVersion"], found["kind"]) == ("ray.io/v1", "RayJob")
    assert list(unknown(found["spec"], RAY_JOB)) == []


def test_a_misspelt_field_is_found() -> None:
    found = job()["spec"]
    found["rayClusterSpec"]["workerGroupSpecs"][0]["maxReplica"] = 3
    found["backoffLimit"] = "20"
    group = "spec.rayClusterSpec.workerGroupSpecs[0]"
    assert list(unknown(found, RAY_JOB)) == ["spec.backoffLimit", f"{group}.maxReplica"]


def test_pods_are_what_kubernetes_accepts() -> None:
    cluster = job()["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        named = {"metadata": {"name": "pod", **group["template"]["metadata"]}}
        pod = {"apiVersion": "v1", "kind": "Pod", **group["template"], **named}
        kubernetes_validate.validate(pod, "1.34", strict=True)


def test_the_command_exists_and_its_bounds_are_those_of_the_cluster() -> None:
    spec = job()["spec"]
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
