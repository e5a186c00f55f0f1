"""The templates of the chart: the objects of the manifests, with holes that its values fill."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from chart.manifests import Manifest, Source, manifest, objects_of, rendered
from chart.template import Block, Hole, Holes, Inline, Lines, as_template

_BASE = Source("base")
_WORKERS = '{{- range $worker := include "diffuserve.workers" $ | fromYamlArray }}\n'
_END = "{{- end }}\n"
_POD = "spec/template/spec"
_ID = '{{ include "diffuserve.modelId" $worker }}'
# The namespace is the release's, wherever the manifests name their own.
_NAMESPACES = (
    (re.compile(r"\bnamespace: diffuserve\b"), "namespace: {{ $.Release.Namespace }}"),
    (re.compile(r"\bcontrol\.diffuserve:"), "control.{{ $.Release.Namespace }}:"),
    (re.compile(r"\bserviceaccount:diffuserve:"), "serviceaccount:{{ $.Release.Namespace }}:"),
    (re.compile(r"\bdiffuserve-worker-own-pod\b"), "{{ $.Release.Namespace }}-worker-own-pod"),
)


@dataclass(frozen=True)
class Part:
    """An object of the chart: made if `when` holds, an expression; by default always."""

    manifest: Manifest
    holes: Holes = field(default_factory=dict)
    when: str = ""

    def text(self) -> str:
        """Return its text as a template."""
        text = f"---\n{as_template(self.manifest, self.holes)}"
        for found, put in _NAMESPACES:
            text = found.sub(put, text)
        return f"{{{{- if {self.when} }}}}\n{text}{_END}" if self.when else text


def templates() -> Mapping[str, str]:
    """Return the text of each template by its file's name."""
    together = "".join
    return {
        "settings.yaml": Part(_base("ConfigMap", "control-settings"), {"data": _SETTINGS}).text(),
        "control.yaml": together(part.text() for part in _control()),
        "migration.yaml": _migration().text(),
        "workers.yaml": _WORKERS + together(part.text() for part in _workers()) + _END,
        "autoscaler-key.yaml": _autoscaler_key().text(),
        "models.yaml": together(part.text() for part in _models()),
        "network.yaml": together(part.text() for part in _network()),
        "deletion-cost.yaml": together(_whole("deletion-cost", "$.Values.deletionCost")),
        "ingress.yaml": _ingress().text(),
        "gateway.yaml": _gateway().text(),
        "monitoring.yaml": together(part.text() for part in _monitoring()),
    }


_SETTINGS = Lines('{{- include "diffuserve.settings" $ | nindent 0 }}')
_CHECKSUM = Lines(
    'annotations:\n  diffuserve.example.com/settings: {{ include "diffuserve.settings" $ | sha256sum }}'
)


def _base(kind: str, name: str) -> Manifest:
    return manifest(_BASE, kind, name)


def _extra(expression: str) -> Lines:
    return Lines(f"{{{{- with {expression} }}}}\n{{{{- toYaml . | nindent 0 }}}}\n{{{{- end }}}}")


def _control() -> Iterator[Part]:
    values, container = "$.Values.control", f"{_POD}/containers/0"
    yield Part(
        _base("Deployment", "control"),
        {
            "spec/replicas": Inline(f"{{{{ {values}.replicas }}}}"),
            "spec/template/metadata/+": _CHECKSUM,
            f"{container}/image": Inline(f"{{{{ {values}.image }}}}"),
            f"{container}/envFrom/1/secretRef/name": Inline(f"{{{{ {values}.secret }}}}"),
            f"{container}/resources": Block(f"{values}.resources"),
            f"{_POD}/+": _extra(f"{values}.pod"),
        },
    )
    yield Part(_base("Service", "control"))
    yield Part(_base("PodDisruptionBudget", "control"), when=f"gt (int {values}.replicas) 1")


def _migration() -> Part:
    values, container = "$.Values.control", f"{_POD}/containers/0"
    return Part(
        _base("Job", "migration"),
        {
            "metadata/name": Inline("migration-{{ $.Release.Revision }}"),  # a Job cannot be changed
            f"{container}/image": Inline(f"{{{{ {values}.image }}}}"),
            f"{container}/envFrom/1/secretRef/name": Inline(f"{{{{ {values}.secret }}}}"),
            f"{_POD}/+": _extra(f"{values}.pod"),
        },
    )


def _workers() -> Iterator[Part]:
    named: Holes = {"metadata/name": Inline("{{ $worker.name }}")}
    instance = Inline("{{ $worker.name }}")
    yield Part(
        _base("Deployment", "worker"),
        {
            **named,
            "spec/replicas": None,
            "spec/+": Lines(_REPLICAS),
            "spec/selector/matchLabels/app.kubernetes.io~1instance": instance,
            "spec/template/metadata/labels/app.kubernetes.io~1instance": instance,
            f"{_POD}/automountServiceAccountToken": Inline("{{ $.Values.deletionCost }}"),
            **_pod(_POD, ["{{- if $.Values.deletionCost }}\n- --pod-deletion-cost\n{{- end }}"], _ACCOUNT),
        },
        'ne $worker.autoscaler "scaledjob"',
    )
    yield Part(_scaled_job(), {**named, **_of_scaled_job()}, 'eq $worker.autoscaler "scaledjob"')
    for folder, kind in (("keda", "ScaledObject"), ("hpa", "HorizontalPodAutoscaler")):
        found = manifest(Source(f"overlays/{folder}"), kind, "worker")
        own = _of_keda(found) if folder == "keda" else _of_hpa(found)
        yield Part(found, {**named, **own}, f'eq $worker.autoscaler "{folder}"')


