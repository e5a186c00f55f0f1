"""Checkpoints of running jobs: the newest one stays with the job until it has ended."""

from collections.abc import Collection
from dataclasses import dataclass

import sqlalchemy as sa

from diffuserve.domain.errors import LeaseLost
from diffuserve.domain.jobs.checkpoint import StoredCheckpoint
from diffuserve.domain.jobs.job import FINAL_STATUSES
from diffuserve.domain.workers.worker_ids import is_owned
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.command import SingleCommand
from diffuserve.jobs.database.connections import Transaction
from diffuserve.jobs.records import JSON_COLUMNS, dump

jobs, leases = schema.jobs, schema.leases


@dataclass(frozen=True)
class KeepCheckpoint(SingleCommand[StoredCheckpoint | None]):
    """Store a job's newest checkpoint; the outcome is the checkpoint that it replaces.

    It is `LeaseLost` unless its token is that of the job's live lease, held with the API key `key_id`.
    """

    job_id: str
    checkpoint: StoredCheckpoint
    key_id: str = ""

    def apply(self, transaction: Transaction) -> StoredCheckpoint | LeaseLost | None:
        held = sa.select(leases.c.worker_id, jobs.c.checkpoint).join_from(
            leases, jobs, jobs.c.id == leases.c.job_id
        )
        token = self.checkpoint.lease_token
        rows = transaction.rows(held.where(leases.c.job_id == self.job_id, leases.c.lease_token == token))
        if not rows or not is_owned(rows[0].worker_id, self.key_id):
            return LeaseLost(self.job_id)
        newest = sa.update(jobs).where(jobs.c.id == self.job_id).values(checkpoint=dump(self.checkpoint))
        transaction.execute(newest)
        return load_checkpoint(rows[0].checkpoint)


@dataclass(frozen=True)
class FindEndedCheckpoints(SingleCommand[dict[str, StoredCheckpoint]]):
    """Return at most `limit` checkpoints of jobs that have ended, by job."""

    limit: int

    def apply(self, transaction: Transaction) -> dict[str, StoredCheckpoint]:
        ended = sa.select(jobs.c.id, jobs.c.checkpoint).where(
            jobs.c.checkpoint.is_not(None), jobs.c.status.in_(sorted(FINAL_STATUSES))
        )
        found = {row.id: load_checkpoint(row.checkpoint) for row in transaction.rows(ended.limit(self.limit))}
        return {job_id: stored for job_id, stored in found.items() if stored is not None}


@dataclass(frozen=True)
class ForgetCheckpoints(SingleCommand[None]):
    """Forget checkpoints of jobs that have ended; their files are deleted."""

    job_ids: Collection[str]

    def apply(self, transaction: Transaction) -> None:
        ended = jobs.c.status.in_(sorted(FINAL_STATUSES))
        transaction.execute(
            sa.update(jobs).where(jobs.c.id.in_(sorted(self.job_ids)), ended).values(checkpoint=None)
        )


def load_checkpoint(text: str | None) -> StoredCheckpoint | None:
    """Decode a `checkpoint` column."""
    return None if text is None else JSON_COLUMNS["checkpoint"].load(text)
