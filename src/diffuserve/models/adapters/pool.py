"""The adapters in a device's memory: loaded when a request asks for them, dropped when there is no room."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from diffuserve.domain.errors import InvalidAdapter, InvalidParams
from diffuserve.models.adapters.load_turns import AdapterClaim, LoadTurns
from diffuserve.models.adapters.sources import AdapterSource
from diffuserve.models.layers.adapted.adapters import Adapter, Uses
from diffuserve.models.layers.adapted.lora_pair import Components

PlaceAdapter = Callable[[str, Components], Adapter]
"""Brings an adapter, which messages name, to the device. It may raise `InvalidAdapter`."""
Done = Callable[[Uses | Exception], None]
Wanted = Sequence[tuple[AdapterSource, float]]
"""Adapters that a request asks for, and how much of each."""
OnRoom = Callable[[str, Wanted], None]
"""Told of a request that has room for its adapters, which are being loaded now."""
NUM_LOADERS = 2


@dataclass(eq=False)
class _Held:
    claim: AdapterClaim
    wanted: Wanted
    done: Done | None = None
    failure: Exception | None = None
    is_told: bool = False
    is_announced: bool = False


def unheard(request_id: str, wanted: Wanted) -> None:
    """Do nothing: nobody else loads the same adapters."""


class AdapterPool:
    """Keeps about `max_bytes` of adapters, those of requests and the most recently used others.

    Adapters are known by the digests of their files. They are loaded on threads of their own, of which no
    tenant has all. A request has room for all of its adapters or none, so that no two wait for each other.
    Safe from any thread.
    """

    def __init__(
        self,
        place: PlaceAdapter,
        max_bytes: int,
        value_bytes: int = 4,
        on_room: OnRoom = unheard,
    ) -> None:
        """`value_bytes` is the size of a number on the device; `on_room` is called under a lock."""
        self._place, self._value_bytes, self._on_room = place, value_bytes, on_room
        self._turns = LoadTurns(max_bytes)
        self._kept: OrderedDict[str, Adapter] = OrderedDict()  # the least recently used one is first
        self._loading: dict[str, str] = {}  # tenants by digest
        self._held: dict[str, _Held] = {}  # by request
        self._lock = threading.Lock()
        self._loaders = ThreadPoolExecutor(NUM_LOADERS, "diffuserve-adapters")

    @property
    def num_bytes(self) -> int:
        with self._lock:
            return self._size()

    @property
    def digests(self) -> tuple[str, ...]:
        """The adapters in memory, the most recently used first."""
        with self._lock:
            return tuple(reversed(self._kept))

    def hold(self, request_id: str, wanted: Wanted, tenant: str = "") -> Uses | None:
        """Keep a request's adapters until `release`; return them, or `None` if `load` is to be called.

        Raise `InvalidParams` for adapters that never fit.
        """
        if not wanted:
            return ()
        held = _Held(AdapterClaim(tenant, self._sizes(wanted)), wanted)
        self._check_size(held)
        with self._lock:
            self._held[request_id] = held
            self._turns.claims.append(held.claim)
            self._turns.give_room()
            uses = self._uses(held)
            held.is_told = uses is not None
            return uses

    def load(self, request_id: str, done: Done) -> None:
        """Load adapters that a request holds, and call `done` with them, or with why there are none.

        It is called from some thread, and not at all after `release`.
        """
        with self._lock:
            held = self._held.get(request_id)
            if held is not None:
                held.done = done
        if held is not None and held.failure is not None:
            done(held.failure)
        self._go_on()

    def release(self, request_id: str) -> None:
        """Let a request's adapters go; do nothing if it holds none."""
        with self._lock:
            held = self._held.pop(request_id, None)
            if held is None:
                return
            if held.claim in self._turns.claims:
                self._turns.claims.remove(held.claim)
        self._go_on()

    def close(self) -> None:
        """Stop loading."""
        with self._lock:
            self._held.clear()
            self._turns.claims.clear()
        self._loaders.shutdown(cancel_futures=True)

    def _go_on(self) -> None:
        """Give room, load what is next, and tell requests whose adapters are here."""
        with self._lock:
            self._turns.give_room()
            self._start_loads()
            told = list[tuple[Done, Uses]]()
            for request_id, held in self._held.items():
                if held.done is not None and held.claim.has_room and not held.is_announced:
                    held.is_announced = True
                    self._on_room(request_id, held.wanted)
                waits = held.done is not None and not held.is_told
                uses = self._uses(held) if waits else None
                if held.done is not None and uses is not None:
                    held.is_told = True
                    told.append((held.done, uses))
        for done, uses in told:
            done(uses)

    def _start_loads(self) -> None:
        while (load := self._turns.next_load(self._kept, self._loading, NUM_LOADERS)) is not None:
            self._loading[load.digest] = load.tenant
            self._loaders.submit(self._load, self._source(load.digest))

    def _load(self, source: AdapterSource) -> None:
        """Load an adapter; if that fails, so do the requests that wait for it, and later ones try anew."""
        failure: Exception | None = None
        try:
            adapter = replace(self._place(source.digest, source.read()), key=source.digest)
        except Exception as error:  # of whatever kind: it fails the requests that wait for it
            failure = error
        with self._lock:
            del self._loading[source.digest]
            if failure is None:
                self._keep(source.digest, adapter)
            failed = [] if failure is None else self._give_up(source.digest, failure)
        for held in failed:
            if held.done is not None and held.failure is not None:
                held.done(held.failure)
        self._go_on()

    def _give_up(self, digest: str, failure: Exception) -> list[_Held]:
        """Fail the requests that wait for an adapter, and take their room from them; return them."""
        failed = [held for held in self._held.values() if digest in held.claim.sizes and not held.is_told]
        for held in failed:
            held.is_told, held.failure = True, _failure_of(held.wanted, digest, failure)
            self._turns.claims.remove(held.claim)
        return failed

    def _keep(self, digest: str, adapter: Adapter) -> None:
        """Keep an adapter; others that no request holds make room for it."""
        pinned = self._turns.pinned
        for other in [other for other in self._kept if other not in pinned]:
            if self._size() + adapter.num_bytes <= self._turns.max_bytes:
                break
            del self._kept[other]
        if digest in pinned or self._size() + adapter.num_bytes <= self._turns.max_bytes:
            self._kept[digest] = adapter

    def _uses(self, held: _Held) -> Uses | None:
        """Return a request's adapters and their weights; `None` without room, or if one is not in memory."""
        if not held.claim.has_room or any(digest not in self._kept for digest in held.claim.sizes):
            return None
        for digest in held.claim.sizes:
            self._kept.move_to_end(digest)
        return tuple((self._kept[source.digest], weight) for source, weight in held.wanted)

    def _source(self, digest: str) -> AdapterSource:
        sources = (source for held in self._held.values() for source, _ in held.wanted)
        return next(source for source in sources if source.digest == digest)

    def _sizes(self, wanted: Wanted) -> Mapping[str, int]:
        return {source.digest: source.num_values * self._value_bytes for source, _ in wanted}

    def _check_size(self, held: _Held) -> None:
        size, most = sum(held.claim.sizes.values()), self._turns.max_bytes
        if size > most:
            names = ", ".join(source.name for source, _ in held.wanted)
            remedy = (
                f"would take {size:,} bytes of the device's memory, where adapters may have {most:,}; use a "
                "smaller one or fewer, or raise --adapter-bytes"
            )
            raise InvalidParams("adapters", names, remedy)

    def _size(self) -> int:
        return sum(adapter.num_bytes for adapter in self._kept.values())


def _failure_of(wanted: Wanted, digest: str, failure: Exception) -> Exception:
    """Return why an adapter cannot be used, by the name that the request knows it by."""
    if not isinstance(failure, InvalidAdapter):
        return failure
    name = next(source.name for source, _ in wanted if source.digest == digest)
    return InvalidAdapter(f"adapter {name!r}: {str(failure).removeprefix(f'adapter {digest!r}: ')}")
