"""Points of the last hour, one each ten seconds, written by whichever control plane comes first."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import sqlalchemy as sa

from diffuserve.jobs.database import count_tables
from diffuserve.jobs.database.command import Command
from diffuserve.jobs.database.connections import Database, Transaction
from diffuserve.jobs.database.writer import Writer

points = count_tables.operations_history

PERIOD_SECONDS = 10
_MEMORY_SECONDS = 3_600.0


@dataclass(frozen=True)
class RecordPoint(Command[None]):
    """Store a point, as JSON, unless there is one of the same ten seconds."""

    started_at: int
    point: str

    @classmethod
    def apply_many(cls, transaction: Transaction, commands: Sequence[Self]) -> list[None]:
        rows = [{"started_at": command.started_at, "point": command.point} for command in commands]
        transaction.execute(transaction.upsert(points).on_conflict_do_nothing(), rows)
        return [None] * len(commands)


def forget(transaction: Transaction) -> None:
    """Delete points that are older than an hour, and those ahead of a clock that was set back."""
    now = transaction.now
    is_outside = sa.or_(points.c.started_at < now - _MEMORY_SECONDS, points.c.started_at > now)
    transaction.execute(sa.delete(points).where(is_outside))


class History:
    """The stored points. Every method may raise `ServerUnavailable`."""

    def __init__(self, database: Database, writer: Writer) -> None:
        self._database = database
        self._writer = writer

    async def due(self) -> int | None:
        """Return the start of the present ten seconds, `None` if there is a point of them already."""
        started_at = int(await self._database.now() // PERIOD_SECONDS) * PERIOD_SECONDS
        known = await self._database.rows(
            sa.select(points.c.started_at).where(points.c.started_at == started_at)
        )
        return None if known else started_at

    async def record(self, started_at: int, point: str) -> None:
        """Store a point as JSON; the first one of its ten seconds stays."""
        await self._writer.run(RecordPoint(started_at, point))

    async def points(self) -> list[str]:
        """Return all points as JSON, oldest first."""
        rows = await self._database.rows(sa.select(points.c.point).order_by(points.c.started_at))
        return [row.point for row in rows]
