"""Things that were read a moment ago."""

import time
from collections import OrderedDict
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Cache(Generic[Key, Value]):
    """Values that may be used for `seconds`; the oldest give way when there are too many."""

    def __init__(self, seconds: float, max_entries: int = 10_000) -> None:
        self._seconds = seconds
        self._max_entries = max_entries
        self._entries: OrderedDict[Key, tuple[float, Value]] = OrderedDict()

    def find(self, key: Key) -> Value | None:
        entry = self._entries.get(key)
        if entry is None or entry[0] < time.monotonic():
            return None
        return entry[1]

    def keep(self, key: Key, value: Value) -> None:
        self._entries[key] = (time.monotonic() + self._seconds, value)
        self._entries.move_to_end(key)
        if len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)
