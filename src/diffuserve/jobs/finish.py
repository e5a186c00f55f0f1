"""The ends of an attempt: completed, failed, handed back, lost, cancelled or out of time.

Each works on leases that its caller proved to hold (or that time has ended), and leaves a job either
final or back in the queue, with the tenant's account settled.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Generic, TypeVar

import sqlalchemy as sa

from diffuserve.domain.errors import DiffuserveError, LeaseLost
from diffuserve.domain.job import JobError, JobStatus
from diffuserve.domain.safety import AuditEntry
from diffuserve.domain.worker import Completion, Failure, Release, ReleaseCause
from diffuserve.events.base import QUEUE, worker_topic
from diffuserve.jobs import audit, queue, schema
from diffuserve.jobs.database import Transaction
from diffuserve.jobs.records import Change, JobRecord, dump, dump_result, load_records, save_changes
from diffuserve.jobs.retries import Verdict, after_failure, after_loss

leases = schema.leases
Word = TypeVar("Word", Completion, Failure, Release)


@dataclass(frozen=True)
class Said(Generic[Word]):
    """A worker's last word on a job."""

    job_id: str
    word: Word


@dataclass
class _Ending:
    """What a batch of ended attempts writes."""

    transaction: Transaction
    ledger: queue.Ledger = field(default_factory=queue.Ledger)
    changes: list[Change] = field(default_factory=list)
    requeued: list[JobRecord] = field(default_factory=list)
    delayed: list[tuple[str, float]] = field(default_factory=list)
    audited: list[AuditEntry] = field(default_factory=list)

    def note(self, record: JobRecord, safety: Mapping[str, Any]) -> None:
        """What the image filter found, if it found anything."""
        if (entry := audit.judged_images(record.id, record.tenant_id, safety)) is not None:
            self.audited.append(entry)

    def finish(self, record: JobRecord, event: JobStatus, **values: Any) -> JobStatus:
        ended = replace(record, status=event, finished_at=self.transaction.now, **values)
        self.changes.append(Change(ended, event.value, {}))
        return event

    def requeue(self, record: JobRecord, cause: str, pause: float) -> JobStatus:
        """Back to its old place, at once or after a pause."""
        again = replace(record, status=JobStatus.QUEUED, worker_id=None)
        self.changes.append(Change(again, "requeued", {"cause": cause, "in_seconds": round(pause, 3)}))
        self.ledger.count_queued(record.tenant_id, 1)
        if pause > 0:
            self.delayed.append((record.id, self.transaction.now + pause))
        else:
            self.requeued.append(again)
        return JobStatus.QUEUED

    def follow(self, record: JobRecord, verdict: Verdict, cause: str) -> JobStatus:
        """Do what was decided about a failed attempt."""
        counted = replace(
            record, num_transient=verdict.num_transient, num_worker_lost=verdict.num_worker_lost
        )
        if verdict.error is not None:
            return self.finish(counted, JobStatus.FAILED, error=dump(asdict(verdict.error)))
        return self.requeue(counted, cause, verdict.pause_seconds)

    def save(self) -> None:
        save_changes(self.transaction, self.changes)
        queue.put(self.transaction, self.requeued)
        queue.delay(self.transaction, self.delayed)
        self.ledger.save(self.transaction)
        audit.keep(self.transaction, self.audited)
        if self.changes:
            self._offer_room()

    def _offer_room(self) -> None:
        """A tenant at its limit may start a job again: whoever waits for work should look."""
        if self.transaction.rows(sa.select(schema.lanes.c.lane).where(schema.lanes.c.num_ready > 0).limit(1)):
            self.transaction.notices.append((QUEUE, {"type": "ready"}))


def complete(
    transaction: Transaction, words: Sequence[Said[Completion]]
) -> Sequence[JobStatus | DiffuserveError]:
    def end(ending: _Ending, record: JobRecord, said: Completion) -> JobStatus:
        ending.note(record, said.result.safety)
        result = dump_result(said.result)
        return ending.finish(
            record, JobStatus.SUCCEEDED, result=result, actual_seconds=said.actual_seconds, error=None
        )

    return _end_all(transaction, words, end, lambda said: said.actual_seconds)


def fail(transaction: Transaction, words: Sequence[Said[Failure]]) -> Sequence[JobStatus | DiffuserveError]:
    def end(ending: _Ending, record: JobRecord, said: Failure) -> JobStatus:
        ending.note(record, said.error.safety)
        verdict = after_failure(record, said.error, transaction.config, random.random())
        return ending.follow(record, verdict, said.error.code)

    return _end_all(transaction, words, end, lambda said: said.actual_seconds)


