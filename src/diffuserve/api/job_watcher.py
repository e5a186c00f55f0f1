"""Watching a job: the loop behind server-sent events, WebSockets and every wait for a result."""

import asyncio
import math
import random
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from diffuserve.domain.errors import JobNotFound
from diffuserve.domain.job import Job, JobEvent
from diffuserve.events.base import EventBus, job_topic
from diffuserve.jobs.store import JobStore

Message = Mapping[str, Any]


class JobWatcher:
    """Reads a job when the bus announces a change, and every `poll_seconds`: the bus may lose messages."""

    def __init__(self, store: JobStore, bus: EventBus, poll_seconds: float) -> None:
        self._store = store
        self._bus = bus
        self._poll_seconds = poll_seconds

    async def watch(self, job_id: str, seconds: float = math.inf) -> AsyncGenerator[Job | Message]:
        """Yield the job whenever it may have changed, and the live messages in between.

        End with the final job or after `seconds`. Raise `JobNotFound` once the job is deleted.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        # Subscribed before the first read, so that no change falls between the two.
        with self._bus.subscribe(job_topic(job_id)) as subscription:
            while True:
                job = await self._store.jobs.get(job_id)
                yield job
                if job.status.is_final or loop.time() >= end:
                    return
                poll_at = min(loop.time() + self._poll_seconds * random.uniform(0.8, 1.2), end)
                while message := await subscription.get(poll_at - loop.time()):
                    if message["type"] == "changed":
                        break
                    yield message

    async def final(self, job_id: str, seconds: float = math.inf) -> Job:
        """Return the job once it is final, or in its current state after `seconds`. Raise `JobNotFound`."""
        job: Job | None = None
        async with aclosing(self.watch(job_id, seconds)) as updates:
            async for update in updates:
                if isinstance(update, Job):
                    job = update
        assert job is not None
        return job

    async def events(self, job_id: str, after: int = 0) -> AsyncGenerator[JobEvent | Message]:
        """Yield events after `after`, and live messages between them, until the job is final or deleted."""
        version = -1
        try:
            async with aclosing(self.watch(job_id)) as updates:
                async for update in updates:
                    if not isinstance(update, Job):
                        yield update
                    elif update.version != version:
                        version = update.version
                        for event in await self._store.jobs.events_after(job_id, after):
                            after = event.seq
                            yield event
        except JobNotFound:  # deleted while it was watched
            return
