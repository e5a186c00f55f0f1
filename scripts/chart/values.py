"""The values of the chart: what each is for, what may stand there, and its default, which is the base's."""

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from chart.manifests import Manifest, Source, manifest, objects_of
from diffuserve.setting_errors import PREFIX, variable_of
from diffuserve.settings import Settings

Schema = Mapping[str, Any]
_TYPES = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object"}
_TEXT: Schema = {"minLength": 1}
_HOST: Schema = {"pattern": "^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"}
AUTOSCALERS = ("none", "scaledjob", "keda", "hpa")
_GROUPS = {
    "control": "The control planes.",
    "workerDefaults": "What workers have where their entry in `workers` says nothing else; that replaces it.",
    "models": "The volume of models, which workers mount to read.",
    "ingress": "An Ingress at `host`. Its controller's namespace needs the label "
    "diffuserve.example.com/reaches-control=true.",
    "gateway": "An HTTPRoute at `host`, in place of an Ingress; the Gateway ends TLS. The same label.",
    "monitoring": "Objects for the Prometheus Operator, whose Prometheus needs a namespace with the label "
    "diffuserve.example.com/scrapes=true.",
    "networkPolicy": "Who reaches whom. More policies of your own add to these.",
}


@dataclass(frozen=True)
class Value:
    """A value by its dotted name; `schema` adds to the type, which is the default's."""

    name: str
    default: Any
    help: str
    schema: Schema = field(default_factory=dict)

    @property
    def json_schema(self) -> Schema:
        """Return what may stand there."""
        kind = {} if self.default is None else {"type": _TYPES[type(self.default)]}
        return {**kind, **self.schema}


def values() -> Sequence[Value]:
    """Return all values in their order."""
    base = Source("base")
    settings = {
        name: _parsed(text) for name, text in manifest(base, "ConfigMap", "control-settings")["data"].items()
    }
    host = settings.pop("DIFFUSERVE_PUBLIC_API_URL").removeprefix("https://")
    control = manifest(base, "Deployment", "control")["spec"]
    return (
        Value("host", host, "Name under which clients reach the service, by https.", _HOST),
        Value(
            "settings",
            settings,
            "Settings of the control planes; what is no text is written as JSON. Name the network of your "
            "ingress' pods in DIFFUSERVE_TRUSTED_PROXIES: it is believed who its clients are. Secrets belong "
            "into `control.secret`, and are refused here.",
            _settings_schema(),
        ),
        Value("control.image", _container(control)["image"], "Image, by tag or digest.", _TEXT),
        Value("control.replicas", control["replicas"], "Number of control planes.", {"minimum": 1}),
        Value(
            "control.secret", "control", "Secret with DIFFUSERVE_DATABASE_URL and the bucket's credentials."
        ),
        Value("control.resources", _container(control)["resources"], "Requests and limits of each."),
        Value(
            "control.pod", {}, "Further fields of their pods' spec, such as imagePullSecrets and affinity."
        ),
        Value(
            "workers",
            [{"name": "worker", "model": _model_of(_worker())}],
            "Workers, a set for each entry: its `name`, its `model` (a folder of the volume, or a name in "
            "the model store), `modelId` where clients name it otherwise, and whatever is to differ from "
            "`workerDefaults`.",
            {"minItems": 1, "items": {"$ref": "#/$defs/worker"}},
        ),
        *(
            Value(f"workerDefaults.{each.name}", each.default, each.help, each.schema)
            for each in of_workers()
        ),
        *_of_models(),
        *_of_the_doors(),
        *_of_monitoring(),
        Value("networkPolicy.enabled", True, "Make the policies."),
        Value(
            "deletionCost",
            False,
            "Have workers tell Kubernetes what their end costs, so that idle ones go first where the "
            "autoscaler keda or hpa shrinks their number. Needs Kubernetes 1.30.",
        ),
        Value(
            "autoscalerSecret",
            "autoscaler",
            "Secret with a key of the role monitor as `token`, for `scaledjob`.",
        ),
    )


