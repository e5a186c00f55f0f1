"""The adapters of a store as a control plane uses them; its libraries load with the first name."""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from diffuserve.domain.models.adapter_entry import AdapterEntry

if TYPE_CHECKING:
    from diffuserve.modelstore.adapters.adapter_bucket import AdapterBucket


class StoredAdapters:
    """Adapters by owner and name; an owner that is `None` means everyone. Safe from any thread.

    Every method raises `ServerUnavailable` if the store does not respond.
    """

    def __init__(self, url: str) -> None:
        """Open no connection yet."""
        self._url = url

    def entries(self, tenant: str | None) -> list[AdapterEntry]:
        """Return a tenant's adapters, by their names."""
        return self._bucket.entries(tenant)

    def find(self, tenant: str | None, name: str) -> AdapterEntry | None:
        """Return a tenant's adapter of a name; `None` if there is none."""
        return self._bucket.find(tenant, name)

    def add(self, file: Path, name: str, tenant: str | None) -> AdapterEntry:
        """Give a file a name, which means it from now on. Raise `InvalidAdapter` if it is no adapter."""
        from diffuserve.modelstore.adapters.describe import describe_adapter

        entry = describe_adapter(file, name, tenant)
        self._bucket.publish(entry, file)
        return entry

    def remove(self, tenant: str | None, name: str) -> None:
        """Remove a name. Its file stays for a while; those whose time is over go. Raise `AdapterNotFound`."""
        self._bucket.remove(self._bucket.get(tenant, name))
        self._bucket.sweep()

    @cached_property
    def _bucket(self) -> "AdapterBucket":
        from diffuserve.modelstore.adapters.adapter_bucket import open_adapters

        return open_adapters(self._url)
