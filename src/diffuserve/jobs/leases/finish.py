"""The ends of an attempt: completed, failed, released, lost, canceled or timed out.

Each end removes a lease, either reported by the worker that holds it or because its time is over. It leaves
the job either final or queued again, with the tenant's account settled.
"""

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, assert_never

import sqlalchemy as sa

from diffuserve.backoff import jitter
from diffuserve.domain.errors import DiffuserveError, LatentsUnusable, LeaseLost
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.domain.jobs.outcomes import DENOISED, PREEMPTED
from diffuserve.domain.workers.worker import (
    Completion,
    Failure,
    HandOver,
    Release,
    ReleaseCause,
    StoredLatents,
)
from diffuserve.domain.workers.worker_ids import is_owned
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.command import Command
from diffuserve.jobs.database.connections import IDS, Transaction
from diffuserve.jobs.database.tally import AttemptKey
from diffuserve.jobs.leases.ended_attempts import EndedAttempts, attempt_of, end_leases
from diffuserve.jobs.policy import charges
from diffuserve.jobs.policy.charges import Attempt
from diffuserve.jobs.policy.retries import after_failure, after_loss, may_start_anew
from diffuserve.jobs.queue.changes import load_records
from diffuserve.jobs.records import JobRecord, dump

leases = schema.leases
_HELD = sa.select(leases).where(leases.c.job_id.in_(IDS))
LeaseKey = tuple[str, int]
"""A job and a lease token, which together name one attempt."""


class EndAttempt(Command[JobStatus]):
    """A worker's report of how its attempt at a job ended.

    The outcome is the job's new status, and the same status again if the report is repeated. It is
    `LeaseLost` unless the lease token is that of the job's live lease, and its worker registered with the
    API key `key_id`.
    """

    job_id: str
    key_id: str

    @property
    @abstractmethod
    def lease_token(self) -> int:
        """Token of the lease under which the job ran."""

    @property
    def reported_seconds(self) -> float | None:
        """Device-seconds that the attempt took by its worker's report; `None` if the report has none."""
        return None

    @property
    def is_abandoned(self) -> bool:
        """True for an attempt that its own tenant ended, even if the job was not canceled."""
        return False

    def seconds_of(self, attempt: Attempt, is_canceling: bool) -> float:
        """Return the device-seconds that the report accounts for."""
        if is_canceling or self.is_abandoned:
            return charges.seconds_of_abandoned(attempt, self.reported_seconds)
        return charges.seconds_of(attempt, self.reported_seconds)

    @property
    def num_images(self) -> int:
        """Number of images and clips that the attempt produced."""
        return 0

    @abstractmethod
    def end(self, ended: EndedAttempts, record: JobRecord, seconds: float) -> JobStatus:
        """Decide what follows for a job that was not canceled, and return its new status.

        `seconds` are the device-seconds of the attempt and of the earlier ones that it resumed.
        """

    @property
    def key(self) -> LeaseKey:
        """Attempt that the report is about."""
        return self.job_id, self.lease_token

    def is_repeated(self, record: JobRecord) -> bool:
        """Return whether the job shows that this report was applied before."""
        return False

    def outcome(self, status: JobStatus) -> str:
        """Return the label under which the attempt is counted: the job's new status, or another outcome."""
        return status.value

    @classmethod
    def apply_many(
        cls, transaction: Transaction, commands: Sequence[Self]
    ) -> list[JobStatus | DiffuserveError]:
        held = _held_leases(transaction, commands)
        first: dict[LeaseKey, Self] = {}  # a report that was sent twice ends its attempt once
        for command in commands:
            if command.key in held and command._may_know(held):
                first.setdefault(command.key, command)
        statuses = _end_held(transaction, [(held[key], command) for key, command in first.items()])
        statuses |= _ended_before(transaction, [command for command in commands if command.key not in held])
        return [
            (statuses.get(command.key) if command._may_know(held) else None) or LeaseLost(command.job_id)
            for command in commands
        ]

    def _may_know(self, held: Mapping[LeaseKey, sa.Row[Any]]) -> bool:
        """Return `False` for a report on a lease that a worker with another API key holds."""
        lease = held.get(self.key)
        return lease is None or is_owned(lease.worker_id, self.key_id)


