"""Deliveries of jobs that are not to be stored: each is deleted some time after its first."""

from collections.abc import Collection
from dataclasses import dataclass

import sqlalchemy as sa

from diffuserve.jobs.database import schema
from diffuserve.jobs.database.command import SingleCommand
from diffuserve.jobs.database.connections import Transaction

jobs = schema.jobs


@dataclass(frozen=True)
class NoteDelivered(SingleCommand[None]):
    """Delete a job soon that has been delivered, if it is not to be stored."""

    job_id: str

    def apply(self, transaction: Transaction) -> None:
        note_delivered(transaction, [self.job_id])


def note_delivered(transaction: Transaction, job_ids: Collection[str]) -> None:
    """Delete those of the jobs soon that have ended and are not to be stored."""
    forget_at = transaction.now + transaction.config.delivered_seconds
    is_unstored = sa.and_(jobs.c.forget_delivered, jobs.c.forget_at > forget_at)
    delivered = sa.update(jobs).where(jobs.c.id.in_(list(job_ids)), is_unstored)
    transaction.execute(delivered.values(forget_at=forget_at))