def of_workers() -> Sequence[Value]:
    """Return the values that each set of workers may have of its own."""
    spec = _worker()
    pod = spec["template"]["spec"]
    container = _container(spec)
    count: Schema = {"type": ["integer", "null"], "minimum": 0}
    return (
        Value("image", container["image"], "Image, by tag or digest.", _TEXT),
        Value("replicas", spec["replicas"], "Number of workers, without an autoscaler.", {"minimum": 0}),
        Value("secret", "worker", "Secret with DIFFUSERVE_API_KEY, a key of the role worker."),
        Value("args", container["args"][2:], "Options of `diffuserve worker`, without the model."),
        Value(
            "extraArgs", [], "Further options beside `args`, which an entry of its own replaces as a whole."
        ),
        Value("env", [], "Further variables, as in a container."),
        Value("resources", container["resources"], "Requests and limits, GPUs among them."),
        Value(
            "sharedMemory",
            pod["volumes"][1]["emptyDir"]["sizeLimit"],
            "Size of the memory that a worker's processes share.",
        ),
        Value("nodeSelector", {}, "Labels of the nodes, such as nvidia.com/gpu.product."),
        Value("tolerations", pod["tolerations"], "Taints that they tolerate."),
        Value(
            "terminationGracePeriodSeconds",
            pod["terminationGracePeriodSeconds"],
            "More than --drain-seconds: a worker that is stopped finishes its jobs.",
        ),
        Value("pod", {}, "Further fields of their pods' spec, such as affinity and runtimeClassName."),
        Value(
            "autoscaler",
            "none",
            "none, scaledjob (KEDA, by seconds of work; recommended), keda (by the queue's length) or hpa.",
            {"enum": list(AUTOSCALERS)},
        ),
        Value("minReplicas", None, "Least number, for keda and hpa.", count),
        Value("maxReplicas", None, "Largest number, for scaledjob, keda and hpa.", count),
        Value(
            "spot",
            "",
            "Cloud whose spot machines these are: gcp, aws or azure.",
            {"enum": ["", "gcp", "aws", "azure"]},
        ),
    )


def _of_models() -> Iterator[Value]:
    claim = manifest(Source("base"), "PersistentVolumeClaim", "model-pvc")["spec"]
    [job] = objects_of("models")
    container = _container(job["spec"])
    yield Value(
        "models.claim",
        "model-pvc",
        "Claim of the volume; an empty one where workers fetch models from a store themselves.",
    )
    yield Value("models.create", True, "Make the claim, which stays when the release is uninstalled.")
    yield Value("models.size", claim["resources"]["requests"]["storage"], "Size of the volume.")
    yield Value("models.storageClass", "", "Class of the volume; by default the cluster's.")
    yield Value("models.accessMode", claim["accessModes"][0], "How the volume is mounted by whom fills it.")
    yield Value(
        "models.store",
        "",
        f"Model store from which a Job fills the volume, such as {container['args'][4]}.",
    )
    yield Value(
        "models.names",
        [container["args"][2]],
        "Names of the models in the store.",
        {"items": {"type": "string"}},
    )
    yield Value("models.secret", "models", "Secret with the store's credentials.")
    yield Value("models.env", container["env"], "Further variables of the Job, such as the bucket's region.")


def _of_the_doors() -> Iterator[Value]:
    [ingress], [route] = objects_of("ingress"), objects_of("gateway")
    yield Value("ingress.enabled", False, "Make it.")
    yield Value("ingress.className", ingress["spec"]["ingressClassName"], "Class of the controller.")
    yield Value(
        "ingress.annotations", ingress["metadata"]["annotations"], "Annotations; these are for ingress-nginx."
    )
    yield Value("ingress.tlsSecret", ingress["spec"]["tls"][0]["secretName"], "Secret with the certificate.")
    yield Value("gateway.enabled", False, "Make it.")
    yield Value("gateway.parentRefs", route["spec"]["parentRefs"], "Gateways, by name and namespace.")


