"""Uploads of checkpoints: one at a time per job, and always the newest."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from diffuserve.agent.state.held_job import HeldJob
from diffuserve.client.leases import LeaseClient
from diffuserve.domain.errors import DiffuserveError
from diffuserve.domain.jobs.checkpoint import NUM_SLOTS
from diffuserve.protocol.messages import CheckpointReady

log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 5.0


class CheckpointReporter:
    """Stores checkpoints of held jobs. A failed upload only loses the time that the checkpoint would save.

    `start` runs work as a task.
    """

    def __init__(
        self, client: LeaseClient, start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    ) -> None:
        self._client, self._start = client, start

    def keep(self, job: HeldJob, ready: CheckpointReady) -> None:
        """Read a checkpoint's file at once, as its folder may be deleted, and queue it for upload."""
        path = Path(ready.path)
        try:
            job.unsent_checkpoint = (ready, path.read_bytes())
            path.unlink()
        except OSError as error:
            log.warning("job %s: a checkpoint is lost: %s", job.lease.job_id, error, extra=job.log_fields)
            return
        if job.checkpoint_upload is None or job.checkpoint_upload.done():
            job.checkpoint_upload = self._start(self._upload(job))

    async def finish(self, job: HeldJob) -> None:
        """Wait, up to a limit, for the upload in progress before the job's lease ends."""
        if job.checkpoint_upload is not None:
            await asyncio.wait({job.checkpoint_upload}, timeout=_PATIENCE_SECONDS)
            job.checkpoint_upload.cancel()

    async def drop(self, job: HeldJob) -> None:
        """Send no more checkpoints of a job that has ended."""
        job.unsent_checkpoint = None
        await self.finish(job)

    async def _upload(self, job: HeldJob) -> None:
        lease = job.lease
        while job.unsent_checkpoint is not None:
            (ready, content), job.unsent_checkpoint = job.unsent_checkpoint, None
            slot = job.num_checkpoints % NUM_SLOTS
            try:
                await self._client.keep_checkpoint(lease.job_id, lease.lease_token, slot, ready.step, content)
                job.num_checkpoints += 1
                job.kept_seconds = ready.seconds
            except DiffuserveError as error:  # the heartbeat reports a lost lease
                message = "job %s: its checkpoint is not stored: %s"
                log.warning(message, lease.job_id, error, extra=job.log_fields)
