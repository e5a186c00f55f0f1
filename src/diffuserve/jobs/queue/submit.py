"""Submitting jobs: the job, its first event, its key and its place in the queue in one transaction."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import sqlalchemy as sa

from diffuserve.domain.errors import DiffuserveError, JobNotFound
from diffuserve.domain.jobs.job import Job, NewJob
from diffuserve.jobs.database import queries, schema
from diffuserve.jobs.database.command import Command, SingleCommand
from diffuserve.jobs.database.connections import Transaction
from diffuserve.jobs.files.links import NamedFiles
from diffuserve.jobs.queue.admission import Admission
from diffuserve.jobs.queue.idempotency import Stamp, UsedKeys, stamp_of
from diffuserve.jobs.records import job_of


@dataclass(frozen=True)
class SubmitJob(Command[Job]):
    """Queue a job under an id that the caller chose, so that applying it twice stores one job.

    The outcome is the earlier job if the idempotency key was used with the same body.
    """

    job_id: str
    new: NewJob

    @classmethod
    def apply_many(cls, transaction: Transaction, commands: Sequence[Self]) -> list[Job | DiffuserveError]:
        stamps = [stamp for command in commands if (stamp := stamp_of(command.new)) is not None]
        used_keys = UsedKeys(transaction, stamps)
        stored = _already_stored(transaction, commands) if transaction.is_retry else frozenset()
        named_files = NamedFiles(transaction, [command.new for command in commands])
        admission = Admission.open(transaction, {command.new.tenant_id for command in commands})
        job_ids = [_admit(admission, used_keys, named_files, stored, command) for command in commands]
        admission.save()
        return _with_jobs(transaction, job_ids, {record.id: job_of(record) for record in admission.records})


@dataclass(frozen=True)
class FindJobRoom(SingleCommand[Job | None]):
    """Check whether there is room in the queue for one more job; store nothing.

    The outcome is an earlier job if the idempotency key was used with the same body, `None` if there is
    room, and else the error with which `SubmitJob` would refuse the job.
    """

    tenant_id: str
    stamp: Stamp | None

    def apply(self, transaction: Transaction) -> Job | DiffuserveError | None:
        earlier = UsedKeys(transaction, [] if self.stamp is None else [self.stamp]).find(self.stamp)
        if isinstance(earlier, str):
            return _find(queries.find_jobs(transaction, {earlier}), earlier)
        if earlier is not None:
            return earlier
        return Admission.open(transaction, {self.tenant_id}).refusal(self.tenant_id, 1, 0.0)


def _admit(
    admission: Admission,
    used_keys: UsedKeys,
    named_files: NamedFiles,
    stored: Collection[str],
    command: SubmitJob,
) -> str | DiffuserveError:
    """Return the id of the submission's job, or the error that refuses it."""
    new, stamp = command.new, stamp_of(command.new)
    if command.job_id in stored:
        return command.job_id
    earlier = used_keys.find(stamp)
    if earlier is not None:
        return earlier
    refusal = named_files.refusal(new) or admission.refusal(new.tenant_id, 1, new.most_seconds)
    if refusal is not None:
        return refusal
    admission.admit(command.job_id, new)
    if stamp is not None:
        used_keys.add(stamp, command.job_id)  # for a command behind this one, in the same transaction
    return command.job_id


def _already_stored(transaction: Transaction, commands: Sequence[SubmitJob]) -> frozenset[str]:
    """Return the ids stored by an earlier attempt whose result was lost."""
    job_ids = [command.job_id for command in commands]
    rows = transaction.rows(sa.select(schema.jobs.c.id).where(schema.jobs.c.id.in_(job_ids)))
    return frozenset(row.id for row in rows)


def _with_jobs(
    transaction: Transaction, outcomes: Sequence[str | DiffuserveError], fresh: Mapping[str, Job]
) -> list[Job | DiffuserveError]:
    """Replace ids by their jobs, reading those that were not created in this transaction."""
    earlier = {outcome for outcome in outcomes if isinstance(outcome, str) and outcome not in fresh}
    jobs = {**fresh, **queries.find_jobs(transaction, earlier)}
    return [_find(jobs, outcome) if isinstance(outcome, str) else outcome for outcome in outcomes]


def _find(jobs: Mapping[str, Job], job_id: str) -> Job | DiffuserveError:
    return jobs.get(job_id) or JobNotFound(f"job {job_id}, which this key stands for, was deleted")
