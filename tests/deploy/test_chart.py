"""The Helm chart makes the objects of the overlays, and refuses values that nobody reads.

It was never installed in a cluster: none can run here.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

import make_chart
from chart.manifests import Source
from chart.manifests import rendered as kustomized
from chart.template import Block, Inline, Lines, as_template
from deploy.test_kubernetes import follows_its_schema, of_kind, option, workers
from deploy.test_kubernetes import pods as every_pod
from diffuserve.setting_errors import variable_of
from diffuserve.settings import Settings

VALUES = make_chart.ROOT / "deploy" / "helm" / "values"
SOURCES = {
    "complete": Source("overlays/hpa", ("deletion-cost", "models", "ingress", "gateway", "monitoring")),
    "hpa": Source("overlays/hpa"),
    "keda": Source("overlays/keda"),
    "scaledjob": Source("overlays/scaledjob"),
    "spot": Source("overlays/spot"),
}
ONLY_OF_HELM = {"diffuserve.example.com/settings", "helm.sh/resource-policy"}
Manifest = Mapping[str, Any]


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    program = shutil.which("helm", path=beside)
    if program is None:
        pytest.skip("helm not found: python scripts/install_helm.py")
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


def template(*options: str) -> subprocess.CompletedProcess[str]:
    return helm("template", "images", str(make_chart.CHART), "--namespace", "diffuserve", *options)


@cache
def rendered(*options: str) -> list[Manifest]:
    done = template(*options)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def values_of(name: str) -> str:
    return f"--values={VALUES / name}.yaml"


def as_kustomized(each: Manifest) -> Manifest:
    """Return an object of the chart without what Helm needs: names of Jobs by revision, and annotations."""
    plain = deepcopy(dict(each))
    if plain["kind"] == "Job":
        plain["metadata"]["name"] = plain["metadata"]["name"].removesuffix("-1")
    for metadata in (plain["metadata"], plain.get("spec", {}).get("template", {}).get("metadata", {})):
        kept = {
            name: text for name, text in metadata.pop("annotations", {}).items() if name not in ONLY_OF_HELM
        }
        metadata |= {"annotations": kept} if kept else {}
    return plain


def by_name(manifests: list[Manifest]) -> dict[tuple[str, str], Manifest]:
    found = {(each["kind"], each["metadata"]["name"]): each for each in manifests}
    assert len(found) == len(manifests)
    return found


def test_the_chart_is_what_the_manifests_make() -> None:
    assert make_chart.main(["--check"]) == 0


def test_every_file_of_values_has_an_overlay() -> None:
    assert sorted(SOURCES) == sorted(path.stem for path in VALUES.iterdir())


@pytest.mark.parametrize("name", SOURCES)
def test_the_chart_makes_the_objects_of_the_overlay(name: str) -> None:
    made = by_name([as_kustomized(each) for each in rendered(values_of(name))])
    expected = by_name([each for each in kustomized(SOURCES[name]) if each["kind"] != "Namespace"])
    assert list(sorted(made)) == list(sorted(expected))
    for key, each in expected.items():
        assert made[key] == each, key


def test_the_chart_alone_makes_the_objects_of_the_base() -> None:
    made = by_name([as_kustomized(each) for each in rendered()])
    assert made == by_name([each for each in kustomized(Source("base")) if each["kind"] != "Namespace"])


@pytest.mark.parametrize("name", SOURCES)
def test_helm_finds_no_fault_in_it(name: str) -> None:
    done = helm("lint", "--strict", str(make_chart.CHART), values_of(name))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_second_model_has_workers_and_an_autoscaler_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(
        yaml.safe_dump(
            {
                "workerDefaults": {
                    "autoscaler": "scaledjob",
                    "maxReplicas": 0,
                    "resources": {"limits": {"cpu": 2}},
                },
                "workers": [
                    {"model": "flux@741f7c3ce8b3"},
                    {"name": "sdxl", "model": "/models/sdxl", "modelId": "sd-xl", "maxReplicas": 4},
                    {"name": "fixed", "model": "sd-1.5", "autoscaler": "none", "replicas": 5},
                ],
                "control": {"replicas": 1, "pod": {"imagePullSecrets": [{"name": "registry"}]}},
                "settings": {"DIFFUSERVE_SCALE_FLOORS": {"flux": [{"workers": 1}]}, "AWS_REGION": None},
                "models": {"store": "gs://models", "names": ["flux", "sdxl"], "storageClass": "files"},
                "networkPolicy": {"enabled": False},
            }
        ),
        encoding="utf-8",
    )
    made = rendered(f"--values={tmp_path / 'values.yaml'}")
    assert sum(map(follows_its_schema, made)) == len(made)
    jobs = by_name(of_kind(made, "ScaledJob"))
    urls = [each["spec"]["triggers"][0]["metadata"]["url"].rpartition("/")[2] for each in jobs.values()]
    assert urls == ["flux", "sd-xl"]
    assert [each["spec"]["maxReplicaCount"] for each in jobs.values()] == [0, 4]
    assert {option(pod, "--model") for pod in workers(made)} == {
        "flux@741f7c3ce8b3",
        "/models/sdxl",
        "sd-1.5",
    }
    fixed = by_name(of_kind(made, "Deployment"))["Deployment", "fixed"]["spec"]
    assert (fixed["replicas"], fixed["selector"]["matchLabels"]["app.kubernetes.io/instance"]) == (5, "fixed")
    [settings] = [each["data"] for each in of_kind(made, "ConfigMap")]
    assert settings["DIFFUSERVE_SCALE_FLOORS"] == '{"flux":[{"workers":1}]}'
    assert "AWS_REGION" not in settings
    fetching = by_name(of_kind(made, "Job"))["Job", "models-1"]["spec"]["template"]["spec"]["containers"]
    assert [each["args"][2] for each in fetching] == ["flux", "sdxl"]
    assert not of_kind(made, "NetworkPolicy", "PodDisruptionBudget")


@pytest.mark.parametrize("scaler", ["none", "scaledjob"])
def test_further_options_of_a_set_stand_beside_those_of_all(scaler: str) -> None:
    one = f'{{"model":"a","autoscaler":"{scaler}","extraArgs":["--offload","model"]}}'
    [pod] = workers(rendered(f"--set-json=workers=[{one}]"))
    assert (option(pod, "--offload"), option(pod, "--drain-seconds")) == ("model", "600")
    assert option(pod, "--model-volume") == "/models"


@pytest.mark.parametrize(
    "own",
    [
        '"args":["--model-volume=/models"]',
        '"args":["--model-store","s3://models"]',
        '"args":[],"env":[{"name":"DIFFUSERVE_MODEL_VOLUME","value":"/models"}]',
    ],
)
def test_options_of_ones_own_may_say_where_the_models_are(own: str) -> None:
    assert len(workers(rendered(f'--set-json=workers=[{{"model":"a",{own}}}]'))) == 1


def notes(*options: str) -> str:
    done = helm("install", "images", str(make_chart.CHART), "--dry-run=client", *options)
    assert done.returncode == 0, done.stderr
    return done.stdout.partition("NOTES:")[2]


@pytest.mark.parametrize(
    ("floors", "whole"),
    [
        ("{}", '{"flux":[{"workers":1}],"sd-xl":[{"workers":1}]}'),
        ('{"flux":[{"workers":2}]}', '{"flux":[{"workers":2}],"sd-xl":[{"workers":1}]}'),
        (json.dumps('{"flux": [{"workers": 2}]}'), '{"flux":[{"workers":2}],"sd-xl":[{"workers":1}]}'),
        ('{"flux":[{"workers":2}],"sd-xl":[{"workers":0}]}', None),
    ],
)
def test_notes_name_models_whose_first_worker_nobody_starts(floors: str, whole: str | None) -> None:
    models = '{"model":"flux"},{"name":"b","model":"/models/x","modelId":"sd-xl"}'
    offered = '{"name":"c","model":"sd3","autoscaler":"none"},{"name":"d","model":"sd3"}'
    told = notes(
        "--set=workerDefaults.autoscaler=scaledjob",
        f"--set-json=workers=[{models},{offered}]",
        f"--set-json=settings.DIFFUSERVE_SCALE_FLOORS={floors}",
    )
    assert ("no floor" in told) == (whole is not None)
    if whole:
        assert f"DIFFUSERVE_SCALE_FLOORS: {whole}\n" in told
    assert "sd3" not in told


def test_notes_warn_of_alerts_whose_links_lead_nowhere() -> None:
    warned, *rest = (
        "monitoring.documents" in notes(*options)
        for options in (
            ("--set=monitoring.enabled=true",),
            ("--set=monitoring.enabled=true", "--set=monitoring.documents=https://docs.studio.example"),
            (),
        )
    )
    assert (warned, rest) == (True, [False, False])


def test_workers_need_no_volume() -> None:
    made = rendered("--set=models.claim=")
    assert not of_kind(made, "PersistentVolumeClaim")
    assert [pod["volumes"][0] for pod in workers(made)] == [{"name": "models", "emptyDir": {}}]


def test_the_values_of_the_guide_are_what_the_chart_takes(tmp_path: Path) -> None:
    guide = (make_chart.ROOT / "docs" / "how-to" / "run-on-kubernetes.md").read_text("utf-8")
    (tmp_path / "values.yaml").write_text(guide.split("```yaml\n")[1].split("```")[0], encoding="utf-8")
    made = rendered(f"--values={tmp_path / 'values.yaml'}")
    kinds = {each["kind"] for each in made}
    assert {"ScaledJob", "TriggerAuthentication", "Ingress", "ServiceMonitor", "PrometheusRule"} <= kinds
    names = {name for pod in every_pod(made) for name in secrets_of(pod)}
    assert names == {"control", "models", "worker"}
    assert all(f"generic {name} " in guide or f"secret {name} " in guide for name in names)


def secrets_of(pod: Manifest) -> set[str]:
    sources = [source for container in pod["containers"] for source in container.get("envFrom", ())]
    volumes = [volume["secret"]["secretName"] for volume in pod.get("volumes", ()) if "secret" in volume]
    return {source["secretRef"]["name"] for source in sources if "secretRef" in source} | {*volumes}


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--set=control.replica=3", "replica"),
        ("--set=workers[0].modell=x", "modell"),
        ("--set=workerDefaults.autoscaler=vpa", "autoscaler"),
        ('--set-json=workers=[{"model":"a"},{"model":"b"}]', 'two entries are named "worker"'),
        ("--set=settings.DIFFUSERVE_TOKEN_BUGDET=9", "DIFFUSERVE_TOKEN_BUGDET"),
        ('--set-json=workers=[{"model":"a","args":["--offload","model"]}]', "extraArgs"),
    ],
)
def test_values_that_nobody_reads_are_refused_by_name(option: str, told: str) -> None:
    done = template(option)
    assert done.returncode != 0
    assert told in done.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--set=host=https://images.example.com"], "/host"),
        (["--set=control.image="], "/control/image"),
        (['--set-json=workers=[{"name":"control","model":"a"}]'], "name of the control planes"),
        (["--set=workerDefaults.terminationGracePeriodSeconds=600"], "--drain-seconds 600"),
        (["--set=workerDefaults.extraArgs={--drain-seconds=900}"], "--drain-seconds 900"),
        (['--set-json=workerDefaults.extraArgs=["--drain-seconds",700]'], "--drain-seconds 700"),
        (["--set=workerDefaults.minReplicas=3", "--set=workerDefaults.maxReplicas=2"], "maxReplicas 2"),
        (["--set=models.claim=", "--set=models.store=s3://models"], "models.claim"),
    ],
)
def test_what_a_cluster_would_refuse_is_refused_before(options: list[str], told: str) -> None:
    done = template(*options)
    assert done.returncode != 0
    assert told in done.stderr


_SECRETS = {variable_of(name) for name, field in Settings.model_fields.items() if not field.repr}
_ALSO_WITHOUT_A_PASSWORD = {"DIFFUSERVE_VALKEY_URL"}


@pytest.mark.parametrize(
    "setting",
    [
        *(f"{name}=hush" for name in sorted(_SECRETS - _ALSO_WITHOUT_A_PASSWORD)),
        *(f"{name}=valkey://:hush@valkey:6379" for name in sorted(_ALSO_WITHOUT_A_PASSWORD)),
        "AWS_SECRET_ACCESS_KEY=hush",
        "AWS_SESSION_TOKEN=hush",
    ],
)
def test_secrets_do_not_come_into_the_config_map(setting: str) -> None:
    done = template(f"--set=settings.{setting}")
    assert done.returncode != 0
    assert f"{setting.partition('=')[0]} is or has a secret" in done.stderr
    assert "hush" not in done.stderr


def test_holes_of_a_template_stand_where_the_values_stood() -> None:
    manifest = {"spec": {"image": "a", "args": ["x"], "labels": {"a/b": "c"}, "size": 1}}
    text = as_template(
        manifest,
        {
            "spec/image": Inline("{{ .image }}"),
            "spec/args": Lines("- one\n{{- toYaml .more | nindent 0 }}"),
            "spec/labels/a~1b": Inline("{{ .b }}"),
            "spec/size": None,
            "spec/+": Lines("x: {{- toYaml .x | nindent 2 }}"),
        },
    )
    assert text == (
        "spec:\n  image: {{ .image }}\n  args:\n    - one\n    {{- toYaml .more | nindent 4 }}\n"
        "  labels:\n    a/b: {{ .b }}\n  x: {{- toYaml .x | nindent 4 }}\n"
    )
    assert as_template({"a": {"b": [1]}}, {"a": Block(".a")}) == "a: {{- toYaml .a | nindent 2 }}\n"
    with pytest.raises(KeyError, match="spec/imagee"):
        as_template(manifest, {"spec/imagee": Inline("")})
    with pytest.raises(ValueError, match="braces"):
        as_template({"a": "{{ b }}"}, {})
