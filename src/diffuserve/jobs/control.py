"""What clients and operators do to jobs that exist: cancel, requeue, forget."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa

from diffuserve.domain.errors import Conflict, DiffuserveError, JobNotFound
from diffuserve.domain.job import JobStatus
from diffuserve.events.base import worker_topic
from diffuserve.jobs import queue, schema
from diffuserve.jobs.batches import completion as batch_completion
from diffuserve.jobs.database import Transaction
from diffuserve.jobs.records import Change, JobRecord, load_records, save_changes

_REQUEUED = (JobStatus.FAILED, JobStatus.CANCELED, JobStatus.EXPIRED)


@dataclass(frozen=True)
class Named:
    """A job or a batch, and whose it must be; `None` for anybody's."""

    id: str
    tenant_id: str | None


def cancel(transaction: Transaction, named: Sequence[Named]) -> Sequence[str | DiffuserveError]:
    """A queued job ends at once; a running one ends when its worker has let go of it."""
    records = load_records(transaction, {one.id for one in named})
    wanted = [one for one in named if _is_theirs(records.get(one.id), one)]
    _cancel(transaction, {one.id: records[one.id] for one in wanted})
    return _answers(named, records)


def delete(transaction: Transaction, named: Sequence[Named]) -> Sequence[str | DiffuserveError]:
    """Cancel, and mark for the reaper, which forgets jobs once they are final."""
    outcomes = cancel(transaction, named)
    if transaction.is_retry:  # those of an earlier try, whose answer was lost, are erased already
        outcomes = [one.id for one in named]
    ids = [one for one in outcomes if isinstance(one, str)]
    if ids:
        transaction.execute(sa.update(schema.jobs).where(schema.jobs.c.id.in_(ids)).values(is_erased=True))
    return outcomes


def requeue(transaction: Transaction, named: Sequence[Named]) -> Sequence[str | DiffuserveError]:
    """Jobs that ended badly get all their attempts again, at their old place."""
    records = load_records(transaction, {one.id for one in named})
    outcomes = list(_answers(named, records))
    again: dict[str, JobRecord] = {}
    for index, one in enumerate(named):
        ended = records.get(one.id)
        if ended is None or isinstance(outcomes[index], DiffuserveError) or one.id in again:
            continue
        if ended.status in _REQUEUED:
            again[ended.id] = _fresh(ended)
        elif not (transaction.is_retry and ended.status is JobStatus.QUEUED):
            outcomes[index] = Conflict(
                f"job {ended.id} is {ended.status}; only failed, canceled and expired jobs can be requeued"
            )
    save_changes(transaction, [Change(one, "requeued", {"cause": "operator"}) for one in again.values()])
    queue.put(transaction, list(again.values()))
    ledger = queue.Ledger()
    for record in again.values():
        ledger.count_queued(record.tenant_id, 1)
    ledger.save(transaction)
    batch_completion.reopen(transaction, {one.batch_id for one in again.values() if one.batch_id is not None})
    return outcomes


def _cancel(transaction: Transaction, records: dict[str, JobRecord]) -> None:
    queued = [one for one in records.values() if one.status is JobStatus.QUEUED]
    running = [one for one in records.values() if one.status is JobStatus.RUNNING]
    queue.take(transaction, [one.id for one in queued])
    ledger = queue.Ledger()
    for record in queued:
        ledger.count_queued(record.tenant_id, -1)
    ledger.save(transaction)
    if running:
        table = schema.leases
        marked = sa.update(table).where(table.c.job_id.in_([one.id for one in running]))
        transaction.execute(marked.values(is_canceling=True))
    for one in running:
        assert one.worker_id is not None
        transaction.notices.append((worker_topic(one.worker_id), {"type": "cancel", "job_id": one.id}))
    ended = [replace(one, status=JobStatus.CANCELED, finished_at=transaction.now) for one in queued]
    leaving = [replace(one, status=JobStatus.CANCELING) for one in running]
    save_changes(transaction, [Change(one, one.status.value, {}) for one in (*ended, *leaving)])


def _fresh(record: JobRecord) -> JobRecord:
    return replace(
        record,
        status=JobStatus.QUEUED,
        num_transient=0,
        num_worker_lost=0,
        worker_id=None,
        deadline=None,
        finished_at=None,
        actual_seconds=None,
        error=None,
    )


def _is_theirs(record: JobRecord | None, named: Named) -> bool:
    return record is not None and not record.is_erased and named.tenant_id in (None, record.tenant_id)


def _answers(named: Sequence[Named], records: dict[str, JobRecord]) -> list[str | DiffuserveError]:
    return [
        one.id if _is_theirs(records.get(one.id), one) else JobNotFound(f"no job {one.id}") for one in named
    ]
