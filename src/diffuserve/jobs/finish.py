"""The ends of an attempt: completed, failed, handed back, lost, canceled or timed out.

Each end takes a lease away, from a worker that proved to hold it or because its time is over, and leaves
the job either final or back in the queue, with the tenant's account settled.
"""

from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, assert_never

import sqlalchemy as sa

from diffuserve.backoff import jitter
from diffuserve.domain.errors import DiffuserveError, LatentsUnusable, LeaseLost
from diffuserve.domain.job import JobError, JobStatus
from diffuserve.domain.outcomes import DENOISED, PREEMPTED
from diffuserve.domain.safety import AuditEntry
from diffuserve.domain.worker import Completion, Failure, HandOver, Release, ReleaseCause, StoredLatents
from diffuserve.domain.worker_ids import is_owned
from diffuserve.events.base import QUEUE
from diffuserve.jobs import audit, queue, schema
from diffuserve.jobs.changes import Change, load_records, save_changes
from diffuserve.jobs.command import Command
from diffuserve.jobs.database import IDS, Transaction
from diffuserve.jobs.records import JobRecord, dump
from diffuserve.jobs.retries import RetryDecision, after_failure, after_loss, may_start_anew
from diffuserve.jobs.tally import AttemptKey

leases = schema.leases
_HELD = sa.select(leases).where(leases.c.job_id.in_(IDS))
_END = sa.delete(leases).where(leases.c.job_id.in_(IDS))
_ANY_READY = sa.select(schema.lanes.c.lane).where(schema.lanes.c.num_ready > 0).limit(1)
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
    def actual_seconds(self) -> float:
        """Device-seconds that the attempt took, which the tenant is charged."""
        return 0.0

    @property
    def num_images(self) -> int:
        """Images and clips that the attempt has brought."""
        return 0

    @abstractmethod
    def end(self, ended: "EndedAttempts", record: JobRecord) -> JobStatus:
        """Decide what follows for a job that was not canceled, and return its new status."""

    @property
    def key(self) -> LeaseKey:
        """Attempt that the report is about."""
        return self.job_id, self.lease_token

    def is_repeated(self, record: JobRecord) -> bool:
        """Return whether the job shows that this report was followed before, whatever came after it."""
        return False

    def outcome(self, status: JobStatus) -> str:
        """Return what the attempt is counted under: the job's new status, or what else became of it."""
        return status.value

    @classmethod
    def apply_many(
        cls, transaction: Transaction, commands: Sequence[Self]
    ) -> list[JobStatus | DiffuserveError]:
        held = _held_leases(transaction, commands)
        first: dict[LeaseKey, Self] = {}  # a report that was sent twice at once ends its attempt once
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
        """Return false for a report on a lease that a worker with another API key holds."""
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
    def actual_seconds(self) -> float:
        return self.completion.actual_seconds

    @property
    def num_images(self) -> int:
        return len({artifact.index for artifact in self.completion.result.artifacts})

    def end(self, ended: "EndedAttempts", record: JobRecord) -> JobStatus:
        result, seconds = self.completion.result, record.denoised_seconds + self.actual_seconds
        ended.note_findings(record, result.safety)
        return ended.finish(
            record, JobStatus.SUCCEEDED, result=dump(result), actual_seconds=seconds, error=None
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
    def actual_seconds(self) -> float:
        return self.hand_over.actual_seconds

    def end(self, ended: "EndedAttempts", record: JobRecord) -> JobStatus:
        report = self.hand_over
        latents = StoredLatents(
            lease_token=report.lease_token,
            size_bytes=report.size_bytes,
            sha256=report.sha256,
            weights=report.weights,
            seconds=report.actual_seconds,
        )
        denoised = replace(record, latents=dump(latents), checkpoint=None)
        return ended.requeue_denoised(denoised, report.actual_seconds)

    def is_repeated(self, record: JobRecord) -> bool:
        return record.latents_token == self.lease_token

    def outcome(self, status: JobStatus) -> str:
        return DENOISED if status is JobStatus.QUEUED else status.value


@dataclass(frozen=True)
class FailJob(EndAttempt):
    """End an attempt that went wrong, with or without another attempt to follow."""

    job_id: str
    failure: Failure
    key_id: str = ""

    @property
    def lease_token(self) -> int:
        return self.failure.lease_token

    @property
    def actual_seconds(self) -> float:
        return self.failure.actual_seconds

    def end(self, ended: "EndedAttempts", record: JobRecord) -> JobStatus:
        error = self.failure.error
        ended.note_findings(record, error.safety)
        if error.code == LatentsUnusable.code and may_start_anew(record):
            return ended.start_anew(record, error.code)
        decision = after_failure(record, error, ended.transaction.config, jitter(0.0, 1.0))
        if decision.error is None:  # what went wrong may be in the checkpoint
            record = replace(record, checkpoint=None)
        return ended.follow(record, decision, error.code)


@dataclass(frozen=True)
class ReleaseJob(EndAttempt):
    """Hand a job back. Only a release because the engine died counts as an attempt."""

    job_id: str
    release: Release
    key_id: str = ""

    @property
    def lease_token(self) -> int:
        return self.release.lease_token

    def outcome(self, status: JobStatus) -> str:
        is_preempted = self.release.cause is ReleaseCause.PREEMPTED and status is JobStatus.QUEUED
        return PREEMPTED if is_preempted else status.value

    def end(self, ended: "EndedAttempts", record: JobRecord) -> JobStatus:
        match self.release.cause:
            case ReleaseCause.DRAIN | ReleaseCause.BYSTANDER:
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


@dataclass
class EndedAttempts:
    """State of one transaction that ends attempts: what it will write for their jobs."""

    transaction: Transaction
    ledger: queue.Ledger = field(default_factory=queue.Ledger)
    changes: list[Change] = field(default_factory=list)
    requeued: list[JobRecord] = field(default_factory=list)
    delayed: list[tuple[str, float]] = field(default_factory=list)
    audit_entries: list[AuditEntry] = field(default_factory=list)

    def settle(self, ended: Collection[sa.Row[Any]], actual_seconds: Mapping[str, float]) -> None:
        """Replace what the leases were charged by the device-seconds they took, by job.

        The charge at the claim was a prediction. A job without an entry took nothing that counts: the
        tenant gets the whole charge of a lost lease back.
        """
        if not ended:
            return
        tenants = queue.load_tenants(self.transaction, {lease.tenant_id for lease in ended})
        for lease in ended:
            correction = actual_seconds.get(lease.job_id, 0.0) - lease.charged
            self.ledger.charge(tenants[lease.tenant_id], correction)

    def note_findings(self, record: JobRecord, safety: Mapping[str, Any]) -> None:
        """Note for the audit what the image filter found, if it found anything."""
        if (entry := audit.judged_images(record.id, record.tenant_id, safety)) is not None:
            self.audit_entries.append(entry)

    def finish(self, record: JobRecord, status: JobStatus, **values: Any) -> JobStatus:
        """Give the job its final status, with the columns `values`; its latents are swept as orphans."""
        final = replace(record, status=status, finished_at=self.transaction.now, latents=None, **values)
        self.changes.append(Change(final, status.value, record.status))
        return status

    def fail(self, record: JobRecord, error: JobError) -> JobStatus:
        """Give the job the status `failed` and its error."""
        return self.finish(record, JobStatus.FAILED, error=dump(error))

    def requeue(self, record: JobRecord, cause: str, pause_seconds: float = 0.0) -> JobStatus:
        """Put the job back at its old place in the queue, at once or after a pause."""
        queued = replace(record, status=JobStatus.QUEUED, worker_id=None)
        details = {"cause": cause, "in_seconds": round(pause_seconds, 3)}
        self.changes.append(Change(queued, "requeued", record.status, details))
        self.ledger.count_queued(record.tenant_id, 1)
        if pause_seconds > 0:
            self.delayed.append((record.id, self.transaction.now + pause_seconds))
        else:
            self.requeued.append(queued)
        return JobStatus.QUEUED

    def put_back_preempted(self, record: JobRecord) -> JobStatus:
        """Put a job that made room for a more urgent one at its old place in the queue."""
        num_preempted = record.num_preempted + 1
        queued = replace(record, status=JobStatus.QUEUED, worker_id=None, num_preempted=num_preempted)
        self._put_back(queued, "preempted", record.status, {"times": num_preempted})
        return JobStatus.QUEUED

    def put_back_interrupted(self, record: JobRecord) -> JobStatus:
        """Put a job whose worker's machine is taken away at its old place in the queue."""
        queued = replace(record, status=JobStatus.QUEUED, worker_id=None)
        self._put_back(queued, "interrupted", record.status, {"worker_id": record.worker_id})
        return JobStatus.QUEUED

    def requeue_denoised(self, record: JobRecord, seconds: float) -> JobStatus:
        """Put a job whose latents are finished at its old place in the queue, to be decoded."""
        queued = replace(record, status=JobStatus.QUEUED, worker_id=None)
        self._put_back(queued, "denoised", record.status, {"seconds": round(seconds, 3)})
        return JobStatus.QUEUED

    def _put_back(self, queued: JobRecord, event: str, before: JobStatus, data: Mapping[str, Any]) -> None:
        self.changes.append(Change(queued, event, before, data))
        self.ledger.count_queued(queued.tenant_id, 1)
        self.requeued.append(queued)

    def start_anew(self, record: JobRecord, cause: str) -> JobStatus:
        """Queue a job without its latents, which are unusable."""
        without = replace(record, latents=None, num_latents_lost=record.num_latents_lost + 1)
        return self.requeue(without, cause)

    def follow(self, record: JobRecord, decision: RetryDecision, cause: str) -> JobStatus:
        """Fail or requeue the job as was decided."""
        counted = replace(
            record, num_transient=decision.num_transient, num_worker_lost=decision.num_worker_lost
        )
        if decision.error is not None:
            return self.fail(counted, decision.error)
        return self.requeue(counted, cause, decision.pause_seconds)

    def save(self) -> None:
        """Write everything that was noted."""
        save_changes(self.transaction, self.changes)
        queue.put(self.transaction, self.requeued)
        queue.delay(self.transaction, self.delayed)
        self.ledger.save(self.transaction)
        audit.keep(self.transaction, self.audit_entries)
        if self.changes:
            self._notify_waiting_workers()

    def _notify_waiting_workers(self) -> None:
        """Wake the claims that wait while jobs are ready.

        Those jobs may be of a tenant that was at its limit of running jobs, and now may start another.
        """
        if self.transaction.rows(_ANY_READY):
            self.transaction.publish(QUEUE, {"type": "ready"})


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
    ended.settle(held, {command.job_id: command.actual_seconds for _, command in reports})
    statuses = {
        command.key: _end(ended, lease, command, records[command.job_id]) for lease, command in reports
    }
    ended.save()
    for lease, command in reports:
        attempt = AttemptKey.under(lease, command.outcome(statuses[command.key]))
        transaction.tally.add_attempt(attempt, command.actual_seconds, command.num_images)
    return statuses


def _end(ended: EndedAttempts, lease: sa.Row[Any], command: EndAttempt, record: JobRecord) -> JobStatus:
    if lease.is_canceling:
        # The client was already shown `canceling`, so the job ends canceled even if it was completed.
        seconds = record.denoised_seconds + command.actual_seconds
        return ended.finish(record, JobStatus.CANCELED, actual_seconds=seconds or None)
    return command.end(ended, record)


def end_leases(transaction: Transaction, ended: Collection[sa.Row[Any]]) -> dict[str, JobRecord]:
    """Delete the leases, and return the records of their jobs."""
    job_ids = [lease.job_id for lease in ended]
    if job_ids:
        transaction.execute(_END, {"ids": job_ids})
    return load_records(transaction, job_ids)


def _ended_before(transaction: Transaction, commands: Collection[EndAttempt]) -> dict[LeaseKey, JobStatus]:
    """Return the statuses of jobs whose attempt was ended by an earlier report under the same token.

    A final job keeps the worker that finished it, so that a repeated report is recognized. A requeued
    one does not; it is recognized only in a retry after a commit whose result was lost, where a job that
    is back in the queue under the same token can have been put there only by that commit.
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
