"""Leave for a worker that is idle, while its pools have more workers than they should."""

from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from diffuserve.domain.errors import DiffuserveError, WorkerNotFound
from diffuserve.domain.workers.readiness import workers_of
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.command import SingleCommand
from diffuserve.jobs.database.connections import Transaction
from diffuserve.jobs.workers.registry import worker_of

workers, leases = schema.workers, schema.leases


@dataclass(frozen=True)
class LeaveWorker(SingleCommand[bool]):
    """Grant a worker no more jobs if it holds none and others suffice; the outcome is whether they do.

    `desired` are the sizes that pools should have, by model, and `least` is the least of any. Of several
    workers that ask at once as many leave as are too many, since each counts those that stay. The outcome is
    `WorkerNotFound` for an unknown worker.
    """

    worker_id: str
    desired: Mapping[str, int]
    least: int = 0

    def apply(self, transaction: Transaction) -> bool | DiffuserveError:
        rows = transaction.rows(sa.select(workers).where(~workers.c.is_draining))
        lease_seconds = transaction.config.lease_seconds
        staying = {row.id: worker_of(row, transaction.now, lease_seconds, 0) for row in rows}
        if (own := staying.pop(self.worker_id, None)) is None:
            return self._is_draining(transaction)
        suffice = all(
            len(workers_of(model, staying.values())) >= max(self.desired.get(model, 0), self.least)
            for model in own.models
        )
        if not suffice or transaction.rows(sa.select(leases.c.job_id).where(self._holds).limit(1)):
            return False
        transaction.execute(sa.update(workers).where(self._is_own).values(is_draining=True))
        return True

    @property
    def _is_own(self) -> sa.ColumnElement[bool]:
        return workers.c.id == self.worker_id

    @property
    def _holds(self) -> sa.ColumnElement[bool]:
        return leases.c.worker_id == self.worker_id

    def _is_draining(self, transaction: Transaction) -> bool | DiffuserveError:
        """Return true for a worker that was let go already, whose answer was lost."""
        known = transaction.rows(sa.select(workers.c.id).where(self._is_own))
        return bool(known) or WorkerNotFound(f"no worker {self.worker_id}; register again")
