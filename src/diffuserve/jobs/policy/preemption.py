"""The choice of the job that makes room for a more urgent one: a pure function of what runs.

A job that is put down goes on from its checkpoint, so little is lost: its prompt is encoded again, which
takes about a step, and the checkpoint travels. A job that has done no step yet loses nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.policy.handover import transfer_seconds

_CHECKPOINT_LATENTS = 3
"""Latents of its size that a checkpoint has, with what most samplers remember."""


@dataclass(frozen=True, kw_only=True)
class PreemptibleJob:
    """A running job that may make room.

    `cost_seconds` are predicted device-seconds for all its steps, of which `step` of `total` were done when
    its worker last told; `total` is 0 before that. It is to end by `finish_by`, if at all.
    """

    job_id: str
    worker_id: str
    cost_seconds: float
    latent_bytes: int = 0
    step: int = 0
    total: int = 0
    num_preempted: int = 0
    finish_by: float | None = None

    @property
    def remaining_seconds(self) -> float:
        """Predicted device-seconds of what is still to be done."""
        return self.cost_seconds * (1 - self.step / self.total) if self.total else self.cost_seconds

    @property
    def lost_seconds(self) -> float:
        """Seconds that are lost if it is put down after this step, to go on elsewhere."""
        if not self.step:
            return 0.0
        step_seconds = self.cost_seconds / self.total
        return step_seconds + transfer_seconds(_CHECKPOINT_LATENTS * self.latent_bytes)


def may_make_room(job: PreemptibleJob, now: float, config: StoreConfig) -> bool:
    """Return whether a job may be put down.

    Not more often than `max_preemptions` times, nor if it soon ends by itself, nor if that might cost it
    its deadline: that must leave twice the time that it still needs.
    """
    if job.num_preempted >= config.max_preemptions or job.remaining_seconds <= job.lost_seconds:
        return False
    return job.finish_by is None or now + 2 * (job.remaining_seconds + job.lost_seconds) <= job.finish_by


def cheapest(jobs: Iterable[PreemptibleJob], num_urgent: Mapping[str, int]) -> PreemptibleJob | None:
    """Return the job that makes room; `None` if there is none.

    It is one of a worker with the fewest urgent jobs, so that those spread; there the one that loses the
    least, of equal ones one that was preempted the least often and has done the least.
    """

    def order(job: PreemptibleJob) -> tuple[int, float, int, float, str]:
        done = job.step / job.total if job.total else 0.0
        urgent = num_urgent.get(job.worker_id, 0)
        return (urgent, job.lost_seconds, job.num_preempted, done, job.job_id)

    return min(jobs, key=order, default=None)


def is_overdue(waiting_since: float, now: float, config: StoreConfig) -> bool:
    """Return whether an urgent job has waited so long that room is made for it."""
    return now - waiting_since >= config.preempt_after_seconds > 0
