"""Files of finished jobs: their responses, and their deletion."""

from contextlib import suppress
from dataclasses import dataclass

from fastapi import Response
from fastapi.responses import RedirectResponse
from starlette.background import BackgroundTask

from diffuserve.api.auth.access import Caller
from diffuserve.api.files.serving import PartRequest, StoredContent, serve
from diffuserve.api.files.urls import FileUrls
from diffuserve.domain.errors import ServerUnavailable
from diffuserve.domain.jobs.job import Artifact, Job
from diffuserve.jobs.store import JobStore
from diffuserve.storage.base import ArtifactStore


@dataclass(frozen=True)
class JobFiles:
    """Files of finished jobs, as clients fetch and delete them."""

    store: JobStore
    artifacts: ArtifactStore
    file_urls: FileUrls

    async def response(self, job: Job, artifact: Artifact, part: PartRequest) -> Response:
        """Build the response with a file of a finished job, or that redirects to where it is stored.

        With it the job is delivered.
        """
        response = await self._response(job, artifact, part)
        return delivering(self.store, job.id, response) if job.forget_delivered else response

    async def _response(self, job: Job, artifact: Artifact, part: PartRequest) -> Response:
        external_url = await self.file_urls.external_url(job.id, job.lease_token, artifact.name)
        if external_url is not None:
            return RedirectResponse(external_url)
        content = content_of(job.id, job.lease_token, artifact.name, artifact.sha256)
        return await serve(self.artifacts, content, part)

    async def content(self, job: Job, artifact: Artifact) -> bytes:
        """Return a file of a finished job."""
        key = content_of(job.id, job.lease_token, artifact.name, artifact.sha256).key
        return b"".join([chunk async for chunk in self.artifacts.read(key)])

    async def delete(self, job: Job, caller: Caller) -> None:
        """Delete a job with its files. One that is not final is canceled first, and deleted once it is."""
        await self.store.jobs.delete(job.id, caller.scope)
        if job.status.is_final:
            await self.artifacts.delete(job.id)


def delivering(store: JobStore, job_id: str, response: Response) -> Response:
    """Return the response, after whose last byte the job is delivered."""
    response.background = BackgroundTask(note_delivered, store, job_id)
    return response


async def note_delivered(store: JobStore, job_id: str) -> None:
    """Delete the job soon, if it is not to be stored."""
    with suppress(ServerUnavailable):  # then the job is deleted as one that nobody fetched
        await store.jobs.note_delivered(job_id)


def content_of(job_id: str, lease_token: int, name: str, sha256: str) -> StoredContent:
    """Return the key of a job's file in the store, with its name."""
    return StoredContent(f"{job_id}/{lease_token}/{name}", f"{job_id}-{name}", sha256)
