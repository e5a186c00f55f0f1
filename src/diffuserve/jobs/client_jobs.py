"""Jobs as clients submit, watch and cancel them."""

from collections import defaultdict
from collections.abc import Collection

import sqlalchemy as sa

from diffuserve.domain.errors import DeadlineUnreachable
from diffuserve.domain.jobs.job import Job, JobEvent, JobStatus, NewJob, QueueEstimate, Revision
from diffuserve.domain.text.timed_ids import timed_id
from diffuserve.jobs.database import queries, schema
from diffuserve.jobs.database.connections import IDS, Database
from diffuserve.jobs.database.lane_change import LaneChange
from diffuserve.jobs.database.writer import Writer
from diffuserve.jobs.queue.changes import event_of
from diffuserve.jobs.queue.control import CancelJob, DeleteJob
from diffuserve.jobs.queue.idempotency import Stamp
from diffuserve.jobs.queue.ready_queue import put_change
from diffuserve.jobs.queue.submit import FindJobRoom, SubmitJob
from diffuserve.jobs.reads.operations import Operations
from diffuserve.jobs.reads.outlook import Outlook
from diffuserve.jobs.reads.recent_changes import RecentChanges
from diffuserve.jobs.reads.search import FoundJobs, JobFilter, search
from diffuserve.jobs.records import JobRecord, job_of, new_record
from diffuserve.jobs.webhooks.delivered import NoteDelivered

events = schema.job_events

_LOGS = sa.select(events).where(events.c.job_id.in_(IDS)).order_by(events.c.job_id, events.c.seq)
_BEHIND_ALL = 2**62
_SUBMITTING = _BEHIND_ALL - 1
"""Places of a job that is imagined to be submitted next, and of those that are being submitted."""


