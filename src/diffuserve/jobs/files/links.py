"""Links from jobs to the uploaded images that they name."""

from collections.abc import Collection, Iterable
from typing import Any

import sqlalchemy as sa

from diffuserve.domain.errors import DiffuserveError, FileNotKnown
from diffuserve.domain.jobs.input_file import FilePurpose
from diffuserve.domain.jobs.job import NewJob
from diffuserve.domain.requests.image_fields import input_ids
from diffuserve.jobs.database import schema
from diffuserve.jobs.database.connections import Transaction

files, job_files = schema.files, schema.job_files

_IDS_AT_ONCE = 500


class NamedFiles:
    """The images that the submissions of one transaction name, as far as they exist."""

    def __init__(self, transaction: Transaction, submitted: Iterable[NewJob]) -> None:
        self._owners: dict[str, str] = {}
        wanted = sorted({file_id for new in submitted for file_id in input_ids(new.input)})
        for start in range(0, len(wanted), _IDS_AT_ONCE):
            chunk = wanted[start : start + _IDS_AT_ONCE]
            is_named = sa.and_(files.c.id.in_(chunk), files.c.purpose == FilePurpose.VISION)
            rows = transaction.rows(sa.select(files.c.id, files.c.tenant_id).where(is_named))
            self._owners |= {row.id: row.tenant_id for row in rows}

    def refusal(self, new: NewJob) -> DiffuserveError | None:
        """Return the error of a job that names an image which its tenant does not have; else `None`."""
        for file_id in input_ids(new.input):
            if self._owners.get(file_id) != new.tenant_id:
                return FileNotKnown(f"no file {file_id}; it was deleted or has expired: upload it again")
        return None


def link_rows(job_id: str, new: NewJob) -> list[dict[str, Any]]:
    """Return the rows that link a job to its images."""
    return [{"job_id": job_id, "file_id": file_id} for file_id in input_ids(new.input)]


def link(transaction: Transaction, rows: list[dict[str, Any]]) -> None:
    """Store links."""
    if rows:
        transaction.execute(sa.insert(job_files), rows)


def unlink(transaction: Transaction, job_ids: Collection[str]) -> None:
    """Delete the links of jobs."""
    transaction.execute(sa.delete(job_files).where(job_files.c.job_id.in_(list(job_ids))))


def expire_inputs(transaction: Transaction, job_ids: Collection[str]) -> None:
    """Let the images expire now that only these jobs name, as far as they are not to be stored."""
    jobs, others = schema.jobs, job_files.alias()
    unstored = sa.select(jobs.c.id).where(jobs.c.id.in_(list(job_ids)), jobs.c.forget_delivered)
    named = sa.select(job_files.c.file_id).where(job_files.c.job_id.in_(unstored))
    is_shared = sa.exists().where(others.c.file_id == files.c.id, others.c.job_id.not_in(unstored))
    gone = sa.update(files).where(files.c.id.in_(named), ~is_shared)
    transaction.execute(gone.values(expires_at=transaction.now))


def jobs_without_files(transaction: Transaction, job_ids: Collection[str]) -> set[str]:
    """Return those of the jobs that name an image which is gone."""
    is_there = sa.select(files.c.id).where(files.c.id == job_files.c.file_id).exists()
    gone = sa.select(job_files.c.job_id).where(job_files.c.job_id.in_(list(job_ids)), ~is_there)
    return {row.job_id for row in transaction.rows(gone)}
