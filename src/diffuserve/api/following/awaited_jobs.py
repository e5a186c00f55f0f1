"""Jobs whose requests wait for their ends, and are canceled with them."""

import asyncio
from collections.abc import Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from diffuserve.api.following.job_watcher import JobWatcher
from diffuserve.api.following.last_previews import LastPreviews
from diffuserve.api.http.background_tasks import BackgroundTasks
from diffuserve.api.http.problem import Problem
from diffuserve.domain.errors import InvalidParams, ModelNotCapable, OutputBlocked
from diffuserve.domain.jobs.job import Job, JobStatus
from diffuserve.jobs.store import JobStore

_FAILURE_STATUSES = {JobStatus.FAILED: 500, JobStatus.CANCELED: 409, JobStatus.EXPIRED: 504}
_INPUT_ERRORS = frozenset({InvalidParams.code, ModelNotCapable.code, OutputBlocked.code})


@dataclass(frozen=True)
class AwaitedJobs:
    """Waits for jobs as long as their clients do."""

    store: JobStore
    job_watcher: JobWatcher
    previews: LastPreviews
    background_tasks: BackgroundTasks

    async def final(self, request: Request, job: Job, may_return: bool = False) -> Job | None:
        """Return the job once it is final; cancel it and return `None` if the client disconnects first.

        It is not canceled if the client may return to it. The body of the request must have been read.
        """
        return await self._unless_disconnected(request, job, self.job_watcher.final(job), may_return)

    async def final_with_previews(self, request: Request, job: Job) -> Job | None:
        """Return the job as `final` does, and keep its last preview until then."""
        with self.previews.kept(job.id):
            return await self._unless_disconnected(request, job, self._watched(job))

    async def _unless_disconnected(
        self, request: Request, job: Job, final: Coroutine[Any, Any, Job], may_return: bool = False
    ) -> Job | None:
        ending = asyncio.create_task(final)
        disconnecting = asyncio.create_task(_wait_for_disconnect(request))
        try:
            await asyncio.wait({ending, disconnecting}, return_when=asyncio.FIRST_COMPLETED)
            return ending.result() if ending.done() else None
        finally:
            if not (ending.done() or may_return):
                self.background_tasks.start(self.store.jobs.cancel(job.id))
            ending.cancel()
            disconnecting.cancel()

    async def _watched(self, job: Job) -> Job:
        async with aclosing(self.job_watcher.watch(job)) as updates:
            async for update in updates:
                if isinstance(update, Job):
                    job = update
                elif update.resource.type == "preview":
                    self.previews.keep(job.id, update.resource.data["b64"])
        return job


def failure_problem(job: Job) -> Problem:
    """Return why a final job has no image.

    It is not retryable: the client's retry would be another job.
    """
    error = job.error
    code, message = (error.code, error.message) if error else (str(job.status), f"the job was {job.status}")
    status = 400 if code in _INPUT_ERRORS else _FAILURE_STATUSES[job.status]
    return Problem(status=status, code=code, detail=message)


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