@dataclass(frozen=True)
class CompleteJob(EndAttempt):
    """Finish a job with its result."""

    job_id: str
    completion: Completion
    key_id: str = ""

    @property
    def lease_token(self) -> int:
        return self.completion.lease_token

    @property
    def reported_seconds(self) -> float:
        return self.completion.actual_seconds

    @property
    def num_images(self) -> int:
        return len({artifact.index for artifact in self.completion.result.artifacts})

    def end(self, ended: EndedAttempts, record: JobRecord, seconds: float) -> JobStatus:
        result = self.completion.result
        ended.note_findings(record, result.safety)
        in_all = record.denoised_seconds + seconds
        return ended.finish(
            record, JobStatus.SUCCEEDED, result=dump(result), actual_seconds=in_all, error=None
        )


@dataclass(frozen=True)
class HandOverJob(EndAttempt):
    """End the first phase of a job: its latents are stored, and another worker may decode them."""

    job_id: str
    hand_over: HandOver
    key_id: str = ""

    @property
    def lease_token(self) -> int:
        return self.hand_over.lease_token

    @property
    def reported_seconds(self) -> float:
        return self.hand_over.actual_seconds

    def end(self, ended: EndedAttempts, record: JobRecord, seconds: float) -> JobStatus:
        report = self.hand_over
        latents = StoredLatents(
            lease_token=report.lease_token,
            size_bytes=report.size_bytes,
            sha256=report.sha256,
            weights=report.weights,
            seconds=seconds,
        )
        denoised = replace(record, latents=dump(latents), checkpoint=None, kept_seconds=0.0)
        return ended.requeue_denoised(denoised, seconds)

    def is_repeated(self, record: JobRecord) -> bool:
        return record.latents_token == self.lease_token

    def outcome(self, status: JobStatus) -> str:
        return DENOISED if status is JobStatus.QUEUED else status.value


@dataclass(frozen=True)
class FailJob(EndAttempt):
    """End a failed attempt, with or without another attempt to follow."""

    job_id: str
    failure: Failure
    key_id: str = ""

    @property
    def lease_token(self) -> int:
        return self.failure.lease_token

    @property
    def reported_seconds(self) -> float | None:
        return self.failure.actual_seconds

    @property
    def is_abandoned(self) -> bool:
        return not self.failure.error.retryable

    def end(self, ended: EndedAttempts, record: JobRecord, seconds: float) -> JobStatus:
        error = self.failure.error
        ended.note_findings(record, error.safety)
        if error.code == LatentsUnusable.code and may_start_anew(record):
            return ended.start_anew(record, error.code)
        decision = after_failure(record, error, ended.transaction.config, jitter(0.0, 1.0))
        if decision.error is None:  # the checkpoint may be the cause
            record = replace(record, checkpoint=None, kept_seconds=0.0)
        return ended.follow(record, decision, error.code)


