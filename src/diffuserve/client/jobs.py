"""What a person does with jobs, over HTTP."""

import asyncio
import os
import random
import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
from httpx_sse import EventSource, SSEError

from diffuserve.client.codec import decode
from diffuserve.client.http import HttpTransport, error_from
from diffuserve.domain.errors import ServerUnavailable
from diffuserve.domain.job import Band, JobStatus
from diffuserve.domain.params import GenerationParams
from diffuserve.domain.resources.job import EventResource, JobPage, JobResource
from diffuserve.domain.resources.model import ModelList, ModelResource

_LONGEST_WAIT = 25.0  # seconds that one request is held open, below the limits of usual proxies


class Client:
    """Submits jobs, follows them and fetches what they gave. Use as an async context manager.

    A server that is away is asked again for `patience_seconds`, then `ServerUnavailable` is raised.
    """

    def __init__(
        self,
        server: str,
        api_key: str | None = None,
        *,
        patience_seconds: float = 30.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = HttpTransport(server, api_key, patience_seconds=patience_seconds, transport=transport)

    @property
    def server(self) -> str:
        return self._http.server

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._http.close()

    async def submit(
        self,
        params: GenerationParams,
        *,
        model: str | None = None,
        priority: Band | None = None,
        options: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> JobResource:
        """`options` are the other fields of a submission: `expires_in`, `timeout`, `metadata`.

        Every submission carries an idempotency key, so one whose answer got lost is repeated
        without becoming two jobs.
        """
        chosen = {"model": model, "priority": priority}
        body = {
            "kind": "image.generate",
            "input": params.to_dict(),
            **{name: value for name, value in chosen.items() if value is not None},
            **(options or {}),
        }
        headers = {"idempotency-key": idempotency_key or secrets.token_hex(16)}
        answer = await self._http.request("POST", "/v1/jobs", json=body, headers=headers)
        return decode(JobResource, answer.content)

    async def get(self, job_id: str) -> JobResource:
        return decode(JobResource, (await self._http.request("GET", f"/v1/jobs/{job_id}")).content)

    async def list_jobs(
        self, statuses: Sequence[JobStatus] = (), *, after: str | None = None, limit: int = 50
    ) -> JobPage:
        """Newest first."""
        params = {"limit": limit, "status": list(statuses), **({"after": after} if after else {})}
        return decode(JobPage, (await self._http.request("GET", "/v1/jobs", params=params)).content)

    async def cancel(self, job_id: str) -> JobResource:
        """A queued job is canceled at once, a running one is `canceling`, a final one stays."""
        return decode(JobResource, (await self._http.request("POST", f"/v1/jobs/{job_id}/cancel")).content)

    async def models(self) -> Sequence[ModelResource]:
        """Return the served models."""
        return decode(ModelList, (await self._http.request("GET", "/v1/models")).content).data

    async def is_ready(self) -> bool:
        """Whether a worker has registered."""
        try:
            await self._http.request("GET", "/readyz", patience_seconds=0.0)
        except ServerUnavailable:
            return False
        return True

    async def wait(self, job_id: str, timeout: float | None = None) -> JobResource:
        """The job once it is final; raises `TimeoutError` where that takes longer."""
        async with asyncio.timeout(timeout):
            while True:
                answer = await self._http.request(
                    "GET", f"/v1/jobs/{job_id}", params={"wait": _LONGEST_WAIT}, wait_seconds=_LONGEST_WAIT
                )
                job = decode(JobResource, answer.content)
                if job.status.is_final:
                    return job

    async def events(self, job_id: str, after: int = 0) -> AsyncGenerator[EventResource]:
        """News of a job, those after `after` in its log, until it is final.

        A connection that breaks is taken up again where it ended.
        """
        last_heard = time.monotonic()
        while True:
            try:
                async with aclosing(self._stream_events(job_id, after)) as stream:
                    async for event in stream:
                        last_heard, after = time.monotonic(), event.seq or after
                        yield event
                        if event.is_final:
                            return
            except ServerUnavailable:
                if time.monotonic() - last_heard > self._http.patience_seconds:
                    raise
            await asyncio.sleep(random.uniform(0.2, 0.6))

    async def download(self, job_id: str, index: int, path: Path) -> None:
        """Fetch image `index` of a job that succeeded into `path`, whole or not at all."""
        partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
        try:
            async with self._http.stream(f"/v1/jobs/{job_id}/result?index={index}") as response:
                await _raise_for(response)
                with partial.open("wb") as file:
                    async for chunk in response.aiter_bytes():
                        file.write(chunk)
            os.replace(partial, path)
        except httpx.TransportError as error:
            raise ServerUnavailable(f"{self.server} does not answer ({error})") from error
        finally:
            partial.unlink(missing_ok=True)

    async def _stream_events(self, job_id: str, after: int) -> AsyncGenerator[EventResource]:
        headers = {"accept": "text/event-stream", "last-event-id": str(after)}
        try:
            async with self._http.stream(f"/v1/jobs/{job_id}/events", headers) as response:
                await _raise_for(response)
                async for message in EventSource(response).aiter_sse():
                    yield decode(EventResource, message.data)
        except (httpx.TransportError, SSEError) as error:
            raise ServerUnavailable(f"{self.server} does not answer ({error!r})") from error
        raise ServerUnavailable(f"{self.server} closed the stream of events")


async def _raise_for(response: httpx.Response) -> None:
    if not response.is_error:
        return
    await response.aread()
    if response.is_server_error:
        raise ServerUnavailable(f"{response.request.url} answered {response.status_code}")
    raise error_from(response)
