"""Fetches the input files and the adapters of jobs before the jobs enter the engine."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from diffuserve.agent.jobs.adapter_fetcher import AdapterFetcher, FetchAdapter
from diffuserve.agent.state.held_job import HeldJob
from diffuserve.client.leases import LeaseClient
from diffuserve.domain.errors import (
    AdapterNotFound,
    DiffuserveError,
    DownloadFailed,
    InvalidAdapter,
    LatentsUnusable,
    NotFound,
)
from diffuserve.domain.jobs.checkpoint import CHECKPOINT_ID
from diffuserve.domain.jobs.job import Phase
from diffuserve.domain.requests.adapter_use import stored_uses
from diffuserve.domain.requests.image_fields import input_ids
from diffuserve.domain.workers.worker import LATENTS_ID, Lease
from diffuserve.protocol.messages import JobFailed

log = logging.getLogger(__name__)

Fetched: TypeAlias = Mapping[str, Path] | Exception
"""The files of a job by their ids, or the reason why they are not here."""


class InputFetcher:
    """Fetches each job's files in a task of its own, so that no job waits for another's."""

    def __init__(
        self, client: LeaseClient, fetch_adapter: FetchAdapter, on_end: Callable[[HeldJob, Fetched], None]
    ) -> None:
        """Call `on_end` with each job once its files are fetched or have failed, unless it was stopped."""
        self._client = client
        self._adapters = AdapterFetcher(fetch_adapter)
        self._on_end = on_end
        self._tasks: dict[str, asyncio.Task[None]] = {}  # by their jobs' attempts

    def start(self, job: HeldJob) -> None:
        """Start fetching a job's files into its folder."""
        job.advance(Phase.LOAD, 0, 0)
        self._tasks[job.attempt] = asyncio.create_task(self._fetch(job))

    def stop(self, job: HeldJob) -> None:
        """Fetch no more for this job."""
        if (task := self._tasks.pop(job.attempt, None)) is not None:
            task.cancel()

    async def _fetch(self, job: HeldJob) -> None:
        fetched: Fetched
        try:
            job.adapters = await self._adapters.fetch(stored_uses(job.lease.input))
            adapters = {digest: file.path for digest, file in job.adapters.items()}
            fetched = {**adapters, **await self._fetch_files(job), **await self._fetch_checkpoint(job)}
        except Exception as error:  # any error of a job fails that job alone
            fetched = error
        self._on_end(job, fetched)
        self._tasks.pop(job.attempt, None)

    async def _fetch_files(self, job: HeldJob) -> Mapping[str, Path]:
        lease = job.lease
        if not files_of(lease):
            return {}
        return await self._client.fetch_inputs(lease.job_id, lease.lease_token, files_of(lease), job.folder)

    async def _fetch_checkpoint(self, job: HeldJob) -> Mapping[str, Path]:
        """Fetch the checkpoint that a job resumes from; if it cannot be fetched, the job starts over."""
        lease = job.lease
        if lease.checkpoint is None:
            return {}
        folder = job.folder / CHECKPOINT_ID
        folder.mkdir(exist_ok=True)
        try:
            return await self._client.fetch_inputs(lease.job_id, lease.lease_token, (CHECKPOINT_ID,), folder)
        except (NotFound, DownloadFailed) as error:
            message = "job %s begins anew: its checkpoint is not to be had: %s"
            log.warning(message, lease.job_id, error, extra=job.log_fields)
            return {}


def needs_files(lease: Lease) -> bool:
    """Return whether there is anything to fetch before a job enters the engine."""
    return bool(files_of(lease) or stored_uses(lease.input)) or lease.checkpoint is not None


def files_of(lease: Lease) -> tuple[str, ...]:
    """Return the ids of the files that a job reads: its images, and the latents that it starts from."""
    return (*input_ids(lease.input), *(() if lease.latents is None else (LATENTS_ID,)))


def fetch_failure(job: HeldJob, error: Exception) -> JobFailed:
    """Build the failure report of a job whose files cannot be fetched; a deleted file is not retried."""
    if isinstance(error, NotFound | LatentsUnusable | AdapterNotFound | InvalidAdapter):
        return JobFailed(attempt=job.attempt, code=error.code, message=str(error))
    if isinstance(error, DiffuserveError):
        return JobFailed(attempt=job.attempt, code=error.code, message=str(error), retryable=True)
    message = "job %s: its input images cannot be fetched"
    log.error(message, job.lease.job_id, exc_info=error, extra=job.log_fields)
    reason = error.strerror if isinstance(error, OSError) else type(error).__name__  # it may name a folder
    message = f"an input image could not be fetched: {reason}"
    return JobFailed(attempt=job.attempt, code=DownloadFailed.code, message=message, retryable=True)
