"""Use of the devices as operators and tenants read it."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from statistics import quantiles
from typing import Any

import sqlalchemy as sa

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.domain.jobs.outcomes import USEFUL_OUTCOMES
from diffuserve.domain.resources.usage import (
    AmountResource,
    FleetUsageResource,
    RunTimesResource,
    UsageField,
    UsageResource,
    UsageRowResource,
    WorkerTimeResource,
)
from diffuserve.domain.workers.machines import MachineKind
from diffuserve.jobs.database import count_tables, schema
from diffuserve.jobs.database.connections import Database
from diffuserve.jobs.database.usage import day_of

usage, worker_time, jobs = count_tables.usage, count_tables.worker_time, schema.jobs

DEFAULT_DAYS = 30
MAX_ROWS = 10_000
_SAMPLED_JOBS = 2_000
_NUM_ROWS = [sa.func.sum(usage.c[name]).label(name) for name in ("num_attempts", "num_images")]


@dataclass(frozen=True, kw_only=True)
class UsageQuery:
    """Days, both included, and fields by which use is told apart; of one tenant if one is given.

    `until` is today if left out, and `since` a month earlier.
    """

    since: date | None = None
    until: date | None = None
    group_by: Sequence[UsageField] = (UsageField.DAY, UsageField.MODEL)
    tenant_id: str | None = None


class UsageReader:
    """Reads what was counted. Every method may raise `ServerUnavailable`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, query: UsageQuery, *, is_operator: bool) -> UsageResource:
        """Return the use that a query asks for, and to operators that of the whole fleet.

        Raise `InvalidParams` if `since` is later than `until`, and for more than 10,000 rows.
        """
        until = query.until or day_of(await self._database.now())
        since = query.since or until - timedelta(days=DEFAULT_DAYS)
        if since > until:
            raise InvalidParams("since", since.isoformat(), f"must not be later than {until}")
        found = await self._database.read(lambda connection: _rows(connection, since, until, query))
        useful = await self._database.read(
            lambda connection: _useful(connection, since, until, query.tenant_id)
        )
        fleet = None
        if is_operator:
            fleet = await self._database.read(lambda connection: _fleet(connection, since, until))
        return UsageResource(
            since=since.isoformat(),
            until=until.isoformat(),
            group_by=tuple(query.group_by),
            data=found,
            useful=useful,
            fleet=fleet,
        )


def _rows(
    connection: sa.Connection, since: date, until: date, query: UsageQuery
) -> tuple[UsageRowResource, ...]:
    keys = [usage.c[name] for name in query.group_by]
    selected = sa.select(*keys, *_NUM_ROWS, *_amounts(usage)).where(_between(usage, since, until))
    if query.tenant_id is not None:
        selected = selected.where(usage.c.tenant_id == query.tenant_id)
    grouped = selected.group_by(*keys).order_by(*keys).limit(MAX_ROWS + 1)
    rows = [row for row in connection.execute(grouped).mappings() if row["num_attempts"]]
    if len(rows) > MAX_ROWS:
        names = ",".join(query.group_by)
        raise InvalidParams(
            "group_by", names, f"gives more than {MAX_ROWS:,} rows; ask for fewer days or fields"
        )
    return tuple(_row_of(row) for row in rows)


def _row_of(row: sa.RowMapping) -> UsageRowResource:
    values: dict[str, Any] = dict(row)
    if "kind" in values:
        values["kind"] = MachineKind(values["kind"])
    sums = {name: int(values[name]) for name in ("num_attempts", "num_images")}
    return UsageRowResource(**values | sums | _rounded(values["seconds"], values["cost"]))


def _useful(
    connection: sa.Connection, since: date, until: date, tenant_id: str | None = None
) -> AmountResource:
    selected = sa.select(*_amounts(usage)).where(
        _between(usage, since, until), usage.c.outcome.in_(USEFUL_OUTCOMES)
    )
    if tenant_id is not None:
        selected = selected.where(usage.c.tenant_id == tenant_id)
    return _amount(connection.execute(selected).one())


def _fleet(connection: sa.Connection, since: date, until: date) -> FleetUsageResource:
    kind = worker_time.c.kind
    selected = sa.select(kind, *_amounts(worker_time)).where(_between(worker_time, since, until))
    rows = connection.execute(selected.group_by(kind).order_by(kind)).all()
    useful = _useful(connection, since, until)
    seconds = sum(row.seconds for row in rows) - useful.seconds
    cost = sum(row.cost for row in rows) - useful.cost
    return FleetUsageResource(
        machines=tuple(
            WorkerTimeResource(kind=MachineKind(row.kind), **_rounded(row.seconds, row.cost)) for row in rows
        ),
        overhead=AmountResource(**_rounded(seconds, cost)),
        run_times=_run_times(connection, since, until),
    )


def _run_times(connection: sa.Connection, since: date, until: date) -> tuple[RunTimesResource, ...]:
    """Return the 95th percentiles of the newest jobs, of which a bounded number is read."""
    ended = jobs.c.finished_at.between(_start_of(since), _start_of(until + timedelta(days=1)))
    newest = (
        sa.select(jobs.c.model, (jobs.c.finished_at - jobs.c.started_at).label("seconds"))
        .where(jobs.c.status == JobStatus.SUCCEEDED, jobs.c.started_at.is_not(None), ended)
        .order_by(jobs.c.finished_at.desc())
        .limit(_SAMPLED_JOBS)
    )
    seconds: dict[str, list[float]] = defaultdict(list)
    for row in connection.execute(newest):
        seconds[row.model].append(row.seconds)
    return tuple(
        RunTimesResource(model=model, num_jobs=len(taken), p95=round(_p95(taken), 3))
        for model, taken in sorted(seconds.items())
    )


def _p95(taken: Collection[float]) -> float:
    return quantiles(taken, n=20, method="inclusive")[-1] if len(taken) > 1 else max(taken)


def _start_of(day: date) -> float:
    return datetime.combine(day, time(), UTC).timestamp()


def _between(table: sa.Table, since: date, until: date) -> sa.ColumnElement[bool]:
    return table.c.day.between(since.isoformat(), until.isoformat())


def _amounts(table: sa.Table) -> list[sa.Label[Any]]:
    """Return sums of seconds and costs, 0 without rows."""
    return [sa.func.coalesce(sa.func.sum(table.c[name]), 0.0).label(name) for name in ("seconds", "cost")]


def _amount(row: sa.Row[Any]) -> AmountResource:
    return AmountResource(**_rounded(row.seconds, row.cost))


def _rounded(seconds: float, cost: float) -> dict[str, float]:
    return {"seconds": round(seconds, 3), "cost": round(cost, 6)}
