"""Uploads of the parts of live clips, in order for each job."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from diffuserve.agent.state.held_job import HeldJob
from diffuserve.client.leases import LeaseClient
from diffuserve.domain.errors import DiffuserveError
from diffuserve.protocol.messages import LivePart

log = logging.getLogger(__name__)


class LiveReporter:
    """Uploads parts while their clip is being decoded, and deletes them if the job does not finish.

    A part that cannot be uploaded ends the live view of its clip, not the job: the finished file is complete.
    `start` runs work as a task.
    """

    def __init__(
        self, client: LeaseClient, start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    ) -> None:
        self._client, self._start = client, start

    def part(self, job: HeldJob, part: LivePart) -> None:
        """Upload a part after the job's earlier ones."""
        job.live_upload = self._start(self._upload(job, part, job.live_upload))

    def drop(self, job: HeldJob) -> None:
        """Upload no more parts of the job, and delete those that are stored, if there are any."""
        job.is_live_over = True
        if job.live_upload is not None:
            job.live_upload = self._start(self._delete(job, job.live_upload))

    async def finish(self, job: HeldJob) -> None:
        """Wait until all parts of a job are stored, before it is completed."""
        await _done(job.live_upload)

    async def take_back(self, job: HeldJob) -> None:
        """Delete the stored parts, before the job fails or is released."""
        self.drop(job)
        await self.finish(job)

    async def _upload(self, job: HeldJob, part: LivePart, before: asyncio.Task[None] | None) -> None:
        await _done(before)
        lease = job.lease
        try:
            if not job.is_live_over:
                content = job.file(part.path).read_bytes()
                await self._client.put_live_part(lease.job_id, lease.lease_token, part.number, content)
            job.file(part.path).unlink(missing_ok=True)
        except (DiffuserveError, OSError) as error:
            job.is_live_over = True
            log.warning("job %s: no more of its clip is shown: %s", lease.job_id, error, extra=job.log_fields)

    async def _delete(self, job: HeldJob, before: asyncio.Task[None] | None) -> None:
        await _done(before)
        try:
            await self._client.drop_live_parts(job.lease.job_id, job.lease.lease_token)
        except DiffuserveError as error:  # they are deleted with the attempt's other files, or after the job
            message = "job %s: the parts of its clip stay stored: %s"
            log.warning(message, job.lease.job_id, error, extra=job.log_fields)


async def _done(task: asyncio.Task[None] | None) -> None:
    if task is not None:
        await asyncio.wait({task})
