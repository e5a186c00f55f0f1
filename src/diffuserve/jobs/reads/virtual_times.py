"""Virtual times as an administrator sees them, and the way to begin anew with them."""

from dataclasses import dataclass

import sqlalchemy as sa

from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.command import SingleCommand
from diffuserve.jobs.database.connections import Database, Transaction
from diffuserve.jobs.database.writer import Writer
from diffuserve.jobs.leases.open_lanes import RUNNING
from diffuserve.jobs.queue import ready_queue

tenants, floors, handicaps = schema.tenants, schema.floors, schema.handicaps

_CHARGED = RUNNING.subquery()
_STANDINGS = (
    sa.select(
        tenants, sa.func.coalesce(_CHARGED.c.num, 0).label("num_running"), _CHARGED.c.seconds.label("charged")
    )
    .outerjoin(_CHARGED, _CHARGED.c.tenant_id == tenants.c.id)
    .order_by(tenants.c.vtime, tenants.c.id)
)


@dataclass(frozen=True, kw_only=True)
class TenantTime:
    """A tenant's virtual time, in device-seconds over its weight, and its jobs that wait and run."""

    tenant_id: str
    plan: str
    weight: float
    vtime: float
    num_queued: int
    num_running: int


class VirtualTimes:
    """The tenants' virtual times. Every method raises `ServerUnavailable` without the database."""

    def __init__(self, database: Database, writer: Writer, config: StoreConfig) -> None:
        self._database, self._writer, self._config = database, writer, config

    async def read(self) -> list[TenantTime]:
        """Return the tenants, those that are furthest behind first."""
        found = []
        for row in await self._database.rows(_STANDINGS):
            plan = ready_queue.tenant_of(row, self._config).plan
            found.append(
                TenantTime(
                    tenant_id=row.id,
                    plan=plan.name,
                    weight=plan.weight,
                    vtime=row.vtime,
                    num_queued=row.num_queued,
                    num_running=row.num_running,
                )
            )
        return found

    async def reset(self) -> int:
        """Let all tenants begin anew, as if nobody had used anything; return their number."""
        return await self._writer.run(ResetVirtualTimes())


@dataclass(frozen=True)
class ResetVirtualTimes(SingleCommand[int]):
    """Leave each tenant with what its running jobs were charged in advance, and forget all else."""

    def apply(self, transaction: Transaction) -> int:
        for table in (floors, handicaps):
            transaction.execute(sa.delete(table))
        rows = [
            {
                "tenant": row.id,
                "new": (row.charged or 0.0) / ready_queue.tenant_of(row, transaction.config).plan.weight,
            }
            for row in transaction.rows(_STANDINGS)
        ]
        if rows:
            own = sa.update(tenants).where(tenants.c.id == sa.bindparam("tenant"))
            transaction.execute(own.values(vtime=sa.bindparam("new")), rows)
        return len(rows)
