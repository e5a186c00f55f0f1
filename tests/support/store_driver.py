"""Short functions for the operations of tests on a job store."""

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

from diffuserve.domain.jobs.claim import Claim
from diffuserve.domain.jobs.job import Job, JobError, JobResult, NewJob
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.workers.worker import (
    Completion,
    ControlCommands,
    Failure,
    HandOver,
    Heartbeat,
    HeldLease,
    Lease,
    LeaseEnd,
    ModelOffer,
    Registration,
    Release,
    ReleaseCause,
    WorkerReport,
    WorkerState,
)
from diffuserve.jobs.store import JobStore
from diffuserve.testing.fake_clock import FakeClock

SPEC = ModelSpec(
    name="tiny",
    family="flux",
    width=64,
    height=64,
    num_inference_steps=4,
    max_sequence_length=16,
    longest_sequence_length=64,
)
REPORT = WorkerReport(state=WorkerState.READY)
_CLAIMS = itertools.count()


def new_job(tenant: str = "ada", **values: Any) -> NewJob:
    defaults: dict[str, Any] = {"model": "tiny", "input": {"prompt": "a star"}, "cost_seconds": 1.0}
    return NewJob(tenant_id=tenant, **(defaults | {"step_tokens": 32} | values))


async def add_worker(store: JobStore, *models: str, **values: Any) -> str:
    specs = [replace(SPEC, name=name) for name in models or ("tiny",)]
    offers = tuple(ModelOffer(spec=spec) for spec in specs)
    return await store.leases.register(Registration(models=offers, report=REPORT, **values))


async def claim(store: JobStore, worker: str, num_jobs: int = 1, **values: Any) -> list[Lease]:
    values.setdefault("claim_id", f"claim-{next(_CLAIMS)}")
    return await store.leases.claim(worker, Claim(num_jobs=num_jobs, **values))


async def claim_one(store: JobStore, worker: str) -> Lease:
    (lease,) = await claim(store, worker)
    return lease


async def complete(store: JobStore, lease: Lease, seconds: float = 1.0) -> str:
    completion = Completion(lease_token=lease.lease_token, result=JobResult(), actual_seconds=seconds)
    return await store.leases.complete(lease.job_id, completion)


async def hand_over(store: JobStore, lease: Lease, seconds: float = 1.0) -> str:
    report = HandOver(
        lease_token=lease.lease_token, size_bytes=8, sha256="aa" * 32, weights="bb", actual_seconds=seconds
    )
    return await store.leases.hand_over(lease.job_id, report)


async def finish(store: JobStore, lease: Lease, seconds: float = 1.0) -> str:
    """End an attempt as its lease asks for: with the latents, or with the files."""
    end = hand_over if lease.until is LeaseEnd.LATENTS else complete
    return await end(store, lease, seconds)


async def fail(store: JobStore, lease: Lease, retryable: bool, code: str = "broken") -> str:
    error = JobError(code, "it broke", retryable)
    return await store.leases.fail(lease.job_id, Failure(lease_token=lease.lease_token, error=error))


async def release(store: JobStore, lease: Lease, cause: ReleaseCause = ReleaseCause.DRAIN) -> str:
    return await store.leases.release(lease.job_id, Release(lease_token=lease.lease_token, cause=cause))


async def send_heartbeat(store: JobStore, worker: str, *leases: Lease) -> ControlCommands:
    held = tuple(HeldLease(job_id=lease.job_id, lease_token=lease.lease_token) for lease in leases)
    return await store.leases.heartbeat(worker, Heartbeat(report=REPORT, held=held))


@dataclass
class Time:
    """Advances the clock in steps of `step` seconds, with a round of the reaper after each."""

    store: JobStore
    clock: FakeClock
    holder: str = "reaper"
    step: float = field(default=2.0)

    async def pass_by(self, seconds: float) -> None:
        left = seconds
        while left > 0:
            self.clock.advance(min(self.step, left))
            left -= self.step
            await self.store.housekeeping.reap(self.holder)


async def events(store: JobStore, job: Job) -> list[str]:
    log = await store.jobs.events_after(job.id)
    assert [event.seq for event in log] == list(range(1, len(log) + 1)), "the log has a gap"
    return [event.type for event in log]
