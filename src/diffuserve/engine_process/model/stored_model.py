"""The model of an engine process, if a model store has it: a folder in place of its name."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from diffuserve.backoff import Backoff
from diffuserve.domain.errors import ServerUnavailable, StorageRefused
from diffuserve.models.folders.hub import LoggedProgress
from diffuserve.modelstore.cache import HeldModel
from diffuserve.modelstore.manifest import Manifest
from diffuserve.modelstore.store import ModelStore, OnFetch, is_stored, open_stored
from diffuserve.modelstore.swarm_download import SharedDownload
from diffuserve.protocol.config import EngineProcessConfig

log = logging.getLogger(__name__)

T = TypeVar("T")

_RETRIES = Backoff(first_seconds=1.0, longest_seconds=30.0, jitter=0.5)


def with_stored_model(
    config: EngineProcessConfig, on_fetch: OnFetch | None = None, together: SharedDownload | None = None
) -> EngineProcessConfig:
    """Return the configuration with the folder of its model, fetched if need be, which this process keeps.

    A store that does not respond is waited for. Raise as `open_stored`.
    """
    held = with_patience(lambda: open_stored(config.model, config.stored, on_fetch or logged, together))
    return _with_folder(config, held)


def with_patience(work: Callable[[], T]) -> T:
    """Return what `work` does with a store, again while that does not respond. Raise what else it raises."""
    num_failures = 0
    while True:
        try:
            return work()
        except StorageRefused:
            raise
        except ServerUnavailable as error:
            num_failures += 1
            pause = _RETRIES.jittered(_RETRIES.pause_seconds(num_failures))
            log.warning("%s; asking again in %.0f s", error, pause)
            time.sleep(pause)


def with_known_model(config: EngineProcessConfig) -> EngineProcessConfig:
    """Return the configuration with the folder that its model had before; no thread is started for it."""
    if not is_stored(config.model, config.stored):
        return config
    return _with_folder(config, ModelStore(config.stored).known(config.model))


def logged(manifest: Manifest) -> Callable[[int], None]:
    """Report the progress of a download in the log."""
    return LoggedProgress(manifest.reference, manifest.num_bytes)


def _with_folder(config: EngineProcessConfig, held: HeldModel | None) -> EngineProcessConfig:
    return config if held is None else replace(config, model=str(held.folder))
