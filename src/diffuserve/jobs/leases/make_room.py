"""Preemption for interactive jobs: batch jobs make room if none becomes free by itself.

A worker with room claims within milliseconds. So if an interactive job is still queued after
`preempt_after_seconds`, all workers that serve it are full.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from diffuserve.domain.jobs.job import Band
from diffuserve.events.base import worker_topic
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.command import SingleCommand
from diffuserve.jobs.database.connections import Transaction
from diffuserve.jobs.leases import promises
from diffuserve.jobs.leases.claim import ClaimRound
from diffuserve.jobs.leases.claimers import Claimer, live_claimers
from diffuserve.jobs.leases.open_lanes import open_lanes
from diffuserve.jobs.policy.preemption import PreemptibleJob, cheapest, is_overdue, may_make_room

jobs, leases = schema.jobs, schema.leases

FIRST_URGENT = sa.select(sa.func.min(schema.lanes.c.head_at).label("head_at")).where(
    schema.lanes.c.band == Band.INTERACTIVE, schema.lanes.c.num_ready > 0
)
"""Statement that finds when the first interactive job that waits was submitted."""
ANY_TO_PREEMPT = (
    sa.select(leases.c.job_id)
    .join_from(leases, jobs, jobs.c.id == leases.c.job_id)
    .where(jobs.c.band == Band.BATCH, leases.c.is_preempted.is_(False))
    .limit(1)
)
"""Statement that finds a batch job that runs, and was not told to make room yet."""
_BLOCK = 16  # waiting jobs of a lane that are read at a time
_LEASE_COLUMNS = ("job_id", "worker_id", "step", "total", "is_canceling", "is_preempted", "until")
_JOB_COLUMNS = (
    "band",
    "cost_seconds",
    "latent_bytes",
    "latents",
    "num_preempted",
    "finish_by",
    "best_effort",
)
_RUNNING = sa.select(
    *(leases.c[name] for name in _LEASE_COLUMNS), *(jobs.c[name] for name in _JOB_COLUMNS)
).join_from(leases, jobs, jobs.c.id == leases.c.job_id)


@dataclass(frozen=True)
class MakeRoom(SingleCommand[int]):
    """Tell workers to preempt batch jobs, one for each interactive job that has waited too long.

    The outcome is the number of preempted jobs. Promised room counts for the job that will get it
    until a claim of that worker is served, so that no two jobs are preempted for one.
    """

    def apply(self, transaction: Transaction) -> int:
        lanes = [lane for lane in open_lanes(transaction) if lane.account.may_start]
        if not any(lane.band is Band.INTERACTIVE for lane in lanes):
            return 0
        running, claimers = transaction.rows(_RUNNING), live_claimers(transaction)
        search = _Search(ClaimRound(transaction, lanes, _BLOCK), claimers, _urgent(running))
        search.serve_promises()
        chosen = search.choose(_may_make_room(running, transaction))
        _tell(transaction, chosen, claimers)
        return len(chosen)


@dataclass
class _Search:
    """The queue as it will be served, and `num_urgent`, the number of urgent jobs on each worker."""

    claims: ClaimRound
    claimers: dict[str, Claimer]
    num_urgent: Counter[str]

    def serve_promises(self) -> None:
        """Skip the jobs that will get the room already promised."""
        for worker_id, claimer in self.claimers.items():
            for _ in range(claimer.num_promised):
                self._serve(worker_id, claimer)

    def choose(self, running: Iterable[PreemptibleJob]) -> list[PreemptibleJob]:
        """Return the jobs to preempt, cheapest first, while urgent jobs have waited too long."""
        left, chosen = [job for job in running if job.worker_id in self.claimers], []
        while (job := cheapest(left, self.num_urgent)) is not None:
            claimer = self.claimers[job.worker_id]
            if self._is_needed(claimer) and self._serve(job.worker_id, claimer):
                chosen.append(job)
                left.remove(job)
            else:  # its room would go to a job that is not urgent
                left = [other for other in left if other.worker_id != job.worker_id]
        return chosen

    def _is_needed(self, claimer: Claimer) -> bool:
        """Return whether an urgent job has waited too long for a worker such as this one."""
        transaction = self.claims.transaction
        return any(
            lane.band is Band.INTERACTIVE
            and lane.model in claimer.models
            and is_overdue(lane.head_at, transaction.now, transaction.config)
            for lane in self.claims.lanes
        )

    def _serve(self, worker_id: str, claimer: Claimer) -> bool:
        """Skip the job that would get room on this worker; return whether it is urgent."""
        served = self.claims.choose(self.claims.claimant(worker_id, claimer, claimer.models, claimer.models))
        if served is None or served[0].band is not Band.INTERACTIVE:
            return False
        self.claims.pass_over(*served)
        self.num_urgent[worker_id] += 1
        return True


def _urgent(running: Iterable[sa.Row[Any]]) -> Counter[str]:
    return Counter(row.worker_id for row in running if row.band != Band.BATCH)


def _may_make_room(running: Iterable[sa.Row[Any]], transaction: Transaction) -> list[PreemptibleJob]:
    """Return the batch jobs that may be preempted; a decode-only one ends soon by itself."""
    found = [
        PreemptibleJob(
            job_id=row.job_id,
            worker_id=row.worker_id,
            cost_seconds=row.cost_seconds,
            latent_bytes=row.latent_bytes,
            step=row.step,
            total=row.total,
            num_preempted=row.num_preempted,
            finish_by=None if row.best_effort else row.finish_by,
        )
        for row in running
        if row.band == Band.BATCH and row.latents is None and not (row.is_canceling or row.is_preempted)
    ]
    return [job for job in found if may_make_room(job, transaction.now, transaction.config)]


def _tell(transaction: Transaction, chosen: list[PreemptibleJob], claimers: Mapping[str, Claimer]) -> None:
    """Tell the workers to preempt these jobs, and record the room that they promise."""
    if not chosen:
        return
    job_ids = [job.job_id for job in chosen]
    transaction.execute(sa.update(leases).where(leases.c.job_id.in_(job_ids)).values(is_preempted=True))
    promised = {worker_id: claimer.num_promised for worker_id, claimer in claimers.items()}
    promises.promise(transaction, promised, [job.worker_id for job in chosen])
    for job in chosen:
        transaction.publish(worker_topic(job.worker_id), {"type": "preempt", "job_id": job.job_id})
