"""State of the whole store as operators watch it, read without looking at every job."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import orjson
import sqlalchemy as sa

from diffuserve.domain.jobs.job import Band
from diffuserve.domain.workers.worker import Worker
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.database import schema, tallies
from diffuserve.jobs.database.connections import Database
from diffuserve.jobs.database.tallies import Tallies
from diffuserve.jobs.database.tally import TallyKind
from diffuserve.jobs.records import BANDS
from diffuserve.jobs.workers.registry import worker_of

jobs, leases, lanes, delayed = schema.jobs, schema.leases, schema.lanes, schema.delayed
deliveries, endpoints = schema.webhook_deliveries, schema.webhook_endpoints

FAILURE_SECONDS = 3_600.0
WEBHOOK_SECONDS = 86_400.0
_MAX_FAILURES = 500
_MAX_DELIVERIES = 500
_MAX_DISABLED = 50
_MAX_BOUND = 10_000  # values that a statement may bind


class RunningJob(NamedTuple):
    """A leased job, as its worker's last heartbeat told it."""

    id: str
    tenant_id: str
    model: str
    worker_id: str
    phase: str | None
    step: int
    total: int
    is_canceling: bool


class LaneState(NamedTuple):
    """Ready jobs of a band and a tenant; the oldest was submitted at `oldest_at`."""

    band: Band
    tenant_id: str
    num_ready: int
    work_seconds: float
    oldest_at: float


class PoolState(NamedTuple):
    """Ready jobs of a band and a model; the oldest was submitted at `oldest_at`."""

    band: Band
    model: str
    num_ready: int
    work_seconds: float
    oldest_at: float


@dataclass(frozen=True)
class FailedJob:
    """A job that failed lately."""

    id: str
    code: str
    message: str
    finished_at: float


@dataclass(frozen=True)
class FailedDelivery:
    """A delivery of a webhook whose last attempt failed."""

    endpoint_id: str
    at: float
    status: int | None
    error: str | None


@dataclass(frozen=True)
class WatchedEndpoint:
    """An endpoint that is disabled, or has failed deliveries."""

    id: str
    tenant_id: str
    url: str
    is_disabled: bool


@dataclass(frozen=True)
class Overview:
    """State of the store at the time `now`. Lists of failures and deliveries are newest first."""

    now: float
    workers: Sequence[Worker]
    running: Sequence[RunningJob]
    lanes: Sequence[LaneState]
    pools: Sequence[PoolState]
    num_delayed: int
    tallies: Tallies
    weights: Mapping[str, float]
    failures: Sequence[FailedJob]
    failed_deliveries: Sequence[FailedDelivery]
    endpoints: Sequence[WatchedEndpoint]


class OverviewReader:
    """Reads the state of the store, each part by an index or from a table that is small."""

    def __init__(self, database: Database, config: StoreConfig) -> None:
        self._database = database
        self._config = config

    async def read(self) -> Overview:
        """Return the present state. Raise `ServerUnavailable`."""
        now = await self._database.now()
        return await self._database.read(lambda connection: self._read(connection, now))

    def _read(self, connection: sa.Connection, now: float) -> Overview:
        running = _running(connection)
        lane_states = _lanes(connection)
        counted = tallies.read(connection, now)
        tenant_ids = {lane.tenant_id for lane in lane_states} | {job.tenant_id for job in running}
        failed_deliveries = _failed_deliveries(connection, now)
        return Overview(
            now=now,
            workers=self._workers(connection, now, Counter(job.worker_id for job in running)),
            running=running,
            lanes=lane_states,
            pools=_pools(connection),
            num_delayed=int(connection.scalar(sa.select(sa.func.count()).select_from(delayed)) or 0),
            tallies=counted,
            weights=self._weights(connection, tenant_ids | counted.of(TallyKind.TENANT).keys()),
            failures=_failures(connection, now),
            failed_deliveries=failed_deliveries,
            endpoints=_endpoints(connection, {delivery.endpoint_id for delivery in failed_deliveries}),
        )

    def _workers(self, connection: sa.Connection, now: float, num_leases: Counter[str]) -> list[Worker]:
        rows = connection.execute(sa.select(schema.workers).order_by(schema.workers.c.registered_at))
        lease_seconds = self._config.lease_seconds
        return [worker_of(row, now, lease_seconds, num_leases[row.id]) for row in rows]

    def _weights(self, connection: sa.Connection, tenant_ids: set[str]) -> dict[str, float]:
        table, in_order = schema.tenants, sorted(tenant_ids)
        weights = dict.fromkeys(in_order, self._weight_of(None, None))
        for start in range(0, len(in_order), _MAX_BOUND):
            some = table.c.id.in_(in_order[start : start + _MAX_BOUND])
            rows = connection.execute(sa.select(table.c.id, table.c.plan, table.c.weight).where(some))
            weights |= {tenant_id: self._weight_of(plan, weight) for tenant_id, plan, weight in rows}
        return weights

    def _weight_of(self, plan: str | None, weight: float | None) -> float:
        return weight or self._config.plan(plan or self._config.default_plan).weight


