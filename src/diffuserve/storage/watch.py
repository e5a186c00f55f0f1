"""The watch of the artifact store: while it is unavailable, one task retries for all that need it."""

import asyncio
import logging
import time
from collections.abc import Callable

from diffuserve.domain.errors import ArtifactNotFound, ServerUnavailable, StorageAway
from diffuserve.storage.base import ArtifactStore
from diffuserve.storage.probe import probe
from diffuserve.telemetry.outage_log import OutageLog, each_minute

_LOOK_SECONDS = 5.0
_LONGEST_LOOK_SECONDS = 10.0
_WRITE_EVERY_SECONDS = 300.0  # where buckets keep versions each write stays
_NO_FILE = "probe/none"
_RETRY_SECONDS = 5.0
_MEANWHILE = "no job finishes until this works, and their results wait"


class StorageWatch:
    """Monitors the artifact store while `run` runs.

    A check reads a file that does not exist, which shows whether the store is unavailable, gone or forbidden.
    Every few minutes, and while the store is unavailable, a tiny file is stored as well.
    """

    def __init__(self, store: ArtifactStore, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives the time in tests."""
        self._store, self._clock = store, clock
        self._wrote_at = clock()
        self._outage = OutageLog(store.place, clock, each_minute, meanwhile=_MEANWHILE, level=logging.ERROR)

    @property
    def is_up(self) -> bool:
        """False from the first look that failed to the first one that did not."""
        return not self._outage.is_on

    def check(self) -> None:
        """Raise `StorageAway` while the store is away; why is for the log alone, since it names places."""
        if self._outage.is_on:
            seconds = self._outage.seconds
            message = f"the artifact store is away since {seconds:.0f} s; the control plane's log says why"
            raise StorageAway(message, retry_after=_RETRY_SECONDS)

    async def run(self) -> None:
        """Check forever."""
        while True:
            await self.look()
            await asyncio.sleep(_LOOK_SECONDS)

    async def look(self) -> None:
        """Check the store, log a change of its state, and log once a minute that it is still unavailable."""
        try:
            async with asyncio.timeout(_LONGEST_LOOK_SECONDS):
                await self._try()
        except TimeoutError:
            self._outage.failed(f"{self._store.place} does not respond within {_LONGEST_LOOK_SECONDS:g} s")
        except ServerUnavailable as error:
            self._outage.failed(str(error))
        else:
            self._outage.succeeded()

    async def _try(self) -> None:
        if self.is_up and self._clock() - self._wrote_at < _WRITE_EVERY_SECONDS:
            await _read_nothing(self._store)
        else:
            await probe(self._store)
            self._wrote_at = self._clock()


async def _read_nothing(store: ArtifactStore) -> None:
    try:
        async for _ in store.read(_NO_FILE):
            return
    except ArtifactNotFound:
        return
