"""The process that gets a model which an operator ordered, for its agent, which imports no models.

It writes a line for each message: `ModelsToHave` if it is asked for none, else `EngineLoading` while files
arrive, and then `ModelAnnounced`, or `EngineRefused` for a model that cannot be had here. Its end stops the
download, which the next one continues.
"""

import argparse
import shutil
import sys
import threading
import time
from collections.abc import Iterator

from diffuserve.domain.errors import DiffuserveError, InvalidModel
from diffuserve.domain.models.parts import ALL_PARTS
from diffuserve.domain.workers.model_orders import ModelToHave, misfit
from diffuserve.engine_process.agent_link import end_with_agent_alone
from diffuserve.engine_process.model.model_description import describe
from diffuserve.models.bundled import bundled_models, missing_weights
from diffuserve.models.folders import hub
from diffuserve.models.folders.folder import find_local_model
from diffuserve.models.folders.known_models import APACHE, KNOWN_MODELS, KnownModel
from diffuserve.models.folders.names import HUB_COMMITS, full_name
from diffuserve.models.registry import num_weight_bytes, read_spec
from diffuserve.protocol.config import EngineProcessConfig
from diffuserve.protocol.messages import EngineLoading, EngineRefused, Message, ModelsToHave, encode
from diffuserve.telemetry.logs import configure_logs

_SPARE_BYTES = 1_000_000_000  # kept free for logs and images
_TELL_SECONDS = 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description="Gets a model for a worker; started by its agent.")
    parser.add_argument("--config", help="JSON of EngineProcessConfig; without it the models are listed")
    parser.add_argument("--room", type=int, help="bytes that the weights may have")
    arguments = parser.parse_args()
    end_with_agent_alone()
    if arguments.config is None:
        _say(ModelsToHave(models=models_to_have()))
        return
    config = EngineProcessConfig.from_json(arguments.config)
    configure_logs(config.logs)
    try:
        _fetch(config.model, arguments.room)
        _say(describe(config))
    except DiffuserveError as error:
        _say(EngineRefused(reason=str(error)))


def models_to_have() -> tuple[ModelToHave, ...]:
    """Return the models that an order may name: those that ship, and known ones whose commit is pinned."""
    return (*_bundled(), *(_known(model) for model in KNOWN_MODELS if model.commit is not None))


def _bundled() -> Iterator[ModelToHave]:
    for name, folder in bundled_models().items():
        if not missing_weights(folder):
            makes = "clips" if read_spec(name).is_video else "images"
            num_bytes = num_weight_bytes(name, ALL_PARTS)
            yield ModelToHave(name=name, license=APACHE, makes=makes, num_bytes=num_bytes, is_here=True)


def _known(model: KnownModel) -> ModelToHave:
    return ModelToHave(
        name=model.name,
        hub_id=model.hub_id,
        license=model.license,
        makes="clips" if model.name.startswith("wan-") else "images",
        num_bytes=None if model.gigabytes is None else round(model.gigabytes * 1e9),
        is_here=_is_here(model.name),
        needs_consent=not model.is_permissive,
    )


def _is_here(name: str) -> bool:
    try:
        return find_local_model(name) is not None
    except DiffuserveError:  # half of it, or no library of the hub
        return False


def _fetch(name: str, room_bytes: int | None) -> None:
    """Download a known model that is not here. Raise `InvalidModel` if it does not fit, and as the hub."""
    if name not in {model.name for model in models_to_have()}:
        raise InvalidModel(f"{name}: orders are for models of known names, whose versions are pinned")
    if _is_here(name):
        return
    repo_id = full_name(name)
    download = hub.plan_download(repo_id, HUB_COMMITS[repo_id])
    if problem := misfit(download.num_bytes, room_bytes) or _lack_of_space(download):
        raise InvalidModel(f"{name} {problem}")
    read_spec(str(hub.fetch_configs(download)))  # refuses what cannot be served before its weights arrive
    hub.fetch_all(download, _Told(download.num_bytes, download.num_bytes - download.missing_bytes))


def _lack_of_space(download: hub.Download) -> str:
    cache = hub.cache_folder()
    existing = next(folder for folder in (cache, *cache.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if free >= download.missing_bytes + _SPARE_BYTES:
        return ""
    missing = download.missing_bytes / 1e9
    return (
        f"needs {missing:.1f} GB of disk, and {existing} has {free / 1e9:.1f} GB free; "
        "`diffuserve rm` on that machine removes a model"
    )


class _Told:
    """Report of a download to the agent, from time to time. Several threads may call it."""

    def __init__(self, total: int, num_bytes: int) -> None:
        self._total, self._num_bytes, self._told_at = total, num_bytes, 0.0
        self._lock = threading.Lock()

    def __call__(self, num_bytes: int) -> None:
        with self._lock:
            self._num_bytes += num_bytes
            if (now := time.monotonic()) - self._told_at >= _TELL_SECONDS:
                self._told_at = now
                _say(EngineLoading(phase="fetch", bytes_read=self._num_bytes, bytes_total=self._total))


def _say(message: Message) -> None:
    sys.stdout.buffer.write(encode(message))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
