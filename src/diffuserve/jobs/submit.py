"""Taking jobs in: the job, its first event, its key and its place in the queue in one transaction."""

from collections.abc import Sequence

import sqlalchemy as sa

from diffuserve.domain.errors import DiffuserveError, JobNotFound
from diffuserve.domain.job import Job
from diffuserve.jobs import queries, schema
from diffuserve.jobs.admission import Admission, Submission, stamp_of
from diffuserve.jobs.database import Transaction
from diffuserve.jobs.idempotency import Known


def submit(transaction: Transaction, submissions: Sequence[Submission]) -> Sequence[Job | DiffuserveError]:
    stamps = [stamp for one in submissions if (stamp := stamp_of(one.new)) is not None]
    known = Known(transaction, stamps)
    stored = _already_stored(transaction, submissions) if transaction.is_retry else set()
    books = Admission.open(transaction, {one.new.tenant_id for one in submissions})
    outcomes = [_take(books, known, stored, one) for one in submissions]
    books.save()
    return _answers(transaction, outcomes, books.jobs)


def _take(books: Admission, known: Known, stored: set[str], one: Submission) -> str | DiffuserveError:
    """The id of the job that this submission stands for."""
    new, stamp = one.new, stamp_of(one.new)
    if one.job_id in stored:
        return one.job_id
    earlier = known.earlier(stamp)
    if earlier is not None:
        return earlier
    refusal = books.refusal(new.tenant_id, 1, new.cost_seconds)
    if refusal is not None:
        return refusal
    books.accept(one)
    if stamp is not None:
        known.use(stamp, one.job_id)
    return one.job_id


def _already_stored(transaction: Transaction, submissions: Sequence[Submission]) -> set[str]:
    wanted = [one.job_id for one in submissions]
    return {
        row.id for row in transaction.rows(sa.select(schema.jobs.c.id).where(schema.jobs.c.id.in_(wanted)))
    }


def _answers(
    transaction: Transaction, outcomes: Sequence[str | DiffuserveError], fresh: dict[str, Job]
) -> list[Job | DiffuserveError]:
    earlier = {one for one in outcomes if isinstance(one, str) and one not in fresh}
    jobs = fresh | queries.find_jobs(transaction, earlier)
    return [_found(jobs, one) if isinstance(one, str) else one for one in outcomes]


def _found(jobs: dict[str, Job], job_id: str) -> Job | DiffuserveError:
    return jobs.get(job_id) or JobNotFound(f"job {job_id}, which this key stands for, was deleted")
