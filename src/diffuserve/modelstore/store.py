"""Models by name: resolves a name to a folder whose every byte was verified."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from diffuserve.domain.errors import (
    InvalidModel,
    InvalidParams,
    ModelNotFound,
    ServerUnavailable,
    StorageRefused,
)
from diffuserve.models.bundled import bundled_models
from diffuserve.models.folders.model_paths import existing
from diffuserve.models.folders.names import full_name, is_hub_id
from diffuserve.modelstore.cache import HeldModel, ModelCache
from diffuserve.modelstore.config import ModelStoreConfig
from diffuserve.modelstore.configs import DescribedModel, fetched_configs
from diffuserve.modelstore.download import download
from diffuserve.modelstore.layout import folder_key
from diffuserve.modelstore.manifest import Manifest, Reference, is_reference, parse_reference
from diffuserve.modelstore.model_folder import newest_version, read_manifest
from diffuserve.modelstore.partial import PartialModel
from diffuserve.modelstore.sources import PieceSource
from diffuserve.modelstore.swarm_download import SharedDownload, download_together

if TYPE_CHECKING:
    from diffuserve.modelstore.bucket import ModelBucket

log = logging.getLogger(__name__)

OnFetch = Callable[[Manifest], Callable[[int], None]]
"""Called when a model is about to be fetched; what it returns receives the bytes as they arrive."""
_HASH_DIGITS = 64


def is_stored(model: str, config: ModelStoreConfig) -> bool:
    """Return whether a name is looked up in a store: there is one, and it is no bundled model or path."""
    if config.model_store is None and config.model_volume is None:
        return False
    return is_reference(model) and model not in bundled_models() and existing(model) is None


class ModelStore:
    """Models from the nearest place that has them: this machine's cache, a volume, peers, the bucket.

    `peers` are asked for pieces before the bucket. With `together` models are fetched in a swarm, and what is
    in the cache is given to it for as long as the swarm lasts.
    """

    def __init__(
        self,
        config: ModelStoreConfig,
        peers: Sequence[PieceSource] = (),
        together: SharedDownload | None = None,
    ) -> None:
        """Open no connection yet: a model in the cache needs no bucket."""
        self._config, self._peers, self._together = config, peers, together
        self._cache = ModelCache(config.model_cache, config.model_cache_bytes)

    def open(self, name: str, on_fetch: OnFetch) -> HeldModel:
        """Return a model that is completely on this machine, fetching it if necessary.

        Raise `ModelNotFound`, `InvalidModel` for a damaged or forged one, `ModelCacheFull`, `InvalidParams`,
        and `ServerUnavailable` if the bucket is needed and does not respond.
        """
        version = self.find(parse_reference(name))
        held = self._on_this_machine(version)
        if held is None and self._together is not None:
            return self._fetched_together(version, on_fetch, self._together)
        if held is not None and self._together is not None:
            self._together.swarm.join(held.manifest, held.folder.parent, held.manifest.pieces)
        return held or self._fetched(version, on_fetch)

    def known(self, name: str) -> HeldModel | None:
        """Return a model in the version last opened on this machine, without asking the bucket."""
        reference = parse_reference(name)
        version = self._version_in_volume(reference) or self._cache.known_version(reference)
        return None if version is None else self._on_this_machine(version)

    @contextmanager
    def described(self, name: str) -> Iterator[DescribedModel]:
        """Yield a model's description, for which its weights need not be here. Raise as `open`."""
        version = self.find(parse_reference(name))
        held = self._on_this_machine(version)
        if held is not None:
            try:
                yield DescribedModel(held.manifest, held.folder)
            finally:
                held.release()
        elif self._bucket is None:
            raise self._not_in_volume(version)
        else:
            with fetched_configs(self._bucket, self._bucket.manifest(version)) as described:
                yield described

    def find(self, reference: Reference) -> str:
        """Return the hash of a reference: by the bucket, by the volume, or the last one known.

        Raise `ModelNotFound`, or `ServerUnavailable`.
        """
        if len(reference.digits) == _HASH_DIGITS:
            return reference.digits
        if self._bucket is None:
            return self._find_in_volume(reference)
        try:
            version = self._bucket.find(reference).hash
        except ServerUnavailable as error:
            return self._last_known(reference, error)
        self._cache.note_name(reference.name, version)
        return version

    def _last_known(self, reference: Reference, error: ServerUnavailable) -> str:
        version = self._cache.known_version(reference)
        if version is None:
            raise error
        log.warning("%s; %s is taken for %s, as before", error, reference, version)
        return version

    def _find_in_volume(self, reference: Reference) -> str:
        version = self._version_in_volume(reference)
        if version is None:
            raise ModelNotFound(
                f"{self._config.model_volume} has no model {reference}, and no bucket is named"
            )
        return version

    def _version_in_volume(self, reference: Reference) -> str | None:
        """Raise `InvalidParams` if there is a volume and it is not there."""
        volume = self._config.model_volume
        if volume is None:
            return None
        if not volume.is_dir():
            raise InvalidParams("model_volume", str(volume), "is no folder; is the volume mounted there?")
        return newest_version(volume, reference)

    def _on_this_machine(self, version: str) -> HeldModel | None:
        return self._cache.hold(version) or self._in_volume(version)

    def _in_volume(self, version: str) -> HeldModel | None:
        """Return a model in the volume, which is used in place; `None` if it is not complete there."""
        if self._config.model_volume is None:
            return None
        folder = self._config.model_volume / folder_key(version)
        try:
            manifest = read_manifest(folder, version)
        except FileNotFoundError:
            return None
        except (InvalidModel, OSError) as error:
            log.warning("the model %s in the volume is not used: %s", version, error)
            return None
        return HeldModel(manifest, folder / manifest.name)

    def _fetched(self, version: str, on_fetch: OnFetch) -> HeldModel:
        if self._bucket is None:
            raise self._not_in_volume(version)
        manifest = self._bucket.manifest(version)
        sources = (*self._peers, self._bucket)
        return self._cache.fetch(
            manifest, lambda partial: download(manifest, partial, sources, on_fetch(manifest))
        )

    def _fetched_together(self, version: str, on_fetch: OnFetch, together: SharedDownload) -> HeldModel:
        if self._bucket is None:
            raise self._not_in_volume(version)
        bucket, manifest, transfer = self._bucket, self._bucket.manifest(version), None

        def fetch(partial: PartialModel) -> None:
            nonlocal transfer
            transfer = download_together(manifest, partial, bucket, together, on_fetch(manifest))

        held = self._cache.fetch(manifest, fetch)
        if transfer is None:  # another process of this machine has fetched it
            together.swarm.join(manifest, held.folder.parent, manifest.pieces)
        else:
            transfer.moved(held.folder.parent)
        return held

    def _not_in_volume(self, version: str) -> ModelNotFound:
        return ModelNotFound(f"{self._config.model_volume} has no whole model with the hash {version}")

    @cached_property
    def _bucket(self) -> "ModelBucket | None":
        if self._config.model_store is None:
            return None
        from diffuserve.modelstore.bucket import open_models  # its library is loaded by who needs it

        return open_models(self._config.model_store)


