"""Watching a job: the one loop behind events, WebSockets and every wait for a result."""

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


class Follower:
    """The bus says when to look; it may forget to, so every `look_seconds` we look anyway."""

    def __init__(self, store: JobStore, bus: EventBus, look_seconds: float) -> None:
        self._store = store
        self._bus = bus
        self._look_seconds = look_seconds

    async def follow(self, job_id: str, seconds: float = math.inf) -> AsyncGenerator[Job | Message]:
        """The job as it is whenever it may have changed, and what is said of it in between.

        Ends with the final job, after `seconds`, or when the job is deleted.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        with self._bus.subscribe(job_topic(job_id)) as subscription:
            while True:
                job = await self._store.jobs.get(job_id)
                yield job
                if job.status.is_final or loop.time() >= end:
                    return
                look_at = min(loop.time() + self._look_seconds * random.uniform(0.8, 1.2), end)
                while message := await subscription.get(look_at - loop.time()):
                    if message["type"] == "changed":
                        break
                    yield message

    async def final(self, job_id: str, seconds: float = math.inf) -> Job:
        """The job once it is final, or as it is after `seconds`. Raises `JobNotFound`."""
        job: Job | None = None
        async with aclosing(self.follow(job_id, seconds)) as looks:
            async for look in looks:
                if isinstance(look, Job):
                    job = look
        assert job is not None
        return job

    async def events(self, job_id: str, after: int = 0) -> AsyncGenerator[JobEvent | Message]:
        """Stored events after `after` as they come, live messages between them, until the job is final."""
        version = -1
        try:
            async with aclosing(self.follow(job_id)) as looks:
                async for look in looks:
                    if not isinstance(look, Job):
                        yield look
                    elif look.version != version:
                        version = look.version
                        for event in await self._store.jobs.events_after(job_id, after):
                            after = event.seq
                            yield event
        except JobNotFound:  # deleted while it was watched
            return
