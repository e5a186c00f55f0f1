"""Downloads of the files that leased jobs read."""

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import httpx

from diffuserve.backoff import Backoff
from diffuserve.client.codec import decode
from diffuserve.client.http import HttpTransport, RequestOptions
from diffuserve.domain.errors import (
    DiffuserveError,
    DownloadFailed,
    FileNotKnown,
    LatentsUnusable,
    NotFound,
    ServerRefused,
    ServerUnavailable,
)
from diffuserve.domain.jobs.checkpoint import CHECKPOINT_ID
from diffuserve.domain.workers.worker import LATENTS_ID, LeasedFile, LeasedFiles
from diffuserve.telemetry.log_fields import once_a_minute

log = logging.getLogger(__name__)

_BEGUN = (LATENTS_ID, CHECKPOINT_ID)  # ids with routes of their own
_BACKOFF = Backoff(first_seconds=0.5, longest_seconds=15.0, jitter=0.5)
# Limit for one file of a store that only this worker cannot reach; then another attempt takes the job.
_PATIENCE_SECONDS = 600.0
_MAX_REFUSALS = 3  # refusals of one file, each with a new URL


@dataclass(frozen=True)
class InputDownloads:
    """Downloads the files of one lease, from the control plane or from the bucket that it names."""

    transport: HttpTransport
    job_id: str
    lease_token: int

    async def fetch(self, file_ids: Sequence[str], folder: Path) -> dict[str, Path]:
        """Write the files into `folder`, and return their paths by their ids.

        Raise `LeaseLost`, `NotFound` for a file that is gone, `DownloadFailed`, and `LatentsUnusable` for
        finished latents that are gone or are not those that were stored.
        """
        files = await self._files()
        paths = {file_id: folder / f"input-{number}" for number, file_id in enumerate(file_ids)}
        for file_id, path in paths.items():
            await self._fetch_one(files, file_id, path)
        return paths

    async def _fetch_one(self, files: Sequence[LeasedFile], file_id: str, path: Path) -> None:
        try:
            await self._patiently(_file_of(files, file_id), path)
        except NotFound as error:
            raise (_unusable(error) if file_id == LATENTS_ID else error) from error

    async def _patiently(self, file: LeasedFile, path: Path) -> None:
        """Download a file; where that may help, again with a new URL.

        A store that is away for all is waited for, since the control plane gives no URL meanwhile.
        """
        patience, found = _Patience(), file
        while True:
            began = asyncio.get_running_loop().time()
            try:
                await self._download(found, path)
            except (ServerUnavailable, ServerRefused) as error:
                self._note(file, error)
                pause = patience.pause(error, asyncio.get_running_loop().time() - began)
                if pause is None:
                    raise _failure(file, error) from error
                await asyncio.sleep(pause)
            else:
                self.transport.storage.succeeded()
                return
            found = _file_of(await self._files(), file.id)

    def _note(self, file: LeasedFile, error: ServerUnavailable | ServerRefused) -> None:
        if isinstance(error, ServerUnavailable):
            self.transport.storage.failed(str(error))
        log.warning("job %s: %s did not arrive: %s", self.job_id, file.id, error, extra=once_a_minute())

    async def _files(self) -> tuple[LeasedFile, ...]:
        """Return what the job reads, and from where."""
        path = f"/v1/leases/{self.job_id}/inputs"
        response = await self.transport.request("GET", path, RequestOptions(headers=self._token))
        return decode(LeasedFiles, response.content).files

    async def _download(self, file: LeasedFile, path: Path) -> None:
        """Write the file. Raise `ServerRefused` if it is not what was announced."""
        digest, size = hashlib.sha256(), 0
        async with self._open(file) as response:
            with path.open("wb") as out:
                async for chunk in response.aiter_bytes():
                    size += len(chunk)
                    if size > file.size_bytes:
                        break
                    digest.update(chunk)
                    out.write(chunk)
        if size != file.size_bytes or digest.hexdigest() != file.sha256:
            raise ServerRefused(f"it is not the file of {file.size_bytes:,} bytes that was uploaded")

    def _open(self, file: LeasedFile) -> AbstractAsyncContextManager[httpx.Response]:
        if file.url is not None:
            return self.transport.stream_external(file.url)
        path = file.id if file.id in _BEGUN else f"inputs/{quote(file.id)}"
        return self.transport.stream(f"/v1/leases/{self.job_id}/{path}", self._token)

    @property
    def _token(self) -> dict[str, str]:
        return {"lease-token": str(self.lease_token)}


def _failure(file: LeasedFile, error: ServerUnavailable | ServerRefused) -> DiffuserveError:
    if file.id == LATENTS_ID and isinstance(error, ServerRefused):
        return _unusable(error)
    return DownloadFailed(f"{file.id} could not be fetched: {error}")


def _unusable(error: Exception) -> LatentsUnusable:
    return LatentsUnusable(f"the finished latents are not to be had: {error}")


def _file_of(files: Sequence[LeasedFile], file_id: str) -> LeasedFile:
    for file in files:
        if file.id == file_id:
            return file
    raise FileNotKnown(f"file {file_id} was deleted or has expired; upload it again")


@dataclass
class _Patience:
    """Says whether a file is tried once more."""

    num_refusals: int = 0
    num_failures: int = 0
    seconds: float = 0.0

    def pause(self, error: ServerUnavailable | ServerRefused, seconds: float) -> float | None:
        """Return the pause before the next try, `None` if there is to be none. One try took `seconds`."""
        self.num_failures += 1
        self.num_refusals += isinstance(error, ServerRefused)
        pause = _BACKOFF.jittered(_BACKOFF.pause_seconds(self.num_failures))
        pause = max(pause, getattr(error, "retry_after", 0.0))
        self.seconds += seconds + pause
        is_over = self.num_refusals >= _MAX_REFUSALS or self.seconds > _PATIENCE_SECONDS
        return None if is_over else pause
