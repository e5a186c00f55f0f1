"""Opening the artifact store, which is tried before anything depends on it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from diffuserve.domain.errors import InvalidParams, ServerUnavailable, StorageRefused
from diffuserve.private_files import make_private_folder
from diffuserve.settings import Settings
from diffuserve.storage.base import ArtifactStore
from diffuserve.storage.opening import open_artifacts
from diffuserve.storage.probe import probe


@asynccontextmanager
async def open_storage(settings: Settings) -> AsyncIterator[ArtifactStore]:
    """Yield the artifact store of the settings, after a test with a tiny file.

    Raise `InvalidParams` if the store refuses it. The server starts even if the store does not respond, as it
    may come back; `StorageWatch` reports when it does.
    """
    if settings.artifacts_url is None:
        make_private_folder(settings.data_dir, settings.data_access)
    artifacts = open_artifacts(settings.files_url, settings.data_access)
    try:
        await probe(artifacts)
    except StorageRefused as error:
        raise InvalidParams("artifacts_url", settings.files_url, str(error)) from error
    except ServerUnavailable:
        pass
    yield artifacts