def release(
    transaction: Transaction, words: Sequence[Said[Release]]
) -> Sequence[JobStatus | DiffuserveError]:
    def end(ending: _Ending, record: JobRecord, said: Release) -> JobStatus:
        if said.cause is not ReleaseCause.WORKER_LOST:
            return ending.requeue(record, said.cause, 0.0)
        record = replace(record, is_suspect=record.is_suspect or said.is_suspect)
        return ending.follow(record, after_loss(record, transaction.config), said.cause)

    return _end_all(transaction, words, end, lambda said: 0.0)


def lose(transaction: Transaction, expired: Sequence[sa.Row[Any]]) -> None:
    """Leases that nobody renewed: their workers are taken for dead."""
    records = _take_away(transaction, expired)
    ending = _Ending(transaction)
    _settle(ending, expired, {})
    for lease in expired:
        record = records[lease.job_id]
        if lease.is_canceling:
            ending.finish(record, JobStatus.CANCELED)
        else:
            ending.follow(record, after_loss(record, transaction.config), "worker_lost")
        transaction.notices.append((worker_topic(lease.worker_id), {"type": "lost", "job_id": lease.job_id}))
    ending.save()


def stop_late(transaction: Transaction, late: Sequence[sa.Row[Any]]) -> None:
    """Jobs that ran longer than their `timeout`; what they took is charged."""
    records = _take_away(transaction, late)
    ending = _Ending(transaction)
    _settle(ending, late, {lease.job_id: records[lease.job_id].timeout or 0.0 for lease in late})
    for lease in late:
        record = records[lease.job_id]
        error = JobError("timeout", f"the job ran longer than its timeout of {record.timeout:g} s")
        if lease.is_canceling:
            ending.finish(record, JobStatus.CANCELED)
        else:
            ending.finish(record, JobStatus.FAILED, error=dump(asdict(error)))
        transaction.notices.append((worker_topic(lease.worker_id), {"type": "lost", "job_id": lease.job_id}))
    ending.save()


def _end_all(
    transaction: Transaction,
    words: Sequence[Said[Word]],
    end: Callable[[_Ending, JobRecord, Word], JobStatus],
    seconds: Callable[[Word], float],
) -> list[JobStatus | DiffuserveError]:
    """End what is held under the right token; an answer for every word, in order."""
    held = {
        row.job_id: row
        for row in transaction.rows(
            sa.select(leases).where(leases.c.job_id.in_([one.job_id for one in words]))
        )
    }
    mine: dict[str, Said[Word]] = {}
    for one in words:
        if one.job_id in held and held[one.job_id].lease_token == one.word.lease_token:
            mine.setdefault(one.job_id, one)
    ended = [held[job_id] for job_id in mine]
    records = _end_leases(transaction, ended)
    ending = _Ending(transaction)
    _settle(ending, ended, {job_id: seconds(one.word) for job_id, one in mine.items()})
    statuses: dict[str, JobStatus] = {}
    for job_id, one in mine.items():
        record = records[job_id]
        if held[job_id].is_canceling:  # whoever cancelled was told so
            statuses[job_id] = ending.finish(
                record, JobStatus.CANCELED, actual_seconds=seconds(one.word) or None
            )
        else:
            statuses[job_id] = end(ending, record, one.word)
    ending.save()
    repeated = _finished_by(transaction, [one for one in words if one.job_id not in mine])
    known = {(job_id, one.word.lease_token): statuses[job_id] for job_id, one in mine.items()} | repeated
    return [known.get((one.job_id, one.word.lease_token)) or LeaseLost(one.job_id) for one in words]


def _end_leases(transaction: Transaction, ended: Sequence[sa.Row[Any]]) -> dict[str, JobRecord]:
    ids = [row.job_id for row in ended]
    if ids:
        transaction.execute(sa.delete(leases).where(leases.c.job_id.in_(ids)))
    return load_records(transaction, ids)


def _take_away(transaction: Transaction, ended: Sequence[sa.Row[Any]]) -> dict[str, JobRecord]:
    """As `_end_leases`, against the worker's will: its token finishes nothing from now on."""
    records = _end_leases(transaction, ended)
    return {job_id: replace(record, worker_id=None) for job_id, record in records.items()}


def _settle(ending: _Ending, ended: Sequence[sa.Row[Any]], actual: dict[str, float]) -> None:
    """Replace what was charged by what it took; a lost lease is given back whole."""
    tenants = queue.load_tenants(ending.transaction, {row.tenant_id for row in ended}) if ended else {}
    for row in ended:
        ending.ledger.charge(tenants[row.tenant_id], actual.get(row.job_id, 0.0) - row.charged)


def _finished_by(transaction: Transaction, words: Sequence[Said[Any]]) -> dict[tuple[str, int], JobStatus]:
    """Jobs that this very token has finished, or handed back in a commit whose answer was lost."""
    records = load_records(transaction, {one.job_id for one in words})
    return {
        (record.id, record.lease_token): record.status
        for record in records.values()
        if (record.status.is_final and record.worker_id is not None)
        or (transaction.is_retry and not record.status.is_leased)
    }
