"""The workers' routes of the control plane."""

import asyncio
import base64
import hashlib
import logging
import time
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import quote

import orjson

from diffuserve.client.codec import decode
from diffuserve.client.http import HttpTransport
from diffuserve.domain.errors import ServerRefused, ServerUnavailable
from diffuserve.domain.worker import (
    Claim,
    ClaimedLeases,
    Completion,
    ControlCommands,
    Failure,
    Heartbeat,
    Lease,
    LeaseOutcome,
    ProgressReport,
    Registered,
    Registration,
    Release,
    StoredFile,
    UploadUrl,
)
from diffuserve.storage.base import content_type_of

log = logging.getLogger(__name__)

_UPLOAD_PATIENCE, _UPLOAD_PAUSE = 60.0, 1.0  # for one URL of a bucket; before the next is asked for
_JSON = {"content-type": "application/json"}


class LeaseClient:
    """Every method raises `ServerUnavailable` once the transport's patience is over."""

    def __init__(self, transport: HttpTransport) -> None:
        self._transport = transport
        self._asks_for_upload_urls = False

    async def close(self) -> None:
        await self._transport.close()

    async def register(self, registration: Registration) -> Registered:
        registered = decode(Registered, await self._post("/v1/workers", registration))
        self._asks_for_upload_urls = registered.asks_for_upload_urls
        return registered

    async def claim(self, worker_id: str, claim: Claim, wait: float) -> list[Lease]:
        """Waits up to `wait` seconds for work; repeated with the same claim until it is answered."""
        answer = await self._post(
            f"/v1/workers/{worker_id}/claim", claim, params={"wait": wait}, wait_seconds=wait
        )
        return list(decode(ClaimedLeases, answer).leases)

    async def heartbeat(self, worker_id: str, beat: Heartbeat, patience_seconds: float) -> ControlCommands:
        """Raises `WorkerNotFound`."""
        path = f"/v1/workers/{worker_id}/heartbeat"
        return decode(ControlCommands, await self._post(path, beat, patience_seconds=patience_seconds))

    async def control(
        self, worker_id: str, wait: float, known: Collection[str], is_draining: bool
    ) -> ControlCommands:
        """Waits up to `wait` seconds for orders beyond those that are `known`."""
        response = await self._transport.request(
            "GET",
            f"/v1/workers/{worker_id}/control",
            params={"wait": wait, "known": ",".join(known), "draining": str(is_draining).lower()},
            wait_seconds=wait,
        )
        return decode(ControlCommands, response.content)

    async def drain(self, worker_id: str) -> None:
        await self._post(f"/v1/workers/{worker_id}/drain", {}, patience_seconds=2.0)

    async def report(self, job_id: str, report: ProgressReport) -> None:
        """Not worth a second try. Raises `LeaseLost`."""
        await self._post(f"/v1/leases/{job_id}/events", report, patience_seconds=0.0)

    async def upload(self, job_id: str, lease_token: int, name: str, content: bytes) -> StoredFile:
        """To where the control plane says, which is itself or a bucket.

        Gives `name`, `size_bytes` and `sha256` as stored. Raises `LeaseLost`, `TooLarge`.
        """
        path = f"/v1/leases/{job_id}/files/{quote(name)}"
        token = {"lease-token": str(lease_token)}
        deadline = time.monotonic() + self._transport.patience_seconds
        while True:
            url = await self._upload_url(path, token)
            if url is None:
                stored = await self._transport.request("PUT", path, content=content, headers=token)
                return decode(StoredFile, stored.content)
            try:
                return await self._upload_to(url, name, content)
            except (ServerUnavailable, ServerRefused) as error:  # away, or the URL is too old by now
                if time.monotonic() > deadline:
                    raise ServerUnavailable(str(error)) from error
                log.warning("job %s: %s is uploaded again: %s", job_id, name, error)
                await asyncio.sleep(_UPLOAD_PAUSE)

    async def _upload_url(self, path: str, token: Mapping[str, str]) -> str | None:
        if not self._asks_for_upload_urls:
            return None
        answer = await self._transport.request("POST", f"{path}/upload-url", headers=token)
        return decode(UploadUrl, answer.content).url

    async def _upload_to(self, url: str, name: str, content: bytes) -> StoredFile:
        headers = {
            "content-type": content_type_of(name),
            "content-md5": base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode(),
        }
        await self._transport.put_elsewhere(url, content, headers, _UPLOAD_PATIENCE)
        return StoredFile(name=name, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())

    async def complete(self, job_id: str, completion: Completion) -> LeaseOutcome:
        """Raises `LeaseLost`, and `UploadMissing` where files must be uploaded again."""
        return decode(LeaseOutcome, await self._post(f"/v1/leases/{job_id}/complete", completion))

    async def fail(self, job_id: str, failure: Failure) -> LeaseOutcome:
        return decode(LeaseOutcome, await self._post(f"/v1/leases/{job_id}/fail", failure))

    async def release(
        self, job_id: str, release: Release, patience_seconds: float | None = None
    ) -> LeaseOutcome:
        path = f"/v1/leases/{job_id}/release"
        answer = await self._post(path, release, patience_seconds=patience_seconds)
        return decode(LeaseOutcome, answer)

    async def _post(self, path: str, body: object, **options: Any) -> bytes:
        response = await self._transport.request(
            "POST", path, content=orjson.dumps(body), headers=_JSON, **options
        )
        return response.content
