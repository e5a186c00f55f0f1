"""Watching jobs: one read serves all server-sent events, WebSockets and waiting requests of a process."""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Collection, Iterator
from contextlib import aclosing, contextmanager, nullcontext, suppress

from diffuserve.api.following.job_feed import FanOut, JobFeed, Update
from diffuserve.api.following.streamed_events import StreamedEvent
from diffuserve.api.following.watched_jobs import WatchedJobs
from diffuserve.domain.errors import JobNotFound
from diffuserve.domain.jobs.job import Job, JobStatus
from diffuserve.events.base import EventBus, job_topic
from diffuserve.jobs.store import JobStore
from diffuserve.telemetry.log_fields import once_a_minute

log = logging.getLogger(__name__)


class JobWatcher:
    """Reads the jobs that are followed, each once for all its followers.

    A job is read when the bus announces that it changed. The bus may lose messages, so every `poll_seconds`
    one query compares the revisions of all followed jobs.
    """

    def __init__(self, store: JobStore, bus: EventBus, watched: WatchedJobs, poll_seconds: float) -> None:
        self._store = store
        self._bus = bus
        self._watched = watched
        self._poll_seconds = poll_seconds
        self._fan_out = FanOut()
        self._feeds: dict[str, JobFeed] = {}
        self._changed: set[str] = set()
        self._has_work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def watch(self, job: Job, seconds: float = math.inf) -> AsyncGenerator[Update]:
        """Yield the job, each new state of it, and the live events in between.

        End with the final job or after `seconds`. Raise `JobNotFound` once the job is deleted.
        """
        if job.status.is_final:
            yield job
            return
        end = asyncio.get_running_loop().time() + seconds
        # Followed before the first update, so that no change in between is missed.
        with self._followed(job) as feed:
            place = feed.newest
            first = feed.job if feed.job.version > job.version else job
            yield first
            if first.status.is_final:
                return
            async with aclosing(_updates(feed, place, end)) as updates:
                async for update in updates:
                    yield update

    async def final(self, job: Job, seconds: float = math.inf) -> Job:
        """Return the job once it is final, or in its current state after `seconds`. Raise `JobNotFound`."""
        clock = asyncio.get_running_loop().time
        end = clock() + seconds
        if job.status.is_final:
            return job
        with self._followed(job, waits_for_end=True) as feed:
            while not feed.job.status.is_final and clock() < end:
                if feed.is_gone:
                    raise JobNotFound(f"no job {job.id}")
                await feed.wait(end)
            if feed.job.status.is_final or not feed.is_behind:
                return feed.job
        found = await self._store.jobs.get_many([job.id])
        if job.id not in found:
            raise JobNotFound(f"no job {job.id}")
        return found[job.id]

    async def events(self, job: Job, after: int = 0) -> AsyncGenerator[StreamedEvent]:
        """Yield events after `after`, and live events between them, until the job is final or deleted."""
        if job.status.is_final:
            for event in await self._store.jobs.events_after(job.id, after):
                yield StreamedEvent.stored(event)
            return
        with suppress(JobNotFound), self._followed(job, reads_log=True) as feed:
            async with aclosing(_log_and_updates(feed)) as updates:
                async for update in updates:
                    if isinstance(update, StreamedEvent):
                        yield update
                        continue
                    # Read from the log and not from the updates, which a slow follower may have missed.
                    while after < len(feed.log):
                        after += 1
                        yield feed.log[after - 1]

    @contextmanager
    def _followed(
        self, job: Job, *, reads_log: bool = False, waits_for_end: bool = False
    ) -> Iterator[JobFeed]:
        """Share the job's feed while the context is open; the job is read anew if that is needed.

        It may have changed since the caller read it, and, if nobody watched it, since the last watcher left.
        A queued job that has ended meanwhile is found by the next poll.
        """
        feed = self._feeds.get(job.id) or self._open(job)
        is_first = not feed.num_watching and not (waits_for_end and job.status is JobStatus.QUEUED)
        feed.num_followers += 1
        feed.num_watching += not waits_for_end
        feed.wants_log |= reads_log
        if is_first or job.version > feed.job.version or (reads_log and not feed.has_log):
            feed.invalidate()
        try:
            with nullcontext() if waits_for_end else self._watched.watching(job.id):
                yield feed
        finally:
            feed.num_followers -= 1
            feed.num_watching -= not waits_for_end
            if not feed.num_followers:
                self._close(feed)

    def _open(self, job: Job) -> JobFeed:
        feed = self._feeds[job.id] = JobFeed(job, self._fan_out, self._read_soon)
        feed.resources.enter_context(self._bus.listen(job_topic(job.id), feed.hear))
        self._has_work.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look(), name="job-watcher")
        return feed

    def _close(self, feed: JobFeed) -> None:
        feed.resources.close()
        del self._feeds[feed.job.id]
        self._has_work.set()  # which ends the task if no job is followed any more

    def _read_soon(self, job_id: str) -> None:
        self._changed.add(job_id)
        self._has_work.set()

    async def _look(self) -> None:
        """Read jobs as long as any is followed."""
        clock = asyncio.get_running_loop().time
        poll_at = clock() + self._poll_seconds
        while self._feeds:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(poll_at):
                    await self._has_work.wait()
            self._has_work.clear()
            try:
                if clock() >= poll_at:
                    poll_at = clock() + self._poll_seconds
                    self._changed |= await self._find_changed()
                await self._read_changed()
            except Exception as error:  # the followers wait on: what was not read is read at the next poll
                log.warning("could not read the jobs that are followed: %s", error, extra=once_a_minute())
                await asyncio.sleep(self._poll_seconds)

    async def _find_changed(self) -> set[str]:
        """Return the followed jobs that have changed since they were read, by one query for all."""
        job_ids = list(self._feeds)
        revisions = await self._store.jobs.revisions(job_ids)
        return {
            job_id
            for job_id in job_ids
            if (feed := self._feeds.get(job_id)) and feed.job.revision != revisions.get(job_id)
        }

    async def _read_changed(self) -> None:
        job_ids = self._changed & self._feeds.keys()
        self._changed.clear()
        if not job_ids:
            return
        try:
            jobs = await self._store.jobs.get_many(job_ids)
            # The logs after the jobs, so that the log of a final job is whole.
            logs = await self._store.jobs.logs(self._with_logs(job_ids))
        except BaseException:
            self._changed |= job_ids
            raise
        for job_id in job_ids & self._feeds.keys():
            feed = self._feeds[job_id]
            if job_id in jobs:
                feed.update(jobs[job_id], logs.get(job_id, ()), is_stale=job_id in self._changed)
            else:
                feed.end()

    def _with_logs(self, job_ids: Collection[str]) -> list[str]:
        return [job_id for job_id in job_ids if (feed := self._feeds.get(job_id)) and feed.wants_log]


async def _log_and_updates(feed: JobFeed) -> AsyncGenerator[Update]:
    """Yield the job if its log was read, then the updates; if it was not, the next update has the log."""
    place = feed.newest
    if feed.has_log:
        yield feed.job
        if feed.job.status.is_final:
            return
    async with aclosing(_updates(feed, place)) as updates:
        async for update in updates:
            yield update


async def _updates(feed: JobFeed, place: int, end: float = math.inf) -> AsyncGenerator[Update]:
    """Yield the feed's updates from `place` on, up to the final job or the time `end`."""
    clock = asyncio.get_running_loop().time
    while True:
        updates, place = feed.since(place), feed.newest
        for update in updates:
            yield update
            if isinstance(update, Job) and update.status.is_final:
                return
        if clock() >= end:
            return
        if not updates:
            await feed.wait(end)
