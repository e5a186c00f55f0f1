"""Fetches the adapters of jobs to this machine's disk, by the content of their files."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from diffuserve.domain.errors import AdapterNotFound, DownloadFailed, InvalidAdapter
from diffuserve.domain.requests.adapter_use import AdapterUse
from diffuserve.modelstore.locks import PinnedFile

log = logging.getLogger(__name__)

FetchAdapter = Callable[[str], Path]
"""Returns the verified file of a digest. It may take long, and raises what `AdapterStore.fetch` does."""
_MAX_AT_ONCE, _MAX_EVICTIONS = 4, 3


def no_store(digest: str) -> Path:
    """Raise `AdapterNotFound`: there is no store."""
    raise AdapterNotFound(f"there is no store with adapter {digest}")


class AdapterFetcher:
    """Fetches a few adapters at once; jobs that wait for the same one share its download."""

    def __init__(self, fetch: FetchAdapter) -> None:
        self._fetch = fetch
        self._places = asyncio.Semaphore(_MAX_AT_ONCE)
        self._downloads: dict[str, asyncio.Task[Path]] = {}

    async def fetch(self, uses: Sequence[AdapterUse]) -> Mapping[str, PinnedFile]:
        """Return the files of a job's adapters by their digests; none is evicted while it is in use.

        Raise `AdapterNotFound`, `InvalidAdapter` for a damaged one, and `DownloadFailed`, with the name.
        """
        found = {}
        for use in uses:
            if use.digest is not None:
                found[use.digest] = await self._in_use(use.name, use.digest)
        return found

    async def _in_use(self, name: str, digest: str) -> PinnedFile:
        for _ in range(_MAX_EVICTIONS):
            with suppress(FileNotFoundError):  # evicted since it was fetched
                return PinnedFile(await self._one(name, digest))
        raise DownloadFailed(f"adapter {name!r} was evicted as often as it was fetched")

    async def _one(self, name: str, digest: str) -> Path:
        """Return a file. What is told to the job's owner names neither the store nor this machine."""
        try:
            return await asyncio.shield(self._download(digest))  # others may wait for it too
        except AdapterNotFound as error:
            log.warning("adapter %s: %s", digest, error)
            raise AdapterNotFound(f"adapter {name!r} is not stored any more") from error
        except InvalidAdapter as error:
            log.warning("adapter %s: %s", digest, error)
            raise InvalidAdapter(f"adapter {name!r} is damaged in the store") from error
        except Exception as error:
            log.warning("adapter %s cannot be fetched: %s", digest, error)
            raise DownloadFailed(f"adapter {name!r} could not be fetched ({type(error).__name__})") from error

    def _download(self, digest: str) -> "asyncio.Task[Path]":
        if digest not in self._downloads:
            task = self._downloads[digest] = asyncio.create_task(self._run(digest))
            task.add_done_callback(lambda done: self._ended(digest, done))
        return self._downloads[digest]

    async def _run(self, digest: str) -> Path:
        async with self._places:
            return await asyncio.to_thread(self._fetch, digest)

    def _ended(self, digest: str, task: "asyncio.Task[Path]") -> None:
        del self._downloads[digest]
        if not task.cancelled():
            task.exception()  # who waited has it; nobody may wait any more
