"""Work of each pool: what waits and runs now, and what was accepted, counted by five minutes for weeks."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from diffuserve.domain.codec import from_json
from diffuserve.domain.models.cost import CostFit
from diffuserve.jobs.database import count_tables, schema
from diffuserve.jobs.database.connections import Database
from diffuserve.jobs.policy.scaling import (
    BUCKET_SECONDS,
    HOUR,
    RATE_SECONDS,
    PoolDemand,
    history_hours,
)

accepted_work, lanes, leases, models = count_tables.accepted_work, schema.lanes, schema.leases, schema.models


@dataclass(frozen=True)
class Demands:
    """Work of all pools at the time `now`, by model."""

    now: float
    by_model: Mapping[str, PoolDemand] = field(default_factory=dict)


class DemandReader:
    """Reads the work of all pools, without looking at single jobs that wait."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self) -> Demands:
        """Return the work of every model that was offered once. Raise `ServerUnavailable`."""
        now = await self._database.now()
        return await self._database.read(lambda connection: _read(connection, now))


def _read(connection: sa.Connection, now: float) -> Demands:
    queued, running = _sums(connection, _QUEUED), _sums(connection, _RUNNING)
    known_since = _sums(connection, _KNOWN_SINCE)
    accepted = _accepted(connection, now)
    by_model = {
        name: PoolDemand(
            queued_seconds=queued.get(name, 0.0),
            running_seconds=running.get(name, 0.0),
            load_seconds=from_json(CostFit, fit).load_seconds if fit else 0.0,
            accepted=accepted.get(name, {}),
            known_since=known_since.get(name, now),
        )
        for name, fit in connection.execute(sa.select(models.c.name, models.c.fit))
    }
    return Demands(now, by_model)


_LEFT = sa.case((leases.c.total > 0, 1.0 - leases.c.step * 1.0 / leases.c.total), else_=1.0)
_QUEUED = sa.select(lanes.c.model, sa.func.sum(lanes.c.work_seconds)).group_by(lanes.c.model)
_RUNNING = sa.select(leases.c.model, sa.func.sum(leases.c.charged * _LEFT)).group_by(leases.c.model)
_KNOWN_SINCE = sa.select(accepted_work.c.model, sa.func.min(accepted_work.c.started_at)).group_by(
    accepted_work.c.model
)


def _sums(connection: sa.Connection, statement: sa.Select[Any]) -> dict[str, float]:
    return {model: max(float(seconds), 0.0) for model, seconds in connection.execute(statement)}


def _accepted(connection: sa.Connection, now: float) -> dict[str, dict[int, float]]:
    """Return the work accepted lately and in the same hours of earlier weeks, by model and five minutes."""
    at = accepted_work.c.started_at
    hours = [sa.and_(at >= hour, at < hour + HOUR) for hour in history_hours(now)]
    wanted = sa.or_(at >= now - RATE_SECONDS - BUCKET_SECONDS, *hours)
    found: dict[str, dict[int, float]] = defaultdict(dict)
    for row in connection.execute(sa.select(accepted_work).where(wanted)):
        found[row.model][row.started_at] = row.seconds
    return found
