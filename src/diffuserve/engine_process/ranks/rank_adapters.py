"""The adapters of requests on a rank other than 0, which loads its own part of each."""

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from diffuserve.domain.errors import DiffuserveError, InvalidAdapter
from diffuserve.domain.requests.adapter_use import AdapterUse
from diffuserve.models.adapters.pool import AdapterPool
from diffuserve.models.adapters.sources import AdapterSources, FindFile
from diffuserve.models.layers.adapters import Adapter, Uses
from diffuserve.models.layers.lora_pair import Components


class RankAdapters:
    """Keeps the adapters of requests from their first command until rank 0 forgets them.

    It is used on the stepping thread alone, and waits there: rank 0 has loaded the same adapters before.
    """

    def __init__(self, pool: AdapterPool, sources: AdapterSources, find: FindFile) -> None:
        self._pool, self._sources, self._find = pool, sources, find
        self._outcomes: dict[str, Uses | Exception] = {}

    def of(self, request_id: str, wanted: Sequence[AdapterUse]) -> Uses:
        """Return a request's adapters. Raise what was raised when they were loaded, each time."""
        if request_id not in self._outcomes:
            self._outcomes[request_id] = self._load(request_id, wanted)
        outcome = self._outcomes[request_id]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def release(self, request_id: str) -> None:
        """Let a request's adapters go; do nothing if it has none."""
        self._outcomes.pop(request_id, None)
        self._pool.release(request_id)

    def _load(self, request_id: str, uses: Sequence[AdapterUse]) -> Uses | Exception:
        outcome: Future[Uses | Exception] = Future()
        try:
            wanted = [(self._sources.open(use, self._find), use.weight) for use in uses]
            held = self._pool.hold(request_id, wanted)
        except DiffuserveError as error:
            return error
        if held is not None:
            return held
        self._pool.load(request_id, outcome.set_result)
        return outcome.result()


def no_adapters() -> RankAdapters:
    """Return those of a rank that knows none, and refuses them."""
    sources = AdapterSources()

    def place(name: str, _components: Components) -> Adapter:
        raise InvalidAdapter(f"adapter {name!r}: this rank takes none")

    return RankAdapters(AdapterPool(place, max_bytes=0), sources, Path)
