"""Checkpoints of the jobs inside an engine: read when jobs arrive, and written while they run."""

import logging
import math
import time
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path

from diffuserve.domain.errors import CheckpointUnusable, NoCheckpoint
from diffuserve.domain.jobs.checkpoint import CHECKPOINT_ID
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.engine import Engine
from diffuserve.engine.requests.checkpoint import Checkpoint, check, max_file_bytes
from diffuserve.engine.requests.checkpoint_file import read_checkpoint, write_checkpoint
from diffuserve.engine_process.agent_link import AgentLink
from diffuserve.engine_process.output.image_output import in_background
from diffuserve.protocol.messages import AddJob, CheckpointReady
from diffuserve.telemetry.log_fields import fields

log = logging.getLogger(__name__)


@dataclass
class CheckpointTimer:
    """Decides when a job's next checkpoint is due; its file has at most `max_bytes`."""

    seconds: float
    max_bytes: int
    kept_at: float = field(default_factory=time.monotonic)

    def is_due(self, now: float) -> bool:
        return now - self.kept_at >= self.seconds


class JobCheckpoints:
    """Gives checkpoints of one engine to the agent.

    Nothing waits for the hash of its weights, which may take long to compute: until it is known no checkpoint
    is given.
    """

    def __init__(self, engine: Engine, link: AgentLink) -> None:
        self._engine, self._link = engine, link
        self._hash: Future[str] | None = None

    def given(self, job: AddJob, params: GenerationParams) -> Checkpoint | None:
        """Return the checkpoint that a job resumes from; `None` if it has no usable one."""
        path = job.files.get(CHECKPOINT_ID)
        if path is None:
            return None
        pipeline = self._engine.pipeline
        try:
            checkpoint = read_checkpoint(Path(path), max_file_bytes(pipeline, params))
            check(checkpoint, pipeline, self._engine.read_weights_hash(), params)
        except (CheckpointUnusable, OSError) as error:
            log.warning("attempt %s begins anew: %s", job.attempt, error, extra=fields(**job.log_names))
            return None
        return checkpoint

    def timer(self, job: AddJob, params: GenerationParams) -> CheckpointTimer:
        """Return the timer of a job; one that is too short to be kept has a checkpoint if it is preempted."""
        self._hash = self._hash or in_background(self._engine.read_weights_hash)
        seconds = job.checkpoint_seconds or math.inf
        return CheckpointTimer(seconds, max_file_bytes(self._engine.pipeline, params))

    def take(self, request_id: str, timer: CheckpointTimer) -> Checkpoint | None:
        """Take a checkpoint between two steps, or return `None`; the timer then starts again."""
        timer.kept_at = time.monotonic()
        if self._hash is None or not self._hash.done() or self._hash.exception() is not None:
            return None
        try:
            return self._engine.checkpoint(request_id)
        except NoCheckpoint:
            return None

    def give(self, job: AddJob, checkpoint: Checkpoint, timer: CheckpointTimer) -> None:
        """Write a checkpoint and report it to the agent; called on a writer's thread."""
        if path := self._written(job, checkpoint, timer):
            self._link.send(_ready(job, checkpoint, path))

    def preempt(self, request_id: str, job: AddJob, timer: CheckpointTimer) -> None:
        """Write a job's last checkpoint, if there is one, and drop the job; called on a writer's thread."""
        checkpoint = self.take(request_id, timer)
        path = self._written(job, checkpoint, timer) if checkpoint else ""
        ready = _ready(job, checkpoint, path) if checkpoint and path else CheckpointReady(attempt=job.attempt)
        self._link.send(replace(ready, is_last=True))
        self._engine.abort(request_id)

    def _written(self, job: AddJob, checkpoint: Checkpoint, timer: CheckpointTimer) -> str:
        """Return the path of a checkpoint's file, `""` if it cannot be written: the job goes on without."""
        path = Path(job.folder) / f"checkpoint-{checkpoint.step}.safetensors"
        try:
            write_checkpoint(path, checkpoint, timer.max_bytes)
        except (NoCheckpoint, OSError) as error:
            log.warning("attempt %s has no checkpoint: %s", job.attempt, error, extra=fields(**job.log_names))
            return ""
        return str(path)


def _ready(job: AddJob, checkpoint: Checkpoint, path: str) -> CheckpointReady:
    seconds = checkpoint.timings.device_seconds
    return CheckpointReady(attempt=job.attempt, path=path, step=checkpoint.step, seconds=seconds)
