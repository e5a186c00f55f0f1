"""A store as a busy service has it: workers with running jobs, a long queue, and what ended."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import sqlalchemy as sa

from diffuserve.domain.jobs.job import IMAGE_GENERATE, Band, JobError, JobStatus, Phase
from diffuserve.domain.safety import FilterInfo
from diffuserve.domain.workers.worker import WorkerReport, WorkerRole, WorkerState
from diffuserve.jobs.database import count_tables, schema
from diffuserve.jobs.database.connections import Transaction
from diffuserve.jobs.database.tallies import BUCKET_SECONDS
from diffuserve.jobs.database.tally import TallyKind
from diffuserve.jobs.records import JobRecord, dump
from diffuserve.jobs.store import JobStore

_MODELS = ("flux-dev", "sdxl", "wan-14b")
_STEPS = 28
_AT_ONCE = 5_000
_INPUT = dump({"prompt": "a lighthouse in a storm, oil on canvas, " * 4, "num_inference_steps": _STEPS})
_FILTER = FilterInfo("nudenet", "3.4.2", {f"category_{n}": 0.5 for n in range(18)})


@dataclass(frozen=True, kw_only=True)
class Size:
    """Numbers of workers, tenants, jobs and deliveries."""

    num_workers: int = 200
    num_tenants: int = 200
    num_queued: int = 100_000
    jobs_per_worker: int = 4
    num_failed: int = 5_000
    num_failed_deliveries: int = 5_000


async def fill(store: JobStore, size: Size) -> None:
    """Write all of it."""
    chance = random.Random(1)
    now = await store.database.now()
    records = _queued(size, now, chance)
    while some := list(islice(records, _AT_ONCE)):
        await _insert(store, schema.jobs, [vars(record) for record in some])
        await _insert(store, schema.ready, [_ready_row(record) for record in some])
        await store.database.write(lambda transaction, some=some: _count_lanes(transaction, some))  # type: ignore[misc]
    await _insert(store, schema.jobs, [vars(record) for record in _failed(size, now, chance)])
    running = list(_running(size, now, chance))
    await _insert(store, schema.jobs, [vars(record) for record in running])
    await _insert(store, schema.leases, [_lease_row(record, now, chance) for record in running])
    await _insert(store, schema.workers, [_worker_row(n, now, chance) for n in range(size.num_workers)])
    await _insert(
        store, schema.tenants, [{"id": _tenant(n), "weight": 1 + n % 4} for n in range(size.num_tenants)]
    )
    await _insert(store, count_tables.tallies, list(_tally_rows(size, now, chance)))
    await _insert(store, schema.webhook_endpoints, [_endpoint_row(n, now) for n in range(size.num_tenants)])
    await _insert(store, schema.webhook_deliveries, list(_delivery_rows(size, now)))


async def move(store: JobStore, num_workers: int, step: int) -> None:
    """Change what two seconds change: some workers send heartbeats, and their jobs take steps."""

    def write(transaction: Transaction) -> None:
        workers, leases = schema.workers, schema.leases
        ids = [_worker(n) for n in range(num_workers)]
        is_moving = leases.c.worker_id.in_(ids)
        transaction.execute(sa.update(leases).where(is_moving).values(step=step))
        transaction.execute(
            sa.update(workers).where(workers.c.id.in_(ids)).values(heartbeat_at=transaction.now)
        )

    await store.database.write(write)


async def _insert(store: JobStore, table: sa.Table, rows: Sequence[dict[str, Any]]) -> None:
    for start in range(0, len(rows), _AT_ONCE):
        some = list(rows[start : start + _AT_ONCE])
        await store.database.write(lambda transaction, some=some: transaction.execute(sa.insert(table), some))  # type: ignore[misc]


def _tenant(number: int) -> str:
    return f"tenant-{number:03}"


def _worker(number: int) -> str:
    return f"worker_00000000_{number:016x}"


def _queued(size: Size, now: float, chance: random.Random) -> Iterator[JobRecord]:
    bands = list(Band)
    for number in range(size.num_queued):
        yield _record(number, size, now, bands[number % 3], chance)


def _failed(size: Size, now: float, chance: random.Random) -> Iterator[JobRecord]:
    codes = ("nan", "timeout", "prompt_blocked", "out_of_memory", "worker_lost")
    for number in range(size.num_failed):
        record = _record(size.num_queued + number, size, now, Band.STANDARD, chance)
        error = JobError(codes[number % 5], "the latents are not finite after step 3; try another seed")
        finished_at = now - 7_200 * number / size.num_failed
        yield replace(record, status=JobStatus.FAILED, error=dump(error), finished_at=finished_at)


def _running(size: Size, now: float, chance: random.Random) -> Iterator[JobRecord]:
    first = size.num_queued + size.num_failed
    for number in range(size.num_workers * size.jobs_per_worker):
        record = _record(first + number, size, now, Band.STANDARD, chance)
        worker_id = _worker(number // size.jobs_per_worker)
        yield replace(
            record, status=JobStatus.RUNNING, worker_id=worker_id, started_at=now - 20, lease_token=1
        )


def _record(number: int, size: Size, now: float, band: Band, chance: random.Random) -> JobRecord:
    return JobRecord(
        id=f"job_{number:032x}",
        tenant_id=_tenant(number % size.num_tenants),
        kind=IMAGE_GENERATE,
        model=_MODELS[number % 3 if chance.random() < 0.9 else 0],
        status=JobStatus.QUEUED,
        band=band,
        input=_INPUT,
        metadata="{}",
        output_format="png",
        num_previews=0,
        cost_seconds=chance.uniform(2.0, 20.0),
        step_tokens=4_096,
        timeout=None,
        deadline=None,
        seq=number,
        num_events=1,
        version=1,
        created_at=now - chance.uniform(1.0, 3_000.0),
        webhook=None,
        batch_id=None,
        custom_id=None,
        prompt=None,
    )


def _ready_row(record: JobRecord) -> dict[str, Any]:
    return {
        "job_id": record.id,
        "lane": record.lane,
        "seq": record.seq,
        "cost_seconds": record.cost_seconds,
        "step_tokens": record.step_tokens,
        "enqueued_at": record.created_at,
    }


def _count_lanes(transaction: Transaction, records: Sequence[JobRecord]) -> None:
    from diffuserve.jobs.queue.ready_queue import _grow_lanes

    _grow_lanes(transaction, records)


def _lease_row(record: JobRecord, now: float, chance: random.Random) -> dict[str, Any]:
    return {
        "job_id": record.id,
        "lease_token": 1,
        "tenant_id": record.tenant_id,
        "model": record.model,
        "worker_id": record.worker_id,
        "claim_id": "claim",
        "until": "files",
        "charged": record.cost_seconds,
        "expires_at": now + 3_600,
        "is_canceling": False,
        "phase": Phase.DENOISE,
        "step": chance.randrange(_STEPS),
        "total": _STEPS,
    }


def _worker_row(number: int, now: float, chance: random.Random) -> dict[str, Any]:
    report = WorkerReport(
        state=WorkerState.OCCUPIED,
        timestamp=now,
        num_gpus=1,
        num_cpus=16,
        memory_bytes=int(chance.uniform(2e10, 7e10)),
        memory_limit_bytes=80 << 30,
        resident_models=_MODELS[:2],
        last_step_seconds=chance.uniform(0.1, 0.3),
        num_running=4,
        mean_batch=chance.uniform(1.0, 4.0),
        image_filter=_FILTER,
    )
    return {
        "id": _worker(number),
        "name": f"gpu-{number:03}",
        "labels": dump({"zone": "eu-west-1a", "pool": "spot"}),
        "models": dump(_MODELS),
        "report": dump(report),
        "registered_at": now - 86_400 + number,
        "heartbeat_at": now,
        "is_draining": False,
        "is_spot": True,
        "price_per_hour": 1.2,
        "role": WorkerRole.ALL,
    }


def _tally_rows(size: Size, now: float, chance: random.Random) -> Iterator[dict[str, Any]]:
    """Yield fifteen minutes in which all tenants had jobs in each ten seconds."""
    keys = [(TallyKind.TENANT, _tenant(number)) for number in range(size.num_tenants)]
    keys += [(TallyKind.OUTCOME, outcome) for outcome in ("succeeded", "failed", "queued", "canceled")]
    keys += [(TallyKind.ENDED, status) for status in ("succeeded", "failed", "canceled")]
    keys += [(kind, str(bucket)) for kind in (TallyKind.QUEUE, TallyKind.RUN) for bucket in range(30, 60)]
    newest = int(now // BUCKET_SECONDS) * BUCKET_SECONDS
    for age in range(0, 900, BUCKET_SECONDS):
        for kind, key in keys:
            count = {"num": chance.randrange(1, 9), "seconds": chance.uniform(1.0, 50.0)}
            yield {"started_at": newest - age, "kind": kind, "key": key, **count}


def _endpoint_row(number: int, now: float) -> dict[str, Any]:
    return {
        "id": f"wh_{number:04}",
        "tenant_id": _tenant(number),
        "url": f"https://hooks.example.com/{number}",
        "created_at": now - 3_600,
        "disabled_at": now if number % 20 == 0 else None,
    }


def _delivery_rows(size: Size, now: float) -> Iterator[dict[str, Any]]:
    for number in range(size.num_failed_deliveries):
        yield {
            "id": f"msg_{number:016x}",
            "endpoint_id": f"wh_{number % 40 % size.num_tenants:04}",
            "tenant_id": _tenant(number % 40 % size.num_tenants),
            "host": "hooks.example.com",
            "type": "job.succeeded",
            "subject_id": f"job_{number:032x}",
            "base_url": "https://api.example.com",
            "status": "pending",
            "num_attempts": 2,
            "created_at": now - 3_600,
            "next_at": now + 3_600,
            "last_attempt_at": now - 60 - number,
            "last_status": 503,
        }