@dataclass(frozen=True)
class ReleaseJob(EndAttempt):
    """Release a job. It counts as an attempt only if the engine died."""

    job_id: str
    release: Release
    key_id: str = ""

    @property
    def lease_token(self) -> int:
        return self.release.lease_token

    def seconds_of(self, attempt: Attempt, is_canceling: bool) -> float:
        in_checkpoint = self.release.actual_seconds  # `None` without a checkpoint: nothing is kept
        reported = attempt.kept_seconds if in_checkpoint is None else in_checkpoint
        count = charges.seconds_of_abandoned if is_canceling else charges.seconds_of
        return count(attempt, reported)

    def outcome(self, status: JobStatus) -> str:
        is_preempted = self.release.cause is ReleaseCause.PREEMPTED and status is JobStatus.QUEUED
        return PREEMPTED if is_preempted else status.value

    def end(self, ended: EndedAttempts, record: JobRecord, seconds: float) -> JobStatus:
        record = replace(record, kept_seconds=seconds)
        match self.release.cause:
            case ReleaseCause.DRAIN | ReleaseCause.SERVER_RESTARTED | ReleaseCause.BYSTANDER:
                return ended.requeue(record, self.release.cause)
            case ReleaseCause.INTERRUPTED:
                return ended.put_back_interrupted(record)
            case ReleaseCause.PREEMPTED:
                return ended.put_back_preempted(record)
            case ReleaseCause.WORKER_LOST:
                suspect = replace(record, is_suspect=record.is_suspect or self.release.is_suspect)
                decision = after_loss(suspect, ended.transaction.config)
                return ended.follow(suspect, decision, self.release.cause)
            case _:
                assert_never(self.release.cause)


def _held_leases(transaction: Transaction, commands: Iterable[EndAttempt]) -> dict[LeaseKey, sa.Row[Any]]:
    """Return the live leases of these jobs, by job and token."""
    job_ids = [command.job_id for command in commands]
    rows = transaction.rows(_HELD, {"ids": job_ids})
    return {(row.job_id, row.lease_token): row for row in rows}


def _end_held(
    transaction: Transaction, reports: Sequence[tuple[sa.Row[Any], EndAttempt]]
) -> dict[LeaseKey, JobStatus]:
    """End these leases as their workers reported, and return the new statuses."""
    ended = EndedAttempts(transaction)
    held = [lease for lease, _ in reports]
    records = end_leases(transaction, held)
    seconds = {
        lease.job_id: command.seconds_of(
            attempt_of(lease, records[lease.job_id], transaction.now), lease.is_canceling
        )
        for lease, command in reports
    }
    ended.settle(held, {job_id: seconds[job_id] - records[job_id].kept_seconds for job_id in seconds})
    statuses = {
        command.key: _end(ended, lease, command, records[lease.job_id], seconds[lease.job_id])
        for lease, command in reports
    }
    ended.save()
    for lease, command in reports:
        status = statuses[command.key]
        attempt = AttemptKey.under(lease, command.outcome(status))
        is_kept = isinstance(command, ReleaseJob) and not status.is_final  # counted with the next attempt
        spent = 0.0 if is_kept else seconds[lease.job_id]
        transaction.tally.add_attempt(attempt, spent, command.num_images)
    return statuses


def _end(
    ended: EndedAttempts, lease: sa.Row[Any], command: EndAttempt, record: JobRecord, seconds: float
) -> JobStatus:
    if lease.is_canceling:
        # Clients have already seen `canceling`, so the job ends canceled even if it was completed.
        return ended.cancel(record, seconds)
    return command.end(ended, record, seconds)


def _ended_before(transaction: Transaction, commands: Collection[EndAttempt]) -> dict[LeaseKey, JobStatus]:
    """Return the statuses of jobs whose attempt was ended by an earlier report under the same token.

    A final job keeps the worker that finished it, so that a repeated report is recognized. A requeued job
    does not. Its report is recognized only in a retry after a commit whose result was lost: only that commit
    can have put the job back into the queue under the same token.
    """
    records = load_records(transaction, {command.job_id for command in commands})
    known = [command for command in commands if _is_known_to(records, command)]
    by_owner = [records[command.job_id] for command in known]
    repeated = {
        command.key: records[command.job_id].status
        for command in known
        if command.is_repeated(records[command.job_id])
    }
    return repeated | {
        (record.id, record.lease_token): record.status
        for record in by_owner
        if (record.status.is_final and record.worker_id is not None)
        or (transaction.is_retry and not record.status.is_leased)
    }


def _is_known_to(records: Mapping[str, JobRecord], command: EndAttempt) -> bool:
    record = records.get(command.job_id)
    return record is not None and (record.worker_id is None or is_owned(record.worker_id, command.key_id))