def _running(connection: sa.Connection) -> list[RunningJob]:
    columns = ("job_id", "tenant_id", "model", "worker_id", "phase", "step", "total", "is_canceling")
    rows = connection.execute(sa.select(*(leases.c[name] for name in columns)).order_by(leases.c.job_id))
    return [RunningJob._make(row) for row in rows]


def _lanes(connection: sa.Connection) -> list[LaneState]:
    return [LaneState(*row) for row in _summed(connection, lanes.c.tenant_id)]


def _pools(connection: sa.Connection) -> list[PoolState]:
    return [PoolState(*row) for row in _summed(connection, lanes.c.model)]


def _summed(connection: sa.Connection, by: sa.Column[str]) -> Iterator[tuple[Band, str, int, float, float]]:
    """Yield band, `by`, number of jobs, seconds of work and oldest submission of lanes with ready jobs."""
    sums = (sa.func.sum(lanes.c.num_ready), sa.func.sum(lanes.c.work_seconds), sa.func.min(lanes.c.head_at))
    wanted = sa.select(lanes.c.band, by, *sums).where(lanes.c.num_ready > 0).group_by(lanes.c.band, by)
    for band, name, num_ready, work_seconds, oldest_at in connection.execute(wanted):
        yield BANDS[band], name, int(num_ready), work_seconds, oldest_at


def _failures(connection: sa.Connection, now: float) -> list[FailedJob]:
    wanted = (
        sa.select(jobs.c.id, jobs.c.error, jobs.c.finished_at)
        .where(jobs.c.status == "failed", jobs.c.finished_at > now - FAILURE_SECONDS)
        .order_by(jobs.c.finished_at.desc())
        .limit(_MAX_FAILURES)
    )
    return [_failed_job(*row) for row in connection.execute(wanted)]


def _failed_job(job_id: str, error_text: str | None, finished_at: float) -> FailedJob:
    error = orjson.loads(error_text or "{}")
    return FailedJob(job_id, error.get("code", "unknown"), error.get("message", ""), finished_at)


def _failed_deliveries(connection: sa.Connection, now: float) -> list[FailedDelivery]:
    columns = ("endpoint_id", "last_attempt_at", "last_status", "last_error")
    wanted = (
        sa.select(*(deliveries.c[name] for name in columns))
        .where(
            sa.text(schema.HAS_FAILED),
            deliveries.c.last_attempt_at > now - WEBHOOK_SECONDS,
        )
        .order_by(deliveries.c.last_attempt_at.desc())
        .limit(_MAX_DELIVERIES)
    )
    return [FailedDelivery(*row) for row in connection.execute(wanted)]


def _endpoints(connection: sa.Connection, failing: set[str]) -> list[WatchedEndpoint]:
    """Return the failing endpoints, and those that were disabled last."""
    columns = (endpoints.c.id, endpoints.c.tenant_id, endpoints.c.url, endpoints.c.disabled_at)
    disabled = (
        sa.select(*columns)
        .where(endpoints.c.disabled_at.is_not(None))
        .order_by(endpoints.c.disabled_at.desc())
        .limit(_MAX_DISABLED)
    )
    rows = [*connection.execute(disabled)]
    if failing:
        rows += connection.execute(sa.select(*columns).where(endpoints.c.id.in_(sorted(failing))))
    found = {
        row.id: WatchedEndpoint(row.id, row.tenant_id, row.url, row.disabled_at is not None) for row in rows
    }
    return [found[endpoint_id] for endpoint_id in sorted(found)]
