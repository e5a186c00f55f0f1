"""Ends of attempts: a transaction collects the consequences for their jobs, and writes them together."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa

from diffuserve.domain.jobs.job import JobError, JobStatus
from diffuserve.domain.safety import AuditEntry
from diffuserve.domain.workers.worker import LeaseEnd
from diffuserve.events.base import QUEUE
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.connections import IDS, Transaction
from diffuserve.jobs.database.lane_change import LaneChange, Moved
from diffuserve.jobs.policy.charges import Attempt
from diffuserve.jobs.policy.retries import RetryDecision
from diffuserve.jobs.queue import ready_queue
from diffuserve.jobs.queue.changes import Change, load_records, save_changes
from diffuserve.jobs.records import JobRecord, dump
from diffuserve.jobs.security import audit

_END = sa.delete(schema.leases).where(schema.leases.c.job_id.in_(IDS))
_ANY_READY = sa.select(schema.lanes.c.lane).where(schema.lanes.c.num_ready > 0).limit(1)


def end_leases(transaction: Transaction, ended: Collection[sa.Row[Any]]) -> dict[str, JobRecord]:
    """Delete the leases, and return the records of their jobs."""
    job_ids = [lease.job_id for lease in ended]
    if job_ids:
        transaction.execute(_END, {"ids": job_ids})
        transaction.lane_changes += _changes_of(ended)
    return load_records(transaction, job_ids)


def _changes_of(ended: Iterable[sa.Row[Any]]) -> list[LaneChange]:
    """Return by how much ended leases reduce the running work of each model."""
    charged: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for lease in ended:
        charged[lease.model].append((0, lease.charged))
    return [LaneChange("", Moved.ENDED, jobs, model=model) for model, jobs in charged.items()]


def attempt_of(lease: sa.Row[Any], record: JobRecord, now: float) -> Attempt:
    """Return the attempt under a row of `leases`, at its end."""
    first_at = now if record.started_at is None else record.started_at
    went_on = record.kept_seconds > 0 or record.checkpoint is not None
    return Attempt(
        charged=lease.charged,
        denoise_seconds=0.0 if record.is_denoised else record.cost_seconds - record.decode_seconds,
        decode_seconds=0.0 if lease.until == LeaseEnd.LATENTS else record.decode_seconds,
        kept_seconds=record.kept_seconds,
        held_seconds=max(now - lease.granted_at, 0.0),
        since_seconds=max(now - (first_at if went_on else lease.granted_at), 0.0),
        phase=lease.phase,
        step=lease.step,
        total=lease.total,
    )


@dataclass
class EndedAttempts:
    """State of one transaction that ends attempts: the changes that it will write for their jobs."""

    transaction: Transaction
    ledger: ready_queue.Ledger = field(default_factory=ready_queue.Ledger)
    changes: list[Change] = field(default_factory=list)
    requeued: list[JobRecord] = field(default_factory=list)
    delayed: list[tuple[str, float]] = field(default_factory=list)
    audit_entries: list[AuditEntry] = field(default_factory=list)

    def settle(self, ended: Collection[sa.Row[Any]], seconds: Mapping[str, float]) -> None:
        """Replace the advance charges of the leases by the actual device-seconds, by job.

        The charge at the claim was a prediction. A job without an entry is charged nothing: the tenant of a
        lost lease gets the whole charge back.
        """
        if not ended:
            return
        tenants = ready_queue.load_tenants(self.transaction, {lease.tenant_id for lease in ended})
        for lease in ended:
            self.ledger.charge(tenants[lease.tenant_id], seconds.get(lease.job_id, 0.0) - lease.charged)

    def note_findings(self, record: JobRecord, safety: Mapping[str, Any]) -> None:
        """Record the findings of the filters of images and sounds, if any, for the audit log."""
        self.audit_entries += audit.judged_outputs(record.id, record.tenant_id, safety)

    def finish(self, record: JobRecord, status: JobStatus, **values: Any) -> JobStatus:
        """Give the job its final status, with the columns `values`; its latents are left to the sweep."""
        final = replace(record, status=status, finished_at=self.transaction.now, latents=None, **values)
        self.changes.append(Change(final, status.value, record.status))
        return status

    def cancel(self, record: JobRecord, seconds: float) -> JobStatus:
        """Give the job the status `canceled` after an attempt that took so many device-seconds."""
        in_all = record.denoised_seconds + seconds
        return self.finish(record, JobStatus.CANCELED, actual_seconds=in_all or None)

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
        """Return a job that was preempted for a more urgent one to its old place in the queue."""
        num_preempted = record.num_preempted + 1
        queued = replace(record, status=JobStatus.QUEUED, worker_id=None, num_preempted=num_preempted)
        self._put_back(queued, "preempted", record.status, {"times": num_preempted})
        return JobStatus.QUEUED

    def put_back_interrupted(self, record: JobRecord) -> JobStatus:
        """Return a job whose worker's machine is being taken away to its old place in the queue."""
        queued = replace(record, status=JobStatus.QUEUED, worker_id=None)
        self._put_back(queued, "interrupted", record.status, {"worker_id": record.worker_id})
        return JobStatus.QUEUED

    def requeue_denoised(self, record: JobRecord, seconds: float) -> JobStatus:
        """Return a job with finished latents to its old place in the queue, to be decoded."""
        queued = replace(record, status=JobStatus.QUEUED, worker_id=None)
        self._put_back(queued, "denoised", record.status, {"seconds": round(seconds, 3)})
        return JobStatus.QUEUED

    def _put_back(self, queued: JobRecord, event: str, before: JobStatus, data: Mapping[str, Any]) -> None:
        self.changes.append(Change(queued, event, before, data))
        self.ledger.count_queued(queued.tenant_id, 1)
        self.requeued.append(queued)

    def start_anew(self, record: JobRecord, cause: str) -> JobStatus:
        """Queue a job again from the start, without its unusable latents."""
        without = replace(record, latents=None, num_latents_lost=record.num_latents_lost + 1)
        return self.requeue(without, cause)

    def follow(self, record: JobRecord, decision: RetryDecision, cause: str) -> JobStatus:
        """Fail or requeue the job, as the decision says."""
        counted = replace(
            record, num_transient=decision.num_transient, num_worker_lost=decision.num_worker_lost
        )
        if decision.error is not None:
            return self.fail(counted, decision.error)
        return self.requeue(counted, cause, decision.pause_seconds)

    def save(self) -> None:
        """Write all collected changes."""
        save_changes(self.transaction, self.changes)
        ready_queue.put(self.transaction, self.requeued)
        ready_queue.delay(self.transaction, self.delayed)
        self.ledger.save(self.transaction)
        audit.keep(self.transaction, self.audit_entries)
        if self.changes:
            self._notify_waiting_workers()

    def _notify_waiting_workers(self) -> None:
        """Wake the claims that wait while jobs are ready.

        The jobs may belong to a tenant that was at its limit of running jobs and may now start another.
        """
        if self.transaction.rows(_ANY_READY):
            self.transaction.publish(QUEUE, {"type": "ready"})