_REPLICAS = '{{- if eq $worker.autoscaler "none" }}\nreplicas: {{ $worker.replicas }}\n{{- end }}'
_VOLUME = (
    "{{- with $.Values.models.claim }}\npersistentVolumeClaim: { claimName: {{ . }}, readOnly: true }\n"
    "{{- else }}\nemptyDir: {}\n{{- end }}"
)
_NODES = "{{- with $worker.nodeSelector }}\nnodeSelector: {{- toYaml . | nindent 2 }}\n{{- end }}"
_ACCOUNT = "{{- if $.Values.deletionCost }}\nserviceAccountName: worker\n{{- end }}"


def _pod(place: str, args: list[str], more: str = "") -> Holes:
    """Return the holes of a worker's pod, whose arguments end with these."""
    container, worker = f"{place}/containers/0", "$worker"
    spot = f"{{{{- with {worker}.spot }}}}\n- --spot\n- {{{{ . }}}}\n{{{{- end }}}}"
    arguments = [
        f"\n- --model\n- {{{{ {worker}.model | quote }}}}",
        spot,
        _extra(f"{worker}.args").text,
        _extra(f"{worker}.extraArgs").text,
    ]
    further = "\n".join(filter(None, [_NODES, _extra(f"{worker}.pod").text, more]))
    return {
        f"{place}/terminationGracePeriodSeconds": Inline(f"{{{{ {worker}.terminationGracePeriodSeconds }}}}"),
        f"{place}/tolerations": Block(f"{worker}.tolerations"),
        f"{container}/image": Inline(f"{{{{ {worker}.image }}}}"),
        f"{container}/args": Lines("\n".join([*arguments, *args])),
        f"{container}/env/+": _extra(f"{worker}.env"),
        f"{container}/resources": Block(f"{worker}.resources"),
        f"{place}/volumes/0/persistentVolumeClaim": None,
        f"{place}/volumes/0/+": Lines(_VOLUME),
        f"{place}/volumes/1/emptyDir/sizeLimit": Inline(f"{{{{ {worker}.sharedMemory }}}}"),
        f"{place}/volumes/4/secret/secretName": Inline(f"{{{{ {worker}.secret }}}}"),
        f"{place}/+": Lines(further),
    }


def _scaled_job() -> Manifest:
    return manifest(Source("overlays/scaledjob"), "ScaledJob", "worker")


def _of_scaled_job() -> Holes:
    found, place = _scaled_job()["spec"], "spec/jobTargetRef/template/spec"
    container = found["jobTargetRef"]["template"]["spec"]["containers"][0]
    own = container["args"][
        len(_base("Deployment", "worker")["spec"]["template"]["spec"]["containers"][0]["args"]) :
    ]
    url = found["triggers"][0]["metadata"]["url"].rpartition("/")[0]
    return {
        "spec/maxReplicaCount": _number("maxReplicas", found["maxReplicaCount"]),
        "spec/triggers/0/metadata/url": Inline(
            f"{url}/{_ID}{{{{ if $worker.spot }}}}?kind=spot{{{{ end }}}}"
        ),
        **_pod(place, [f'- "{each}"' for each in own]),
    }


def _of_keda(found: Manifest) -> Holes:
    [by_queue, _] = found["spec"]["triggers"]
    return {
        "spec/scaleTargetRef/name": Inline("{{ $worker.name }}"),
        "spec/minReplicaCount": _number("minReplicas", found["spec"]["minReplicaCount"]),
        "spec/maxReplicaCount": _number("maxReplicas", found["spec"]["maxReplicaCount"]),
        "spec/triggers/0/metadata/serverAddress": Inline("{{ $.Values.monitoring.prometheus }}"),
        "spec/triggers/0/metadata/query": Inline(_of_the_model(by_queue["metadata"]["query"])),
        "spec/triggers/1/metadata/serverAddress": Inline("{{ $.Values.monitoring.prometheus }}"),
    }


def _of_hpa(found: Manifest) -> Holes:
    return {
        "spec/scaleTargetRef/name": Inline("{{ $worker.name }}"),
        "spec/minReplicas": _number("minReplicas", found["spec"]["minReplicas"]),
        "spec/maxReplicas": _number("maxReplicas", found["spec"]["maxReplicas"]),
        "spec/metrics/0/external/metric/selector/matchLabels/pool": Inline(_ID),
    }


def _number(value: str, default: int) -> Inline:
    given = f"$worker.{value}"
    return Inline(f'{{{{ kindIs "invalid" {given} | ternary {default} {given} }}}}')


