"""Adapters for tests, read by functions instead of from files."""

import hashlib
from collections.abc import Callable, Mapping

from diffuserve.models.adapters.sources import AdapterSource, AdapterSources
from diffuserve.models.layers.adapted.lora_pair import Components


def digest_of(name: str) -> str:
    """Return a digest for an adapter that has no file."""
    return hashlib.sha256(name.encode()).hexdigest()


def sources_of(
    readers: Mapping[str, Callable[[], Components]], num_values: Mapping[str, int] | None = None
) -> AdapterSources:
    """Return named adapters that functions read, each of so many values, by default one."""
    sizes = num_values or {}
    named = {
        name: AdapterSource(name, digest_of(name), sizes.get(name, 1), read) for name, read in readers.items()
    }
    return AdapterSources(named)
