"""Client for the workers' routes of the control plane."""

import asyncio
import base64
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import orjson

from diffuserve.client.codec import decode
from diffuserve.client.http import HttpTransport, RequestOptions
from diffuserve.client.input_files import InputDownloads
from diffuserve.domain.errors import ServerRefused, ServerUnavailable, UploadFailed, WorkerNotFound
from diffuserve.domain.jobs.checkpoint import StoredCheckpoint
from diffuserve.domain.jobs.claim import Claim
from diffuserve.domain.jobs.progress_report import ProgressReport, WatchedReports, WorkerProgress
from diffuserve.domain.resources.scale import LeavingResource
from diffuserve.domain.workers.peers import PeerAdvice
from diffuserve.domain.workers.worker import (
    ClaimedLeases,
    Completion,
    ControlCommands,
    Failure,
    HandOver,
    Heartbeat,
    Lease,
    LeaseOutcome,
    ModelOffer,
    ReceivedCommands,
    Registered,
    Registration,
    Release,
    StoredFile,
    UploadUrl,
)
from diffuserve.storage.base import content_type_of

log = logging.getLogger(__name__)

_BUCKET_PATIENCE_SECONDS = 10.0  # per upload URL; then the control plane is asked for another
_BUCKET_OUTAGE_SECONDS = 600.0  # if only this worker is affected; then another one takes the job
_MAX_REFUSALS = 3  # refusals of one file
_UPLOAD_PAUSE = 1.0  # before the next upload URL is requested
_LIVE_PATIENCE_SECONDS = 10.0  # for a part of a live clip, which is useless if it is late
_DRAIN_PATIENCE_SECONDS = 2.0
_UNKNOWN_WORKER = "/v1/workers/worker_unknown/control"
_JSON = {"content-type": "application/json"}


