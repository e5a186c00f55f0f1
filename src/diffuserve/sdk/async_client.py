"""The asynchronous client of a server, over HTTP."""

import asyncio
import os
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack
from urllib.parse import quote

import httpx
from httpx_sse import EventSource, SSEError

from diffuserve.backoff import jitter
from diffuserve.client.batches import BatchClient
from diffuserve.client.codec import decode
from diffuserve.client.files import FileClient, with_uploads
from diffuserve.client.http import NO_OPTIONS, HttpTransport, RequestOptions, pause_before_retry
from diffuserve.client.ids import checked_id
from diffuserve.client.patience import at_most
from diffuserve.client.webhooks import WebhookClient
from diffuserve.domain.errors import DiffuserveError, ServerUnavailable
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.resources.estimate import EstimateResource
from diffuserve.domain.resources.job import ArtifactResource, EventResource, JobPage, JobResource
from diffuserve.domain.resources.model import ModelList, ModelResource
from diffuserve.domain.resources.operations import OperationsResource
from diffuserve.domain.resources.scale import ScaleResource
from diffuserve.domain.resources.usage import UsageField, UsageResource
from diffuserve.domain.resources.worker import WorkerList, WorkerResource
from diffuserve.sdk.generated_file import GeneratedFile, error_of_job
from diffuserve.sdk.job_fields import JobFields
from diffuserve.sdk.new_job import job_body

PATIENCE_SECONDS = 30.0
_LONG_POLL_SECONDS = 25.0  # below the usual limits of proxies
_CANCEL_SECONDS = 5.0  # a call that is given up ends soon, whether or not the server is there


@dataclass(frozen=True, kw_only=True)
class JobFilters:
    """Filters of jobs, by the names of the API; what is left out matches every job.

    `query` are words that all occur in the prompt, and `prompt_of` is a job that has the same prompt.
    """

    model: str | None = None
    kind: str | None = None
    query: str | None = None
    batch_id: str | None = None
    prompt_of: str | None = None


NO_FILTERS = JobFilters()