def check_stored(model: str, config: ModelStoreConfig) -> None:
    """Raise `ModelNotFound` if neither the store nor the hub has a model, and `StorageRefused`.

    A store that does not respond now is asked again when the model is opened.
    """
    try:
        ModelStore(config).find(parse_reference(model))
    except StorageRefused:
        raise
    except ServerUnavailable as error:
        log.warning("%s", error)
    except ModelNotFound:
        if not is_hub_id(full_name(model)):
            raise


@contextmanager
def describe_stored(model: str, config: ModelStoreConfig) -> Iterator[DescribedModel | None]:
    """Return what describes a model of the store; `None` for one that is found without it.

    Raise as `described`.
    """
    with ExitStack() as stack:
        described = None
        if is_stored(model, config):
            try:
                described = stack.enter_context(ModelStore(config).described(model))
            except ModelNotFound:
                if not is_hub_id(full_name(model)):
                    raise
        yield described


def open_stored(
    model: str, config: ModelStoreConfig, on_fetch: OnFetch, together: SharedDownload | None = None
) -> HeldModel | None:
    """Return a model of the store; `None` for one that is found without it: bundled, a folder or the hub's.

    A short name of a hub model means the store's model of that name, if it has one. Raise as `ModelStore`.
    """
    if not is_stored(model, config):
        return None
    try:
        return ModelStore(config, together=together).open(model, on_fetch)
    except ModelNotFound:
        if is_hub_id(full_name(model)):
            return None
        raise