def _of_the_model(query: str) -> str:
    return re.sub(r'(?<=pool=")[^"]+', _ID, query)


def _autoscaler_key() -> Part:
    found = manifest(Source("overlays/scaledjob"), "TriggerAuthentication", "autoscaler")
    secret: Holes = {"spec/secretTargetRef/0/name": Inline("{{ $.Values.autoscalerSecret }}")}
    return Part(found, secret, 'include "diffuserve.hasScaledJob" $')


def _models() -> Iterator[Part]:
    yield Part(
        _base("PersistentVolumeClaim", "model-pvc"),
        {
            "metadata/name": Inline("{{ $.Values.models.claim }}"),
            "metadata/+": Lines("annotations:\n  helm.sh/resource-policy: keep"),
            "spec/accessModes/0": Inline("{{ $.Values.models.accessMode }}"),
            "spec/resources/requests/storage": Inline("{{ $.Values.models.size }}"),
            "spec/+": Lines(
                "{{- with $.Values.models.storageClass }}\nstorageClassName: {{ . }}\n{{- end }}"
            ),
        },
        "and $.Values.models.create $.Values.models.claim",
    )
    [job] = objects_of("models")
    yield Part(
        job,
        {
            "metadata/name": Inline("models-{{ $.Release.Revision }}"),
            f"{_POD}/containers": Lines(_containers_of_models(job)),
            f"{_POD}/volumes/0/persistentVolumeClaim/claimName": Inline(_CLAIM_TO_FILL),
            f"{_POD}/+": _extra("$.Values.control.pod"),
        },
        "$.Values.models.store",
    )


_CLAIM_TO_FILL = (
    '{{ required "models.store fills the volume models.claim, which is empty: name it, or leave the store '
    'out and give workers --model-store in extraArgs" $.Values.models.claim }}'
)


def _containers_of_models(job: Manifest) -> str:
    containers = as_template(
        job["spec"]["template"]["spec"]["containers"],
        {
            "0/name": Inline("model-{{ $number }}"),
            "0/image": Inline("{{ $.Values.control.image }}"),
            "0/args/2": Inline("{{ $name | quote }}"),
            "0/args/4": Inline("{{ $.Values.models.store | quote }}"),
            "0/env": Block("$.Values.models.env"),
            "0/envFrom/0/secretRef/name": Inline("{{ $.Values.models.secret }}"),
        },
    )
    return f"{{{{- range $number, $name := $.Values.models.names }}}}\n{containers}{_END}"


def _network() -> Iterator[Part]:
    for each in rendered(_BASE):
        if each["kind"] == "NetworkPolicy":
            yield Part(each, when="$.Values.networkPolicy.enabled")
    notices = manifest(Source("overlays/spot"), "NetworkPolicy", "notices")
    yield Part(notices, when='and $.Values.networkPolicy.enabled (include "diffuserve.hasSpot" $)')


def _whole(component: str, when: str) -> Iterator[str]:
    for each in objects_of(component):
        is_policy = each["kind"] == "NetworkPolicy"
        yield Part(each, when=f"and $.Values.networkPolicy.enabled {when}" if is_policy else when).text()


def _ingress() -> Part:
    [found] = objects_of("ingress")
    holes: dict[str, Hole] = {
        "metadata/annotations": Block("$.Values.ingress.annotations"),
        "spec/ingressClassName": Inline("{{ $.Values.ingress.className }}"),
        "spec/tls/0/secretName": Inline("{{ $.Values.ingress.tlsSecret }}"),
    }
    holes |= dict.fromkeys(("spec/tls/0/hosts/0", "spec/rules/0/host"), Inline("{{ $.Values.host }}"))
    return Part(found, holes, "$.Values.ingress.enabled")


def _gateway() -> Part:
    [found] = objects_of("gateway")
    holes: Holes = {
        "spec/hostnames/0": Inline("{{ $.Values.host }}"),
        "spec/parentRefs": Block("$.Values.gateway.parentRefs"),
    }
    return Part(found, holes, "$.Values.gateway.enabled")


def _monitoring() -> Iterator[Part]:
    for each in objects_of("monitoring"):
        holes: dict[str, Hole] = {"metadata/labels": Block("$.Values.monitoring.labels")}
        if each["kind"] == "ServiceMonitor":
            place = "spec/endpoints/0/authorization/credentials/name"
            holes[place] = Inline("{{ $.Values.monitoring.secret }}")
        if each["kind"] == "PrometheusRule":
            holes |= _of_runbooks(each)
        yield Part(each, holes, "$.Values.monitoring.enabled")


def _of_runbooks(found: Manifest) -> Iterator[tuple[str, Hole]]:
    for group, rules in enumerate(found["spec"]["groups"]):
        for number, rule in enumerate(rules["rules"]):
            place = f"spec/groups/{group}/rules/{number}/annotations/runbook_url"
            path = rule["annotations"]["runbook_url"].removeprefix("https://docs.example.com")
            yield place, Inline(f"{{{{ $.Values.monitoring.documents }}}}{path}")