class ClientJobs:
    """Jobs of tenants. Every method that takes a `tenant_id` accepts `None`, which matches every tenant.

    Every method raises `ServerUnavailable` while the database is unreachable.
    """

    def __init__(self, database: Database, writer: Writer, operations: Operations) -> None:
        self._database = database
        self._writer = writer
        self._recent = RecentChanges()
        self._outlook = Outlook(database, operations, self._recent)
        writer.on_lane_changes = self._recent.note

    async def submit(self, new: NewJob, job_id: str | None = None) -> Job:
        """Queue a job; return the earlier job for an idempotency key that was used with the same body.

        The job gets `job_id`, which must be new, or an id of its own.
        Raise `QueueFull`, `BacklogFull`, `TooLarge`, `IdempotencyMismatch`, or `FileNotKnown` for an image
        that was deleted meanwhile.
        """
        return await self._writer.run(SubmitJob(job_id or timed_id("job_"), new))

    async def submit_in_time(self, new: NewJob, job_id: str | None = None) -> Job:
        """Queue a job that has to meet its deadline, beside all that others are submitting just now.

        Raise what `check_deadline` and `submit` raise.
        """
        await self.check_deadline(new)
        # Nothing is awaited between the check and this, so that no two jobs count on the same room.
        with self._recent.pending(_change_of(new)):
            return await self.submit(new, job_id)

    async def find_room(self, tenant_id: str, stamp: Stamp | None) -> Job | None:
        """Return the earlier job of a stamp, `None` if there is none and the tenant may queue a job.

        This comes before what is costly to prepare for a job. Raise as `submit` does.
        """
        return await self._writer.run(FindJobRoom(tenant_id, stamp))

    async def get(self, job_id: str, tenant_id: str | None = None) -> Job:
        """Return the job. Raise `JobNotFound` also for a job of another tenant."""
        return await queries.read_job(self._database, job_id, tenant_id)

    async def get_many(self, job_ids: Collection[str]) -> dict[str, Job]:
        """Return those of the jobs that exist, of any tenant, by id."""
        rows = await queries.rows_of(self._database, queries.JOBS_BY_ID, job_ids)
        return {row.id: queries.job_in(row) for row in rows}

    async def revisions(self, job_ids: Collection[str]) -> dict[str, Revision]:
        """Return the revisions of those of the jobs that exist, by id: much cheaper than the jobs."""
        rows = await queries.rows_of(self._database, queries.REVISIONS_BY_ID, job_ids)
        return {row.id: queries.revision_in(row) for row in rows}

    async def list_jobs(
        self,
        *,
        tenant_id: str | None = None,
        statuses: Collection[JobStatus] = (),
        kind: str | None = None,
        after: str | None = None,
        limit: int = 50,
        oldest_first: bool = False,
    ) -> list[Job]:
        """Return at most `limit` jobs, newest first, that are older than the job `after`.

        With `oldest_first` they are those that are newer than it, in the other order. Raise `JobNotFound` if
        `after` is not a job id.
        """
        after = None if after is None else queries.check_job_id(after)
        page = queries.page_of_jobs(tenant_id, statuses, kind, after, oldest_first).limit(limit)
        return [queries.job_in(row) for row in await self._database.rows(page)]

    async def search(self, wanted: JobFilter, *, after: str | None = None, limit: int = 50) -> FoundJobs:
        """Return at most `limit` jobs that match, newest first, older than the job `after`.

        They may be fewer, though more match: a search looks at a bounded number of jobs. Raise `JobNotFound`
        if `after` is not a job id.
        """
        after = None if after is None else queries.check_job_id(after)
        return await search(self._database, wanted, after, limit)

    async def events_after(self, job_id: str, seq: int = 0) -> list[JobEvent]:
        """Return the job's log entries after entry `seq`; `[]` for an unknown job."""
        if not queries.is_job_id(job_id):
            return []
        return [event_of(row) for row in await self._database.rows(queries.events_of(job_id, seq))]

    async def logs(self, job_ids: Collection[str]) -> dict[str, list[JobEvent]]:
        """Return the whole logs of the jobs, by id; an unknown job has none."""
        logs: dict[str, list[JobEvent]] = defaultdict(list)
        for row in await queries.rows_of(self._database, _LOGS, job_ids):
            logs[row.job_id].append(event_of(row))
        return dict(logs)

    async def estimate(self, job: Job) -> QueueEstimate | None:
        """Estimate how long a queued job waits, as of the last second; `None` for one that is not queued."""
        if job.status is not JobStatus.QUEUED:
            return None
        return await self._outlook.estimate(job)

    async def foresee(self, new: NewJob) -> QueueEstimate:
        """Estimate when a job would be finished if it were submitted now, as of the last second."""
        return await self._outlook.foresee(job_of(_last(new)))

    async def foresee_in_time(self, new: NewJob) -> QueueEstimate:
        """Estimate as `foresee` does.

        Raise `DeadlineUnreachable` if the job would probably miss a deadline that it must meet: if the middle
        of its estimate is later. While no worker is ready for its model, nothing is known but how long the
        job itself takes.
        """
        estimate = await self.foresee(new)
        if new.finish_in is not None and not new.best_effort:
            likely = estimate.likely_seconds or job_of(_last(new)).work_seconds
            if likely > new.finish_in:
                raise DeadlineUnreachable(new.finish_in, likely, estimate.eta_s_low, estimate.eta_s_high)
        return estimate

    async def check_deadline(self, new: NewJob) -> None:
        """Raise what `foresee_in_time` raises. A job that may miss its deadline costs no estimate."""
        if new.finish_in is not None and not new.best_effort:
            await self.foresee_in_time(new)

    async def cancel(self, job_id: str, tenant_id: str | None = None) -> Job:
        """Cancel a queued job at once, mark a running one `canceling`, and leave a final one as it is."""
        await self._writer.run(CancelJob(queries.check_job_id(job_id), tenant_id))
        return await self.get(job_id)

    async def note_delivered(self, job_id: str) -> None:
        """Delete a job soon that was delivered just now, if it is not to be stored."""
        wanted = sa.select(schema.jobs.c.forget_delivered).where(schema.jobs.c.id == job_id)
        if any(row.forget_delivered for row in await self._database.rows(wanted)):
            await self._writer.run(NoteDelivered(job_id))

    async def delete(self, job_id: str, tenant_id: str | None = None) -> None:
        """Hide a job from now on, canceling a live one.

        The reaper removes its rows and files once it is final.
        """
        await self._writer.run(DeleteJob(queries.check_job_id(job_id), tenant_id))


def _last(new: NewJob, seq: int = _BEHIND_ALL) -> JobRecord:
    """Return the row that a job would have behind all others."""
    return new_record(new, job_id="", seq=seq, now=0.0)


def _change_of(new: NewJob) -> LaneChange:
    record = _last(new, _SUBMITTING)
    return put_change(record.lane, [record])
