"""The jobs that a worker holds, and the state that the loops of its agent share."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from diffuserve.domain.job import Phase
from diffuserve.domain.worker import HeldLease, Lease, WorkerState


@dataclass
class HeldJob:
    """A lease and the progress of its job. `is_in_engine` until the engine has finished or lost it."""

    lease: Lease
    folder: Path
    is_in_engine: bool = True
    is_canceling: bool = False
    phase: Phase = Phase.ENCODE
    step: int = 0
    total: int = 0
    has_unreported_progress: bool = False
    since: float = field(default_factory=lambda: asyncio.get_running_loop().time())

    @property
    def attempt(self) -> str:
        """The engine's name for this lease."""
        return f"{self.lease.job_id}-{self.lease.lease_token}"

    def advance(self, phase: Phase, step: int, total: int) -> None:
        self.phase, self.step, self.total = phase, step, total
        self.has_unreported_progress = True

    def to_renew(self) -> HeldLease:
        return HeldLease(
            job_id=self.lease.job_id,
            lease_token=self.lease.lease_token,
            phase=self.phase,
            step=self.step,
            total=self.total,
        )


@dataclass
class AgentState:
    """The state that the loops of one agent share; it needs no lock, since they share an event loop too.

    `held` maps job ids to jobs. `has_capacity` is set while jobs may be claimed, `heartbeat_due` when the
    control plane should learn of a change before the next regular heartbeat. `reported_state` is that of
    the last heartbeat. The agent ends with `exit_code`.
    """

    held: dict[str, HeldJob] = field(default_factory=dict)
    has_capacity: asyncio.Event = field(default_factory=asyncio.Event)
    heartbeat_due: asyncio.Event = field(default_factory=asyncio.Event)
    drain_requested: asyncio.Event = field(default_factory=asyncio.Event)
    reported_state: WorkerState = WorkerState.INITIALIZING
    exit_code: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def is_draining(self) -> bool:
        return self.drain_requested.is_set()

    @property
    def is_over(self) -> bool:
        return self.exit_code.done()

    @property
    def jobs_in_engine(self) -> list[HeldJob]:
        return [job for job in self.held.values() if job.is_in_engine]

    def job_in_engine(self, attempt: str) -> HeldJob | None:
        """Return the job of `attempt`, or `None` if that attempt's lease was lost."""
        job = self.held.get(attempt.rpartition("-")[0])
        return job if job is not None and job.is_in_engine and job.attempt == attempt else None

    def end(self, exit_code: int) -> None:
        """End the agent; only the first exit code counts."""
        if not self.exit_code.done():
            self.exit_code.set_result(exit_code)
