"""Decode workers as a transaction that grants leases sees them; they are read only if there are any."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import sqlalchemy as sa

from diffuserve.domain.workers.worker import WorkerRole
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.connections import Transaction
from diffuserve.jobs.policy.handover import Decoding, QueueLoads, hands_over
from diffuserve.jobs.records import JobRecord
from diffuserve.jobs.workers.offers import decode_slowness

jobs, lanes, leases, workers = schema.jobs, schema.lanes, schema.leases, schema.workers

_QUEUED = (
    sa.select(
        lanes.c.model,
        lanes.c.is_decode,
        sa.func.sum(lanes.c.num_ready).label("num_jobs"),
        sa.func.sum(lanes.c.work_seconds).label("seconds"),
    )
    .where(lanes.c.num_ready > 0)
    .group_by(lanes.c.model, lanes.c.is_decode)
)
# Jobs in decoding, and jobs that will be decoded once they are denoised.
_DECODES = (
    sa.select(leases.c.model, sa.func.sum(jobs.c.decode_seconds).label("seconds"))
    .join_from(leases, jobs, jobs.c.id == leases.c.job_id)
    .where(sa.or_(leases.c.until == "latents", jobs.c.latents.is_not(None)))
    .group_by(leases.c.model)
)


@dataclass
class ModelPool:
    """Workers and queue of one model. Seconds of decoding are predicted for a device that denoises."""

    num_denoising: int = 0
    decode_prices: list[float | None] = field(default_factory=list)
    waiting_jobs: int = 0
    waiting_seconds: float = 0.0
    decode_seconds: float = 0.0
    slowness: float = 1.0

    def hands_over(self, record: JobRecord, price: float | None) -> bool:
        """Return whether to hand over a job that a worker with this price per hour is about to denoise."""
        if not self.decode_prices or not self.num_denoising:
            return False
        decoding = Decoding(record.decode_seconds, record.decode_seconds * self.slowness, record.latent_bytes)
        # The jobs that wait for decoding now are done, in full or in part, when this job's latents arrive.
        backlog_seconds = self.decode_seconds * self.slowness / len(self.decode_prices)
        denoise_seconds = record.cost_seconds - record.decode_seconds
        around = QueueLoads(
            waiting_jobs=self.waiting_jobs / self.num_denoising,
            waiting_seconds=self.waiting_seconds / self.num_denoising,
            decode_wait_seconds=max(backlog_seconds - denoise_seconds, 0.0),
            price_ratio=_price_ratio(self.decode_prices, price),
        )
        return hands_over(decoding, around)


def read_pools(transaction: Transaction) -> dict[str, ModelPool]:
    """Return the pools of the models that live workers serve."""
    pools: dict[str, ModelPool] = defaultdict(ModelPool)
    since = transaction.now - transaction.config.lease_seconds
    live = sa.select(workers).where(workers.c.heartbeat_at >= since, workers.c.is_draining.is_(False))
    for row in transaction.rows(live):
        for model in orjson.loads(row.models):
            _add_worker(pools[model], row)
    for row in transaction.rows(_QUEUED):
        _add_queued(pools[row.model], row)
    for row in transaction.rows(_DECODES):
        pools[row.model].decode_seconds += row.seconds or 0.0
    for model, slowness in decode_slowness(transaction, pools.keys()).items():
        pools[model].slowness = slowness
    return pools


def _add_worker(pool: ModelPool, row: sa.Row[Any]) -> None:
    pool.num_denoising += WorkerRole(row.role).denoises
    if row.role == WorkerRole.DECODE:
        pool.decode_prices.append(row.price_per_hour)


def _add_queued(pool: ModelPool, row: sa.Row[Any]) -> None:
    if row.is_decode:
        pool.decode_seconds += row.seconds
    else:
        pool.waiting_jobs += int(row.num_jobs)  # PostgreSQL sums to a Decimal
        pool.waiting_seconds += row.seconds


def _price_ratio(decode_prices: Sequence[float | None], price: float | None) -> float:
    """Return the mean price of decode workers divided by this worker's; 0 if any price is unknown."""
    known = [decode_price for decode_price in decode_prices if decode_price is not None]
    if not price or len(known) < len(decode_prices):
        return 0.0
    return sum(known) / len(known) / price