class AsyncClient:
    """Submits jobs to a server, follows them and fetches their images. Use it as an async context manager.

    Requests to a server that is unavailable, or asks to wait, are retried for `patience_seconds`; then the
    error is raised. Each method may raise `ServerUnavailable`, `Unauthorized` or `RateLimited`.
    """

    def __init__(
        self,
        server: str | None = None,
        api_key: str | None = None,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Connect to `DIFFUSERVE_SERVER` with the key `DIFFUSERVE_API_KEY`, unless others are given."""
        from diffuserve.settings import Settings  # here: it takes as long to import as all of this client

        own = Settings.with_options(server=server, api_key=api_key)
        self._http = HttpTransport(
            own.server, own.api_key, patience_seconds=patience_seconds, transport=transport
        )
        self.batches = BatchClient(self._http)
        self.files = FileClient(self._http)
        self.webhooks = WebhookClient(self._http)

    @property
    def server(self) -> str:
        """Base URL of the server, without a final slash."""
        return self._http.server

    async def close(self) -> None:
        """Close every connection."""
        await self._http.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def generate(
        self,
        /,
        prompt: str | GenerationParams,
        *,
        max_seconds: float | None = None,
        idempotency_key: str | None = None,
        **fields: Unpack[JobFields],
    ) -> list[GeneratedFile]:
        """Submit a job as `submit` does, wait for it, and return its images, clips or sounds.

        Raise the job's error if it fails, `JobNotDone` for one of no class, and `TimeoutError` after
        `max_seconds`, which cancels the job. So does whatever cancels the call.
        """
        submission = asyncio.ensure_future(self.submit(prompt, idempotency_key=idempotency_key, **fields))
        try:
            job = await asyncio.shield(submission)
            return await self.fetch(await self.wait(job.id, max_seconds))
        except TimeoutError as error:
            is_canceled = await self._give_up(submission)
            raise TimeoutError(f"{error}; it {'was' if is_canceled else 'could not be'} canceled") from None
        except asyncio.CancelledError:
            await asyncio.shield(self._give_up(submission))
            raise

    async def submit(
        self,
        /,
        prompt: str | GenerationParams,
        *,
        idempotency_key: str | None = None,
        **fields: Unpack[JobFields],
    ) -> JobResource:
        """Submit a job, which the server does once, whether or not anybody waits for it.

        `fields` are those of a request (`seed`, `width` …) and of a job (`model`, `kind`, `priority`,
        `metadata` …); an image as a `Path`, as bytes or as a file open for reading bytes is uploaded first.
        Every submission has an idempotency key, so a retry whose first response got lost makes no second job;
        a key of your own makes it one job for a day.
        Raise `InvalidParams`, which names the field, and `PromptBlocked`.
        """
        body = job_body(prompt, await with_uploads(self.files, fields))
        headers = {"idempotency-key": idempotency_key or secrets.token_hex(16)}
        return await self._job("POST", "/v1/jobs", RequestOptions(json=body, headers=headers))

    async def subscribe(
        self,
        /,
        prompt: str | GenerationParams,
        *,
        idempotency_key: str | None = None,
        **fields: Unpack[JobFields],
    ) -> AsyncGenerator[EventResource]:
        """Submit a job as `submit` does, and yield its events until it is final, as `stream` does."""
        job = await self.submit(prompt, idempotency_key=idempotency_key, **fields)
        async with aclosing(self.stream(job.id)) as events:
            async for event in events:
                yield event

    async def estimate(
        self, /, prompt: str | GenerationParams, **fields: Unpack[JobFields]
    ) -> EstimateResource:
        """Check a job, given as `submit` takes it, and predict its cost without submitting it."""
        body = job_body(prompt, await with_uploads(self.files, fields))
        response = await self._http.request("POST", "/v1/jobs/estimate", RequestOptions(json=body))
        return decode(EstimateResource, response.content)

    async def get(self, job_id: str) -> JobResource:
        """Return the job. Raise `JobNotFound`."""
        return await self._job("GET", f"/v1/jobs/{checked_id(job_id)}")

    async def list_jobs(
        self,
        statuses: Sequence[JobStatus] = (),
        *,
        filters: JobFilters = NO_FILTERS,
        after: str | None = None,
        limit: int = 50,
    ) -> JobPage:
        """Return a page of jobs, newest first; `after` is the `next` of the previous page.

        With statuses or filters it may hold fewer jobs than `limit`, though more match.
        """
        given = {"after": after, **asdict(filters)}
        params = {name: value for name, value in given.items() if value}
        options = RequestOptions(params={"limit": limit, "status": list(statuses), **params})
        response = await self._http.request("GET", "/v1/jobs", options)
        return decode(JobPage, response.content)

    async def find_jobs(
        self, statuses: Sequence[JobStatus] = (), *, filters: JobFilters = NO_FILTERS, limit: int = 50
    ) -> JobPage:
        """Return the newest `limit` jobs that match, page by page, until there are as many or no more."""
        found: list[JobResource] = []
        after: str | None = None
        while True:
            page = await self.list_jobs(statuses, filters=filters, after=after, limit=limit - len(found))
            found += page.data
            if len(found) >= limit or page.next is None:
                return JobPage(data=tuple(found), has_more=page.has_more, next=page.next)
            after = page.next

    async def cancel(self, job_id: str) -> JobResource:
        """Cancel a queued job at once; a running one becomes `canceling`, and a final one is unchanged."""
        return await self._job("POST", f"/v1/jobs/{checked_id(job_id)}/cancel")

    async def delete(self, job_id: str) -> None:
        """Delete a job that has ended and its files. Raise `JobNotFound` or `Conflict`."""
        await self._http.request("DELETE", f"/v1/jobs/{checked_id(job_id)}")

    async def requeue(self, job_id: str) -> JobResource:
        """Queue a job that failed, expired or was canceled again; for operators. Raise `Conflict`."""
        return await self._job("POST", f"/v1/jobs/{checked_id(job_id)}/requeue")

    async def models(self) -> Sequence[ModelResource]:
        """Return the served models."""
        return decode(ModelList, (await self._http.request("GET", "/v1/models")).content).data

    async def workers(self) -> Sequence[WorkerResource]:
        """Return the workers, for operators. Raise `Forbidden`."""
        return decode(WorkerList, (await self._http.request("GET", "/v1/workers")).content).data

    async def drain_worker(self, worker_id: str) -> None:
        """Have a worker finish its jobs and end, for operators. Raise `Forbidden` or `WorkerNotFound`."""
        await self._http.request("POST", f"/v1/workers/{checked_id(worker_id)}/drain")

    async def pool_size(self, model: str, *, is_spot: bool = False) -> ScaleResource:
        """Return how many workers a model should have, for monitors and operators.

        With `is_spot` it is the number of those on spot machines, beside those on demand that there are.
        Raise `Forbidden`, or `ModelNotFound` for a model that nobody has offered and that has no floor.
        """
        options = RequestOptions(params={"kind": "spot" if is_spot else "all"})
        response = await self._http.request("GET", f"/internal/v1/scale/{quote(model)}", options)
        return decode(ScaleResource, response.content)

    async def operations(self) -> OperationsResource:
        """Return what the server does now, for operators. Raise `Forbidden`."""
        return decode(OperationsResource, (await self._http.request("GET", "/v1/operations")).content)

    async def usage(
        self, since: str | None = None, until: str | None = None, group_by: Sequence[UsageField] = ()
    ) -> UsageResource:
        """Return the use of the devices between two days, as `YYYY-MM-DD`, by default the last month's."""
        given = {"since": since, "until": until, "group_by": list(group_by)}
        options = RequestOptions(params={name: value for name, value in given.items() if value})
        return decode(UsageResource, (await self._http.request("GET", "/v1/usage", options)).content)

    async def server_time(self) -> float:
        """Return the server's clock, in whole seconds since the epoch."""
        response = await self._http.request("GET", "/healthz")
        return parsedate_to_datetime(response.headers["date"]).timestamp()

    async def check_ready(self) -> None:
        """Raise `ServerUnavailable`, which says why, unless a worker takes jobs."""
        await self._http.request("GET", "/readyz", RequestOptions(patience_seconds=0.0))

    async def is_ready(self) -> bool:
        """Return whether a worker has registered."""
        try:
            await self.check_ready()
        except ServerUnavailable:
            return False
        return True

    async def wait(self, job_id: str, max_seconds: float | None = None) -> JobResource:
        """Return the job once it is final. Raise `TimeoutError` after `max_seconds`; the job goes on."""
        options = RequestOptions(params={"wait": _LONG_POLL_SECONDS}, wait_seconds=_LONG_POLL_SECONDS)
        async with at_most(max_seconds, job_id):
            while True:
                job = await self._job("GET", f"/v1/jobs/{checked_id(job_id)}", options)
                if job.status.is_final:
                    return job

    async def stream(self, job_id: str, after: int = 0) -> AsyncGenerator[EventResource]:
        """Yield the job's events with a `seq` above `after`, and live ones, until it is final.

        A broken connection is resumed after the last event received.
        """
        last_heard = time.monotonic()
        while True:
            try:
                async with aclosing(self._stream_events(job_id, after)) as stream:
                    async for event in stream:
                        last_heard = time.monotonic()
                        if event is None:
                            continue
                        after = event.seq or after
                        yield event
                        if event.is_final:
                            return
            except DiffuserveError as error:
                pause = pause_before_retry(error)
                if pause is None or time.monotonic() + pause - last_heard > self._http.patience_seconds:
                    raise
            else:
                pause = 0.0  # the server ended the stream
            await asyncio.sleep(max(pause, jitter(0.2, 0.6)))

    async def fetch(self, job: JobResource) -> list[GeneratedFile]:
        """Return the images, clips or sounds of a job that has ended. Raise its error if it failed."""
        if job.result is None:
            raise error_of_job(job)
        return [await self._fetch(job, artifact) for artifact in job.result.outputs]

    async def download(self, job_id: str, index: int, path: str | Path) -> None:
        """Write image or clip `index` of a job that succeeded to `path`; after an error there is no file."""
        path = Path(path)
        partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")

        async def write() -> None:
            with partial.open("wb") as file:
                async with aclosing(self._content(job_id, index)) as chunks:
                    async for chunk in chunks:
                        file.write(chunk)

        try:
            await self._http.retried(write)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)

    async def _give_up(self, submission: asyncio.Future[JobResource]) -> bool:
        """Cancel the job that a submission has made or still makes, and return whether that succeeded."""
        with suppress(DiffuserveError, OSError):
            async with asyncio.timeout(_CANCEL_SECONDS):
                await self.cancel((await submission).id)
                return True
        return False

    async def _fetch(self, job: JobResource, artifact: ArtifactResource) -> GeneratedFile:
        async def read() -> bytes:
            content = bytearray()
            async with aclosing(self._content(job.id, artifact.index)) as chunks:
                async for chunk in chunks:
                    content += chunk
                    if len(content) > artifact.size_bytes:
                        break  # it is not the file, whatever follows
            return bytes(content)

        return GeneratedFile(artifact, await self._http.retried(read), job)

    async def _content(self, job_id: str, index: int) -> AsyncGenerator[bytes]:
        async with self._http.stream(f"/v1/jobs/{checked_id(job_id)}/result?index={index}") as response:
            async for chunk in response.aiter_bytes():
                yield chunk

    async def _job(self, method: str, path: str, options: RequestOptions = NO_OPTIONS) -> JobResource:
        response = await self._http.request(method, path, options)
        return decode(JobResource, response.content)

    async def _stream_events(self, job_id: str, after: int) -> AsyncGenerator[EventResource | None]:
        """Yield events, and `None` for whatever else tells that the server is there."""
        headers = {"accept": "text/event-stream", "last-event-id": str(after)}
        try:
            async with self._http.stream(f"/v1/jobs/{checked_id(job_id)}/events", headers) as response:
                yield None
                async for message in EventSource(response).aiter_sse():
                    # A ping of the server is an event without data.
                    yield decode(EventResource, message.data) if message.data else None
        except SSEError as error:
            raise ServerUnavailable(f"{self.server} does not respond ({error!r})") from error
        raise ServerUnavailable(f"{self.server} closed the stream of events")
