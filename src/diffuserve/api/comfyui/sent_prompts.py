"""Jobs that came as prompts of ComfyUI: what is remembered of them, and how they are shown. Pure."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from diffuserve.domain.jobs.job import Artifact, Job, JobStatus
from diffuserve.domain.resources.job import images_among

DOOR: Final = "comfyui"
"""Entry of a job's metadata: what this door remembers of the prompt."""


@dataclass(frozen=True)
class SentPrompt:
    """What is remembered of a prompt: its sender's key and client, and nodes that draw and show images."""

    key: str
    client_id: str
    sampler_id: str
    last_ids: tuple[str, ...]
    over_socket: tuple[str, ...] = ()

    @classmethod
    def of(cls, job: Job) -> Self | None:
        """Return what a job's metadata say, `None` for a job that came through another door."""
        said: Any = job.metadata.get(DOOR)
        try:
            return cls(**{name: _tupled(value) for name, value in said.items()})
        except (AttributeError, TypeError):  # a client's own metadata of that name
            return None

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata of the job."""
        return {DOOR: {name: list(v) if isinstance(v, tuple) else v for name, v in vars(self).items()}}


def _tupled(value: Any) -> Any:
    return tuple(map(str, value)) if isinstance(value, list) else str(value)


def client_topic(tenant_id: str, client_id: str) -> str:
    """Return the topic of a client's prompts. Messages: `{"job_id": …}`."""
    name = hashlib.sha256(client_id.encode()).hexdigest()[:32]
    return f"comfyui:{tenant_id}:{name}"


def file_name(job: Job, artifact: Artifact) -> str:
    """Return the name by which a finished image is viewed."""
    return f"{job.id}_{artifact.name}"


def images_of(job: Job) -> list[Artifact]:
    """Return the finished images of a job."""
    return images_among(job.result.artifacts if job.result else ())


def output_of(job: Job) -> dict[str, Any]:
    """Return what the nodes that show images have put out."""
    names = [file_name(job, image) for image in images_of(job)]
    return {"images": [{"filename": name, "subfolder": "", "type": "output"} for name in names]}


def queue_entry(job: Job, sent: SentPrompt) -> list[Any]:
    """Return a prompt as the queue has it: number, id, graph (which is not kept), client, outputs."""
    return [int(job.created_at), job.id, {}, {"client_id": sent.client_id}, list(sent.last_ids)]


def history_entry(job: Job, sent: SentPrompt) -> Mapping[str, Any]:
    """Return a prompt that has ended as the history has it."""
    succeeded = job.status is JobStatus.SUCCEEDED
    messages = [] if succeeded else [["execution_error", failure(job, sent)]]
    status = "success" if succeeded else "error"
    return {
        "prompt": queue_entry(job, sent),
        "outputs": {node_id: output_of(job) for node_id in sent.last_ids} if succeeded else {},
        "status": {"status_str": status, "completed": succeeded, "messages": messages},
        "meta": {},
    }


def failure(job: Job, sent: SentPrompt) -> dict[str, Any]:
    """Return why a prompt has no images."""
    code, message = (job.error.code, job.error.message) if job.error else (str(job.status), str(job.status))
    return {
        "prompt_id": job.id,
        "node_id": sent.sampler_id,
        "node_type": "KSampler",
        "executed": [],
        "exception_message": message,
        "exception_type": code,
        "traceback": [],
    }
