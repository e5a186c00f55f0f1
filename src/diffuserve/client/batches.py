"""Client for the batches of a server."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import aclosing
from typing import Any

import orjson

from diffuserve.client.codec import decode
from diffuserve.client.files import FileClient, with_uploads
from diffuserve.client.http import HttpTransport, RequestOptions
from diffuserve.client.ids import checked_id
from diffuserve.client.patience import at_most
from diffuserve.domain.resources.batch import BatchPage, BatchResource, BatchResult

_SUBMISSION_SECONDS = 600.0  # the server checks and judges every item before it responds
_LOOK_SECONDS = 1.0
_JSON, _JSON_LINES = "application/json", "application/jsonl"


class BatchClient:
    """Submits batches, follows them and reads their results. Every method may raise `ServerUnavailable`."""

    def __init__(self, http: HttpTransport) -> None:
        self._http = http
        self._files = FileClient(http)

    async def submit(
        self,
        /,
        items: Iterable[str | Mapping[str, Any]],
        *,
        idempotency_key: str | None = None,
        **options: str,
    ) -> BatchResource:
        """Submit a batch of prompts, or of items as the API takes them: `custom_id`, `input` …

        `options` are for all items: `model`, `priority`, `webhook_url` … Images that the program has itself
        are uploaded first, as those of a job are.
        """
        named = await with_uploads(self._files, [_item(*each) for each in enumerate(items)])
        lines = b"".join(orjson.dumps(item, option=orjson.OPT_APPEND_NEWLINE) for item in named)
        return await self._submit(lines, _JSON_LINES, options, idempotency_key)

    async def submit_lines(self, lines: bytes, options: Mapping[str, str]) -> BatchResource:
        """Submit a batch as JSON lines; `options` are the query's: `model`, `priority`, `webhook_url` …"""
        return await self._submit(lines, _JSON_LINES, options)

    async def submit_json(self, body: bytes) -> BatchResource:
        """Submit a batch as a JSON body, which holds the options too."""
        return await self._submit(body, _JSON, {})

    async def get(self, batch_id: str) -> BatchResource:
        """Return the batch. Raise `BatchNotFound`."""
        return await self._batch("GET", f"/v1/batches/{checked_id(batch_id)}")

    async def page(self, limit: int) -> BatchPage:
        """Return the newest batches."""
        options = RequestOptions(params={"limit": limit})
        return decode(BatchPage, (await self._http.request("GET", "/v1/batches", options)).content)

    async def cancel(self, batch_id: str) -> BatchResource:
        """Cancel every item, as single jobs are canceled. Raise `BatchNotFound`."""
        return await self._batch("POST", f"/v1/batches/{checked_id(batch_id)}/cancel")

    async def wait(self, batch_id: str, max_seconds: float | None = None) -> BatchResource:
        """Return the batch once every item has ended. Raise `TimeoutError` after `max_seconds`."""
        async with at_most(max_seconds, batch_id):
            while (batch := await self.get(batch_id)).finished_at is None:
                await asyncio.sleep(_LOOK_SECONDS)
            return batch

    async def results(self, batch_id: str) -> AsyncGenerator[BatchResult]:
        """Yield the result of every item that has ended, in the items' order. Raise `BatchNotFound`."""
        async with aclosing(self.result_lines(batch_id)) as lines:
            async for line in lines:
                yield decode(BatchResult, line)

    async def result_lines(self, batch_id: str) -> AsyncGenerator[str]:
        """Yield a line of JSON for every item that has ended, in the items' order. Raise `BatchNotFound`."""
        async with self._http.stream(f"/v1/batches/{checked_id(batch_id)}/results") as response:
            async for line in response.aiter_lines():
                yield line

    async def _submit(
        self, body: bytes, content_type: str, options: Mapping[str, str], idempotency_key: str | None = None
    ) -> BatchResource:
        """Submit a body under an idempotency key: what a retry repeats makes no second batch."""
        headers = {"content-type": content_type, "idempotency-key": idempotency_key or secrets.token_hex(16)}
        request = RequestOptions(
            content=body, params=options, headers=headers, wait_seconds=_SUBMISSION_SECONDS
        )
        return await self._batch("POST", "/v1/batches", request)

    async def _batch(self, method: str, path: str, options: RequestOptions | None = None) -> BatchResource:
        response = await self._http.request(method, path, options or RequestOptions())
        return decode(BatchResource, response.content)


def _item(number: int, item: str | Mapping[str, Any]) -> Mapping[str, Any]:
    return {"custom_id": f"item-{number}", "input": {"prompt": item}} if isinstance(item, str) else item