def _of_monitoring() -> Iterator[Value]:
    monitors = {each["kind"]: each for each in objects_of("monitoring")}
    credentials = monitors["ServiceMonitor"]["spec"]["endpoints"][0]["authorization"]["credentials"]
    scaler = manifest(Source("overlays/keda"), "ScaledObject", "worker")["spec"]["triggers"][0]
    yield Value("monitoring.enabled", False, "Make a ServiceMonitor, a PodMonitor and a PrometheusRule.")
    yield Value(
        "monitoring.labels",
        monitors["ServiceMonitor"]["metadata"]["labels"],
        "Labels by which your operator chooses them, such as `release: kube-prometheus-stack`.",
    )
    yield Value("monitoring.secret", credentials["name"], "Secret with a key of the role monitor as `key`.")
    yield Value(
        "monitoring.documents",
        "https://docs.example.com",
        "Address of your copy of the documents, for alerts.",
    )
    yield Value(
        "monitoring.prometheus",
        scaler["metadata"]["serverAddress"],
        "Address of Prometheus, for the autoscaler keda.",
    )


def values_file(declared: Sequence[Value]) -> str:
    """Return values.yaml: each value with its help above it."""
    lines, group = list[str](), ""
    for value in declared:
        first, _, last = value.name.rpartition(".")
        if first != group:
            group = first
            lines += ["", *([*_comment(_GROUPS[first], ""), f"{first}:"] if first else [])]
        margin = "  " if first else ""
        lines += _comment(value.help, margin)
        lines += textwrap.indent(yaml.safe_dump({last: value.default}, sort_keys=False), margin).splitlines()
    return "\n".join(lines).strip("\n").replace(": null\n", ":\n") + "\n"


def schema_file(declared: Sequence[Value]) -> str:
    """Return values.schema.json, by which Helm refuses values that nobody reads."""
    properties: dict[str, Any] = {"global": {"type": "object"}}
    for value in declared:
        first, _, last = value.name.rpartition(".")
        place = properties.setdefault(first, _closed())["properties"] if first else properties
        place[last] = value.json_schema
    of_each = {
        value.name: {"$ref": f"#/properties/workerDefaults/properties/{value.name}"} for value in of_workers()
    }
    worker = _closed({**_OF_A_SET, **of_each}) | {"required": ["model"]}
    schema = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **_closed(properties),
        "$defs": {"worker": worker},
    }
    return json.dumps(schema, indent=1) + "\n"


_OF_A_SET: Mapping[str, Schema] = {
    "name": {"type": "string", "pattern": "^[a-z]([a-z0-9-]{0,40}[a-z0-9])?$"},
    "model": {"type": "string", **_TEXT},
    "modelId": {"type": "string"},
}


def _closed(properties: Mapping[str, Schema] | None = None) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": dict(properties or {})}


def _comment(text: str, margin: str) -> list[str]:
    return textwrap.wrap(text, 108, initial_indent=f"{margin}# ", subsequent_indent=f"{margin}# ")


def _settings_schema() -> Schema:
    """Return a schema that refuses names which begin as settings do and are none, such as misspelled ones."""
    # Helm's expressions cannot look ahead: a name that is not ours differs in one letter of the prefix.
    not_ours = "|".join(f"{PREFIX[:at]}[^{letter}]" for at, letter in enumerate(PREFIX))
    return {
        "additionalProperties": False,
        "properties": {name: {} for name in sorted(map(variable_of, Settings.model_fields))},
        "patternProperties": {f"^({not_ours})": {}},
    }


def _parsed(text: str) -> Any:
    return json.loads(text) if text.startswith(("[", "{")) else text


def _worker() -> Manifest:
    spec: Manifest = manifest(Source("base"), "Deployment", "worker")["spec"]
    return spec


def _container(spec: Manifest) -> Manifest:
    container: Manifest = spec["template"]["spec"]["containers"][0]
    return container


def _model_of(spec: Manifest) -> str:
    args = _container(spec)["args"]
    return str(args[args.index("--model") + 1])