class LeaseClient:
    """Sends a worker's requests. Each raises `ServerUnavailable` when the transport's patience ends."""

    def __init__(self, transport: HttpTransport) -> None:
        self._transport = transport
        self._asks_for_upload_urls = False
        self.max_inline_bytes = 0

    async def close(self) -> None:
        """Close every connection."""
        await self._transport.close()

    async def check(self) -> None:
        """Raise unless the server is a control plane that accepts this worker's key.

        `ServerUnavailable` says that it cannot be asked now.
        """
        options = RequestOptions(params={"wait": 0}, patience_seconds=0.0)
        try:
            response = await self._transport.request("GET", _UNKNOWN_WORKER, options)
        except WorkerNotFound:
            return  # the key was accepted before the id was looked up
        except ServerRefused as error:
            raise ServerRefused(f"no diffuserve server: {error}") from error
        target = response.headers.get("location")
        found = f"redirects to {target}" if target else f"responded with {response.status_code}"
        raise ServerRefused(f"no diffuserve server: {self._transport.server} {found}")

    async def register(self, registration: Registration) -> Registered:
        """Register a worker and return its id."""
        registered = decode(Registered, await self._post("/v1/workers", registration))
        self._asks_for_upload_urls = registered.asks_for_upload_urls
        self.max_inline_bytes = registered.max_inline_bytes
        return registered

    async def claim(self, worker_id: str, claim: Claim, wait: float) -> list[Lease]:
        """Return leases, after up to `wait` seconds `[]`. A retry gets the leases of the first attempt."""
        path = f"/v1/workers/{worker_id}/claim"
        content = await self._post(path, claim, params={"wait": wait}, wait_seconds=wait)
        return list(decode(ClaimedLeases, content).leases)

    async def heartbeat(
        self, worker_id: str, heartbeat: Heartbeat, patience_seconds: float
    ) -> ControlCommands:
        """Renew the leases held, and return the control commands. Raise `WorkerNotFound`."""
        path = f"/v1/workers/{worker_id}/heartbeat"
        return decode(ControlCommands, await self._post(path, heartbeat, patience_seconds=patience_seconds))

    async def control(self, worker_id: str, wait: float, received: ReceivedCommands) -> ControlCommands:
        """Return commands beyond those that were received, after up to `wait` seconds none."""
        params = {
            "wait": wait,
            "known": ",".join(received.cancel),
            "putting_down": ",".join(received.preempt or ()),
            "draining": str(received.drain).lower(),
        }
        options = RequestOptions(params=params, wait_seconds=wait)
        response = await self._transport.request("GET", f"/v1/workers/{worker_id}/control", options)
        return decode(ControlCommands, response.content)

    async def peers(self, worker_id: str, model: str) -> PeerAdvice:
        """Return the peers in a model, by its hash, and the worker's share; ask once."""
        options = RequestOptions(params={"model": model}, patience_seconds=0.0)
        response = await self._transport.request("GET", f"/v1/workers/{worker_id}/peers", options)
        return decode(PeerAdvice, response.content)

    async def drain(self, worker_id: str) -> None:
        """Announce that the worker takes no more jobs."""
        path = f"/v1/workers/{worker_id}/drain"
        await self._post(path, {}, patience_seconds=_DRAIN_PATIENCE_SECONDS)

    async def leave(self, worker_id: str, least: int = 0) -> bool:
        """Ask whether the worker, which is idle, may leave; if so it gets no more jobs.

        At least `least` workers of its model stay.
        """
        path = f"/v1/workers/{worker_id}/leave"
        params = {"least": least}
        content = await self._post(path, {}, params=params, patience_seconds=_DRAIN_PATIENCE_SECONDS)
        return decode(LeavingResource, content).leaves

    async def offer_more(self, worker_id: str, offer: ModelOffer) -> None:
        """Offer another model beside those that the worker registered with. Raise `ModelConflict`."""
        await self._post(f"/v1/workers/{worker_id}/models", {"models": [offer]})

    async def deregister(self, worker_id: str) -> None:
        """Have the control plane forget the worker, which ends."""
        await self._transport.request("DELETE", f"/v1/workers/{worker_id}")

    async def report(self, job_id: str, report: ProgressReport) -> None:
        """Send progress once, without retries: the next report replaces it. Raise `LeaseLost`."""
        await self._post(f"/v1/leases/{job_id}/events", report, patience_seconds=0.0)

    async def report_all(self, worker_id: str, progress: WorkerProgress) -> tuple[str, ...]:
        """Send progress of several jobs once, without retries; return those that somebody watches.

        What is of a lost lease has no effect. A control plane of an earlier version does not say who watches:
        then all jobs count as watched.
        """
        content = await self._post(f"/v1/workers/{worker_id}/progress", progress, patience_seconds=0.0)
        if not content:
            return tuple(advanced.job_id for advanced in progress.jobs)
        return decode(WatchedReports, content).watched

    @property
    def is_storage_away(self) -> bool:
        """True while the artifact store does not take or give files."""
        return self._transport.storage.is_on

    async def upload(self, job_id: str, lease_token: int, name: str, read: Callable[[], bytes]) -> StoredFile:
        """Upload a file, whose content `read` returns, to the control plane or to its bucket.

        While the control plane says that the bucket is away it is waited for, and meanwhile nothing is read.
        Raise `LeaseLost`, `TooLarge`, and `UploadFailed` if the bucket refuses the file, or stays away for
        this worker alone.
        """
        return await self._store(f"/v1/leases/{job_id}/files/{quote(name)}", lease_token, name, read)

    async def keep_checkpoint(
        self, job_id: str, lease_token: int, slot: int, step: int, content: bytes
    ) -> None:
        """Upload a job's checkpoint and report it. Raise as `upload` does, and `UploadMissing`."""
        path = f"/v1/leases/{job_id}/checkpoint"
        file = await self._store(f"{path}/{slot}", lease_token, f"{slot}.safetensors", lambda: content)
        report = StoredCheckpoint(
            lease_token=lease_token, slot=slot, step=step, size_bytes=file.size_bytes, sha256=file.sha256
        )
        await self._post(path, report)

    async def _store(self, path: str, lease_token: int, name: str, read: Callable[[], bytes]) -> StoredFile:
        """Upload a file to `path`, or to the bucket whose URL that names."""
        token = {"lease-token": str(lease_token)}
        patience = _BucketPatience(name)
        while True:
            url = await self._upload_url(path, token)
            if url is None:
                options = RequestOptions(content=read(), headers=token)
                stored = await self._transport.request("PUT", path, options)
                return decode(StoredFile, stored.content)
            began = asyncio.get_running_loop().time()
            try:
                return await self._upload_to_bucket(url, name, read())
            except (ServerUnavailable, ServerRefused) as error:
                self._note_bucket(path, error)
                await asyncio.sleep(_UPLOAD_PAUSE)
                patience.tolerate(error, asyncio.get_running_loop().time() - began)

    def _note_bucket(self, path: str, error: ServerUnavailable | ServerRefused) -> None:
        if isinstance(error, ServerUnavailable):
            self._transport.storage.failed(str(error))
        else:
            log.warning("uploading to %s again after: %s", path, error)

    async def put_live_part(self, job_id: str, lease_token: int, number: int, content: bytes) -> None:
        """Store a part of a clip that is being drawn. Raise `LeaseLost`."""
        path = f"/v1/leases/{job_id}/live/{number}"
        await self._transport.request("PUT", path, _live_options(lease_token, content=content))

    async def drop_live_parts(self, job_id: str, lease_token: int) -> None:
        """Delete the parts of a clip. Raise `LeaseLost`."""
        path = f"/v1/leases/{job_id}/live"
        await self._transport.request("DELETE", path, _live_options(lease_token))

    async def fetch_inputs(
        self, job_id: str, lease_token: int, file_ids: Sequence[str], folder: Path
    ) -> dict[str, Path]:
        """Download files that a job reads into `folder`, and return their paths by their ids.

        Raise `LeaseLost`, `NotFound` for a file that is gone, and `DownloadFailed`.
        """
        return await InputDownloads(self._transport, job_id, lease_token).fetch(file_ids, folder)

    async def complete(self, job_id: str, completion: Completion) -> LeaseOutcome:
        """Complete a job. Raise `LeaseLost`, and `UploadMissing` if files must be uploaded again."""
        return await self._end(f"/v1/leases/{job_id}/complete", completion)

    async def hand_over(self, job_id: str, report: HandOver) -> LeaseOutcome:
        """Report finished latents. Raise `LeaseLost`, and `UploadMissing` if they must be uploaded again."""
        return await self._end(f"/v1/leases/{job_id}/hand-over", report)

    async def _end(self, path: str, report: Completion | HandOver) -> LeaseOutcome:
        """Report what is stored, which the control plane looks for in the store."""
        outcome = decode(LeaseOutcome, await self._post(path, report))
        self._transport.storage.succeeded()
        return outcome

    async def fail(self, job_id: str, failure: Failure) -> LeaseOutcome:
        """Report a failed attempt. Raise `LeaseLost`."""
        return decode(LeaseOutcome, await self._post(f"/v1/leases/{job_id}/fail", failure))

    async def release(
        self, job_id: str, release: Release, patience_seconds: float | None = None
    ) -> LeaseOutcome:
        """Return a job to the queue. Raise `LeaseLost`."""
        path = f"/v1/leases/{job_id}/release"
        return decode(LeaseOutcome, await self._post(path, release, patience_seconds=patience_seconds))

    async def _upload_url(self, path: str, token: Mapping[str, str]) -> str | None:
        if not self._asks_for_upload_urls:
            return None
        options = RequestOptions(headers=token)
        response = await self._transport.request("POST", f"{path}/upload-url", options)
        return decode(UploadUrl, response.content).url

    async def _upload_to_bucket(self, url: str, name: str, content: bytes) -> StoredFile:
        headers = {
            "content-type": content_type_of(name),
            "content-md5": base64.b64encode(hashlib.md5(content, usedforsecurity=False).digest()).decode(),
        }
        await self._transport.put_external(url, content, headers, _BUCKET_PATIENCE_SECONDS)
        self._transport.storage.succeeded()
        return StoredFile(name=name, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())

    async def _post(self, path: str, body: object, **options: Any) -> bytes:
        request = RequestOptions(content=orjson.dumps(body), headers=_JSON, **options)
        return (await self._transport.request("POST", path, request)).content


def _live_options(lease_token: int, content: bytes | None = None) -> RequestOptions:
    headers = {"lease-token": str(lease_token)}
    return RequestOptions(content=content, headers=headers, patience_seconds=_LIVE_PATIENCE_SECONDS)


class _BucketPatience:
    """Says how long a bucket is tried that does not accept a file.

    Time in which the control plane has the worker wait, since the bucket is away for all, does not count.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._num_refusals = 0
        self._seconds = 0.0

    def tolerate(self, error: ServerUnavailable | ServerRefused, seconds: float) -> None:
        """Note a failure, and how long it took. Raise `UploadFailed` after too many refusals, or too long."""
        self._num_refusals += isinstance(error, ServerRefused)
        self._seconds += seconds
        if self._num_refusals >= _MAX_REFUSALS or self._seconds >= _BUCKET_OUTAGE_SECONDS:
            raise UploadFailed(f"{self._name} could not be uploaded: {error}") from error
