"""Adapters by their content, for who draws with them: a digest becomes a verified file on this machine."""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from diffuserve.domain.errors import AdapterNotFound
from diffuserve.modelstore.adapters.adapter_cache import AdapterCache
from diffuserve.modelstore.config import ModelStoreConfig

if TYPE_CHECKING:
    from diffuserve.modelstore.adapters.adapter_bucket import AdapterBucket


class AdapterStore:
    """Adapter files from this machine's disk, or else from the bucket. Safe from any thread."""

    def __init__(self, config: ModelStoreConfig) -> None:
        """Open no connection yet: a file on this machine needs no bucket."""
        self._config = config
        self._cache = AdapterCache(config.adapter_cache, config.adapter_cache_bytes)

    def fetch(self, digest: str) -> Path:
        """Return the file whose SHA-256 is `digest`, fetching it if necessary. It takes long then.

        It stays while others need less than the cache has room for, or while it is a `PinnedFile`. Raise
        `AdapterNotFound`, `InvalidAdapter` for a damaged one, `ModelCacheFull`, `InvalidParams`, and
        `ServerUnavailable` if the bucket is needed and does not respond.
        """
        found = self._cache.find(digest)
        if found is not None:
            return found
        bucket = self._bucket
        return self._cache.keep(digest, bucket.read_blob(digest), bucket.place)

    @cached_property
    def _bucket(self) -> "AdapterBucket":
        url = self._config.adapters_url
        if url is None:
            raise AdapterNotFound(
                "this worker has no store of adapters; start it with the --adapter-store of its server"
            )
        from diffuserve.modelstore.adapters.adapter_bucket import open_adapters  # its library loads late

        return open_adapters(url)
