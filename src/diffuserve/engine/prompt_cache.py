"""Conditioning of recent prompts."""

from collections import OrderedDict
from collections.abc import Hashable

from diffuserve.models.base import Conditioning


class PromptCache:
    """The `size` least recently used entries go first."""

    def __init__(self, size: int) -> None:
        self._entries: OrderedDict[Hashable, Conditioning] = OrderedDict()
        self._size = size

    def get(self, key: Hashable) -> Conditioning | None:
        if key in self._entries:
            self._entries.move_to_end(key)
        return self._entries.get(key)

    def put(self, key: Hashable, conditioning: Conditioning) -> None:
        self._entries[key] = conditioning
        self._entries.move_to_end(key)
        while len(self._entries) > self._size:
            self._entries.popitem(last=False)
