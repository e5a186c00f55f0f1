"""Opening the artifact store, which is tried before anything depends on it."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

from diffuserve.backoff import Backoff, retry
from diffuserve.cli.wiring.background import running
from diffuserve.domain.errors import InvalidParams, ServerUnavailable, StorageRefused
from diffuserve.private_files import make_private_folder
from diffuserve.settings import Settings
from diffuserve.storage.base import ArtifactStore
from diffuserve.storage.opening import open_artifacts
from diffuserve.storage.probe import probe

log = logging.getLogger(__name__)

_TRIALS = Backoff(first_seconds=5.0, longest_seconds=600.0)


@asynccontextmanager
async def open_storage(settings: Settings) -> AsyncIterator[ArtifactStore]:
    """Yield the artifact store of the settings, after a trial with a tiny file.

    Raise `InvalidParams` if it refuses that. A store that does not respond may come back: it is tried again
    within the block, ever more rarely, and the log tells of it.
    """
    if settings.artifacts_url is None:
        make_private_folder(settings.data_dir, settings.data_access)
    artifacts = open_artifacts(settings.files_url, settings.data_access)
    async with nullcontext() if await _responds(artifacts, settings) else running(_await_return(artifacts)):
        yield artifacts


async def _responds(artifacts: ArtifactStore, settings: Settings) -> bool:
    try:
        await probe(artifacts)
    except StorageRefused as error:
        raise InvalidParams("artifacts_url", settings.files_url, str(error)) from error
    except ServerUnavailable as error:
        log.error("%s; the server starts all the same, but no job finishes until this works", error)
        return False
    return True


async def _await_return(artifacts: ArtifactStore) -> None:
    """Try the store until it works, and log how that goes."""
    clock = asyncio.get_running_loop().time
    start = clock()

    def still_away(error: Exception) -> float | None:
        if not isinstance(error, ServerUnavailable):
            return None
        log.error("after %.0f s still: %s", clock() - start, error)
        return 0.0

    await asyncio.sleep(_TRIALS.first_seconds)
    await retry(lambda _attempt: probe(artifacts), still_away, _TRIALS, math.inf)
    log.warning("%s works again after %.0f s", artifacts.place, clock() - start)
