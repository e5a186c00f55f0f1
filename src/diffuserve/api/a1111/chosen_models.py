"""The model that each key has chosen, as A1111's clients choose one for all requests that follow."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from cachetools import LRUCache

from diffuserve.events.base import EventBus

_TOPIC = "a1111:models"
_MAX_KEYS = 10_000


class ChosenModels:
    """Remembers choices in memory, and tells other control planes of them; a restart forgets them."""

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self._models: LRUCache[str, str] = LRUCache(_MAX_KEYS)

    def listening(self) -> AbstractContextManager[object]:
        """Return a context in which choices made at other control planes arrive."""
        return self._bus.listen(_TOPIC, self._hear)

    def of(self, tenant_id: str, key: str) -> str | None:
        """Return the model that this key of a tenant has chosen, if it has."""
        return self._models.get(f"{tenant_id}/{key}")

    def choose(self, tenant_id: str, key: str, model: str) -> None:
        """Remember a choice of a model that is served."""
        chosen = {"key": f"{tenant_id}/{key}", "model": model}
        self._hear(chosen)
        self._bus.publish(_TOPIC, chosen)

    def _hear(self, message: Mapping[str, Any]) -> None:
        self._models[str(message["key"])] = str(message["model"])
