"""Clips that are watched while they are decoded: one response that grows as the parts are stored."""

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from diffuserve.api.following.job_watcher import JobWatcher
from diffuserve.domain.errors import ArtifactNotFound, JobNotFound
from diffuserve.domain.jobs.job import Job, JobStatus
from diffuserve.storage.base import ArtifactStore
from diffuserve.storage.live_parts import live_key


class LiveClip:
    """Sends the parts of one attempt at a job, each as soon as it can be read.

    The response ends with the attempt, and is complete if the job has succeeded. Only one attempt is sent:
    the first one with a stored part.
    """

    def __init__(self, watcher: JobWatcher, artifacts: ArtifactStore, job: Job) -> None:
        self._watcher = watcher
        self._artifacts = artifacts
        self._job = job
        self._token = job.lease_token
        self._num_sent = 0

    async def content(self) -> AsyncGenerator[bytes]:
        """Yield the parts until the job is final or deleted, or another attempt begins."""
        with suppress(JobNotFound):
            async with aclosing(self._watcher.watch(self._job)) as updates:
                async for update in updates:
                    if isinstance(update, Job):
                        self._job = update
                    if not self._is_same_attempt():
                        return
                    async for chunk in self._new_parts():
                        yield chunk

    def _is_same_attempt(self) -> bool:
        """Follow the job's newest attempt until a part is sent; after that return `False` for another one."""
        if not self._num_sent:
            self._token = self._job.lease_token
        return self._token == self._job.lease_token

    async def _new_parts(self) -> AsyncGenerator[bytes]:
        """Yield the parts that are stored and were not sent yet, if they may be shown."""
        if not self._job.status.is_leased and self._job.status is not JobStatus.SUCCEEDED:
            return
        with suppress(ArtifactNotFound):  # the next part is not stored yet, or was taken back
            while True:
                key = live_key(self._job.id, self._token, self._num_sent)
                async for chunk in self._artifacts.read(key):
                    yield chunk
                self._num_sent += 1
