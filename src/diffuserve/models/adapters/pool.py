"""The adapters in a device's memory: loaded when a request asks for them, dropped when there is no room."""

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from diffuserve.domain.errors import InvalidAdapter, InvalidParams
from diffuserve.domain.requests.adapter_use import AdapterUse
from diffuserve.domain.text.nearest import did_you_mean
from diffuserve.models.layers.adapters import Adapter, Uses

LoadAdapter = Callable[[], Adapter]
"""Reads an adapter and brings it to the device. It may take long, and raise `InvalidAdapter`."""
Done = Callable[[Uses | Exception], None]


class AdapterPool:
    """Keeps up to `max_bytes` of adapters, those of running requests and the most recently used others.

    `sources` load the adapters that there are, by name, on a thread of their own. Safe from any thread.
    """

    def __init__(self, sources: Mapping[str, LoadAdapter], max_bytes: int) -> None:
        self._sources, self._max_bytes = sources, max_bytes
        self._kept: OrderedDict[str, Adapter] = OrderedDict()  # the least recently used one is first
        self._pins: Counter[str] = Counter()
        self._held: dict[str, Sequence[str]] = {}  # names by request
        self._lock = threading.Lock()
        self._loader = ThreadPoolExecutor(1, "diffuserve-adapters")

    @property
    def num_bytes(self) -> int:
        with self._lock:
            return self._size()

    def check(self, wanted: Sequence[AdapterUse]) -> None:
        """Raise `InvalidParams` for an adapter that is not there."""
        for use in wanted:
            if use.name not in self._sources:
                known = ", ".join(sorted(self._sources)) or "none"
                remedy = f"there is no such adapter; known: {known}{did_you_mean(use.name, self._sources)}"
                raise InvalidParams("adapters", use.name, remedy)

    def hold(self, request_id: str, wanted: Sequence[AdapterUse]) -> Uses | None:
        """Keep adapters for a request until `release`; return them, or `None` if they are to be loaded."""
        if not wanted:
            return ()
        with self._lock:
            self._held[request_id] = [use.name for use in wanted]
            self._pins.update(self._held[request_id])
            return self._uses(wanted)

    def load(self, request_id: str, wanted: Sequence[AdapterUse], done: Done) -> None:
        """Load adapters that a request holds, and call `done` with them, or with why there are none.

        It is called from another thread.
        """
        self._loader.submit(self._load, request_id, wanted, done)

    def release(self, request_id: str) -> None:
        """Let a request's adapters go; do nothing if it holds none."""
        with self._lock:
            self._pins.subtract(self._held.pop(request_id, ()))
            self._make_room(0)

    def close(self) -> None:
        """Stop loading."""
        self._loader.shutdown(cancel_futures=True)

    def _load(self, request_id: str, wanted: Sequence[AdapterUse], done: Done) -> None:
        try:
            for use in wanted:
                if request_id in self._held and use.name not in self._kept:
                    self._keep(self._sources[use.name]())
            with self._lock:
                uses = self._uses(wanted) or ()
        except Exception as error:
            done(error)
        else:
            done(uses)

    def _keep(self, adapter: Adapter) -> None:
        """Keep an adapter that was loaded. Raise `InvalidAdapter` if there is no room for it."""
        with self._lock:
            self._make_room(adapter.num_bytes)
            size = self._size() + adapter.num_bytes
            if size > self._max_bytes:
                raise InvalidAdapter(
                    f"adapter {adapter.name!r}: {adapter.num_bytes:,} bytes do not fit beside adapters of "
                    f"running requests, of {size - adapter.num_bytes:,}; {self._max_bytes:,} are allowed: "
                    "raise --adapter-bytes, or ask again later"
                )
            self._kept[adapter.name] = adapter

    def _make_room(self, num_bytes: int) -> None:
        """Drop adapters that no request holds, the least recently used ones first, until so many fit."""
        for name in [name for name in self._kept if self._pins[name] <= 0]:
            if self._size() + num_bytes <= self._max_bytes:
                return
            del self._kept[name]

    def _uses(self, wanted: Sequence[AdapterUse]) -> Uses | None:
        """Return the adapters and their weights; `None` if one is not in memory."""
        if any(use.name not in self._kept for use in wanted):
            return None
        for use in wanted:
            self._kept.move_to_end(use.name)
        return tuple((self._kept[use.name], use.weight) for use in wanted)

    def _size(self) -> int:
        return sum(adapter.num_bytes for adapter in self._kept.values())
