"""The choice of the job that is preempted for a more urgent one: a pure function of the running jobs.

A preempted job resumes from its checkpoint, so little is lost: its prompt is encoded again, which takes about
a step, and the checkpoint is transferred. A job that has done no step yet loses nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.policy.handover import transfer_seconds

_CHECKPOINT_LATENTS = 3
"""Latents of its size that a checkpoint has, with what most samplers remember."""


@dataclass(frozen=True, kw_only=True)
class PreemptibleJob:
    """A running job that may be preempted.

    `cost_seconds` are predicted device-seconds for all its steps. At its worker's last report `step` of
    `total` steps were done; `total` is 0 before the first. `finish_by` is its deadline, if it has one.
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
        """Predicted device-seconds of the remaining steps."""
        return self.cost_seconds * (1 - self.step / self.total) if self.total else self.cost_seconds

    @property
    def lost_seconds(self) -> float:
        """Seconds that are lost if it is preempted after this step and resumes elsewhere."""
        if not self.step:
            return 0.0
        step_seconds = self.cost_seconds / self.total
        return step_seconds + transfer_seconds(_CHECKPOINT_LATENTS * self.latent_bytes)


def may_make_room(job: PreemptibleJob, now: float, config: StoreConfig) -> bool:
    """Return whether a job may be preempted.

    It may not if it was preempted `max_preemptions` times, if it ends soon by itself, or if it might miss its
    deadline: the time until then must be twice what the job still needs.
    """
    if job.num_preempted >= config.max_preemptions or job.remaining_seconds <= job.lost_seconds:
        return False
    return job.finish_by is None or now + 2 * (job.remaining_seconds + job.lost_seconds) <= job.finish_by


def cheapest(jobs: Iterable[PreemptibleJob], num_urgent: Mapping[str, int]) -> PreemptibleJob | None:
    """Return the job to preempt; `None` if there is none.

    It is on a worker with the fewest urgent jobs, so that these spread, and loses the fewest seconds there.
    Ties go to the job that was preempted least often and then to the one with the least progress.
    """

    def order(job: PreemptibleJob) -> tuple[int, float, int, float, str]:
        done = job.step / job.total if job.total else 0.0
        urgent = num_urgent.get(job.worker_id, 0)
        return (urgent, job.lost_seconds, job.num_preempted, done, job.job_id)

    return min(jobs, key=order, default=None)


def is_overdue(waiting_since: float, now: float, config: StoreConfig) -> bool:
    """Return whether an urgent job has waited so long that another is preempted for it."""
    return now - waiting_since >= config.preempt_after_seconds > 0
