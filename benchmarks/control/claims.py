"""Latency of claims while 100,000 jobs of 200 tenants are queued, and the database's plans for them."""

import asyncio
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from benchmarks.control.database import SQLITE, Database
from diffuserve.domain.jobs.claim import Claim
from diffuserve.domain.jobs.job import Band, JobResult, NewJob
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.tenant import Plan
from diffuserve.domain.workers.worker import (
    Completion,
    Lease,
    ModelOffer,
    Registration,
    WorkerReport,
    WorkerState,
)
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.store import JobStore

NUM_TENANTS = 200
_AT_ONCE = 2_000  # submissions under way while the queue is filled
_PLAN = Plan(name="unbounded", max_running=1_000_000, max_queued=10_000_000)
_SPEC = ModelSpec(
    name="null",
    family="null",
    width=1024,
    height=1024,
    num_inference_steps=4,
    max_sequence_length=256,
    longest_sequence_length=512,
)
_BANDS = (Band.INTERACTIVE, Band.STANDARD, Band.STANDARD, Band.BATCH)


@dataclass(frozen=True, kw_only=True)
class ClaimFigures:
    """Milliseconds per claim, of one job in `p50_ms` and `p99_ms`, of `num_at_once` jobs in `batch_*`.

    Claims follow one another; none overlap.
    """

    database: str
    num_queued: int
    num_claims: int
    p50_ms: float
    p99_ms: float
    num_at_once: int
    batch_p50_ms: float
    batch_p99_ms: float
    submits_per_second: float
    plans: tuple[str, ...]


async def measure_claims(database: Database, num_queued: int, num_claims: int) -> ClaimFigures:
    config = StoreConfig(plans={_PLAN.name: _PLAN}, default_plan=_PLAN.name, max_backlog_seconds=1e12)
    store = JobStore(database.store_url, MemoryEventBus(), config)
    await store.open()
    try:
        started = time.perf_counter()
        await _fill(store, num_queued)
        filled_in = time.perf_counter() - started
        worker_id = await store.leases.register(_registration())
        single = await _claim_often(store, worker_id, num_claims, num_jobs=1)
        several = await _claim_often(store, worker_id, num_claims // 4, num_jobs=8)
        return ClaimFigures(
            database=database.name,
            num_queued=num_queued,
            num_claims=num_claims,
            p50_ms=statistics.median(single),
            p99_ms=percentile(single, 99),
            num_at_once=8,
            batch_p50_ms=statistics.median(several),
            batch_p99_ms=percentile(several, 99),
            submits_per_second=num_queued / filled_in,
            plans=await _explain_claim(store, worker_id, database),
        )
    finally:
        await store.close()


def percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


async def _fill(store: JobStore, num_queued: int) -> None:
    dice = random.Random(0)
    for first in range(0, num_queued, _AT_ONCE):
        count = min(_AT_ONCE, num_queued - first)
        await asyncio.gather(*(store.jobs.submit(_new_job(dice)) for _ in range(count)))


def _new_job(dice: random.Random) -> NewJob:
    return NewJob(
        tenant_id=f"tenant-{dice.randrange(NUM_TENANTS)}",
        model=_SPEC.name,
        input={"prompt": "a red circle", "width": 1024, "height": 1024, "seed": 1},
        cost_seconds=dice.uniform(1, 60),
        step_tokens=4096,
        band=dice.choice(_BANDS),
    )


async def _claim_often(store: JobStore, worker_id: str, count: int, num_jobs: int) -> list[float]:
    """Claim and complete jobs in turn, so that accounts are settled; return milliseconds per claim."""
    milliseconds = []
    for number in range(count):
        claim = Claim(claim_id=f"{num_jobs}-{number}", num_jobs=num_jobs)
        started = time.perf_counter()
        leases = await store.leases.claim(worker_id, claim)
        milliseconds.append(1_000 * (time.perf_counter() - started))
        assert len(leases) == num_jobs
        await asyncio.gather(*(store.leases.complete(lease.job_id, _completion(lease)) for lease in leases))
    return milliseconds


def _completion(lease: Lease) -> Completion:
    return Completion(
        lease_token=lease.lease_token, result=JobResult(input=lease.input), actual_seconds=lease.cost_seconds
    )


def _registration() -> Registration:
    report = WorkerReport(state=WorkerState.READY)
    return Registration(models=(ModelOffer(spec=_SPEC),), report=report)


async def _explain_claim(store: JobStore, worker_id: str, database: Database) -> tuple[str, ...]:
    """Return the plan of every query of one claim that reads lanes or ready jobs."""
    with _recorded_queries() as executed:
        await store.leases.claim(worker_id, Claim(claim_id="explained", num_jobs=1))
    engine = create_async_engine(database.store_url, hide_parameters=True)
    explain = "EXPLAIN QUERY PLAN" if database.name == SQLITE else "EXPLAIN"
    plans = []
    async with engine.connect() as connection:
        for statement, values in executed:
            rows = await connection.exec_driver_sql(f"{explain} {statement}", values)
            plans.append("\n".join([statement, *(f"    {row[-1]}" for row in rows)]))
    await engine.dispose()
    return tuple(plans)


@contextmanager
def _recorded_queries() -> Iterator[list[tuple[str, Any]]]:
    """Yield the list of queries on lanes and ready jobs that this process executes, with their values."""
    executed: list[tuple[str, Any]] = []

    def record(_connection: object, _cursor: object, statement: str, values: Any, *_: object) -> None:
        if statement.startswith("SELECT") and ("FROM lanes" in statement or "FROM ready" in statement):
            executed.append((statement, values))

    sa.event.listen(sa.Engine, "before_cursor_execute", record)
    try:
        yield executed
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", record)
