"""A job that a worker holds."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diffuserve.agent.state.held_states import MOVES, HeldState, JobCommand
from diffuserve.domain.jobs.job import Phase
from diffuserve.domain.jobs.progress_report import JobProgress, ProgressReport
from diffuserve.domain.workers.worker import (
    HeldLease,
    Lease,
)
from diffuserve.domain.workers.worker_ids import attempt_id
from diffuserve.modelstore.locks import PinnedFile
from diffuserve.protocol.messages import CheckpointReady
from diffuserve.telemetry.log_fields import fields
from diffuserve.telemetry.tracing import Span


@dataclass
class HeldJob:
    """A lease, the progress of its job, and where that is: its `state`; `commands` were given about it.

    It waited for its model or its files for `load_seconds`, and is kept each `checkpoint_seconds`.
    `unsent_checkpoint` is the newest one, with its file, while another is being uploaded;
    `num_checkpoints` are stored, the last of them with `kept_seconds` of the device in it.
    Its progress was last reported at `reported_at`, and it `is_watched` if somebody watched it then.
    `span` is that of the attempt, which the engine got at `entered_at`, in seconds since the epoch.
    `adapters` are files of the cache, which keeps them for it, by their digests.
    `live_upload` is the newest upload of a part of its clip; none follows once `is_live_over`.
    """

    lease: Lease
    folder: Path
    state: HeldState = HeldState.TAKEN
    commands: set[JobCommand] = field(default_factory=set)
    checkpoint_seconds: float = 0.0
    phase: Phase = Phase.ENCODE
    step: int = 0
    total: int = 0
    frames: int = 0
    num_frames: int = 0
    has_unreported_progress: bool = False
    is_watched: bool = False
    reported_at: float | None = None
    adapters: Mapping[str, PinnedFile] = field(default_factory=dict)
    since: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    load_seconds: float | None = None
    live_upload: asyncio.Task[None] | None = None
    is_live_over: bool = False
    unsent_checkpoint: tuple[CheckpointReady, bytes] | None = None
    checkpoint_upload: asyncio.Task[None] | None = None
    num_checkpoints: int = 0
    kept_seconds: float | None = None
    span: Span = field(default_factory=Span)
    entered_at: float | None = None

    @property
    def attempt(self) -> str:
        """The engine's name for this lease."""
        return attempt_id(self.lease.job_id, self.lease.lease_token)

    @property
    def is_in_engine(self) -> bool:
        """True until it has left the engine; before it is there it counts as if it were."""
        return self.state is not HeldState.LEFT

    def move_to(self, state: HeldState) -> None:
        """Enter the next state, which must be one that may follow."""
        assert state in MOVES[self.state], f"job {self.lease.job_id}: {self.state} → {state}"
        self.state = state

    @property
    def log_names(self) -> dict[str, str]:
        """The fields in each log line about the job."""
        lease, trace = self.lease, self.span.context
        names = {"job_id": lease.job_id, "tenant": lease.tenant_id, "worker_id": lease.worker_id or ""}
        names["trace_id"] = "" if trace is None else trace.trace_id
        return {name: value for name, value in names.items() if value}

    @property
    def log_fields(self) -> dict[str, Any]:
        """The `extra` of a log line about the job."""
        return fields(**self.log_names)

    def advance(self, phase: Phase, step: int, total: int, frames: int = 0, num_frames: int = 0) -> None:
        """Update the number of denoising steps done, and of decoded frames if there are any."""
        self.phase, self.step, self.total = phase, step, total
        if num_frames:
            self.frames, self.num_frames = frames, num_frames
        self.has_unreported_progress = True

    def file(self, path: str) -> Path:
        """Return the current path of a job's file that its engine wrote to `path`."""
        return self.folder / Path(path).name

    @property
    def progress(self) -> JobProgress:
        """Progress of the job, as it is reported."""
        report = ProgressReport(
            lease_token=self.lease.lease_token,
            phase=self.phase,
            step=self.step,
            total=self.total,
            frames=self.frames,
            num_frames=self.num_frames,
        )
        return JobProgress(job_id=self.lease.job_id, report=report)

    def to_renew(self) -> HeldLease:
        return HeldLease(
            job_id=self.lease.job_id,
            lease_token=self.lease.lease_token,
            phase=self.phase,
            step=self.step,
            total=self.total,
        )
