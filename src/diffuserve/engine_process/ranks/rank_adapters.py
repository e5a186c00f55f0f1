"""The adapters of requests on a rank other than 0, which loads its own part of each."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from diffuserve.domain.errors import InvalidAdapter
from diffuserve.domain.requests.adapter_use import AdapterUse
from diffuserve.models.adapters.pool import AdapterPool
from diffuserve.models.adapters.sources import AdapterSources, FindFile
from diffuserve.models.layers.adapted.adapters import Adapter, Uses
from diffuserve.models.layers.adapted.lora_pair import Components


class RankAdapters:
    """Keeps the adapters of requests from when they are expected until rank 0 forgets them.

    Files are opened on a thread of their own and read on the pool's, in the order of rank 0's commands.
    """

    def __init__(self, pool: AdapterPool, sources: AdapterSources, find: FindFile) -> None:
        self._pool, self._sources, self._find = pool, sources, find
        self._outcomes: dict[str, Future[Uses | Exception]] = {}  # of requests
        self._opener = ThreadPoolExecutor(1, "diffuserve-adapter-files")

    def expect(self, request_id: str, wanted: Sequence[AdapterUse]) -> None:
        """Begin to load a request's adapters, unless that has begun."""
        if request_id in self._outcomes:
            return
        outcome = self._outcomes[request_id] = Future()
        if wanted:
            self._opener.submit(self._begin, request_id, wanted, outcome)
        else:
            outcome.set_result(())

    def of(self, request_id: str, wanted: Sequence[AdapterUse]) -> Uses:
        """Wait for a request's adapters. Raise what was raised when they were loaded, each time."""
        self.expect(request_id, wanted)
        outcome = self._outcomes[request_id].result()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def release(self, request_id: str) -> None:
        """Let a request's adapters go; do nothing if it has none."""
        outcome = self._outcomes.pop(request_id, None)
        if outcome is not None and not (outcome.done() and outcome.result() == ()):
            self._opener.submit(self._pool.release, request_id)

    def _begin(
        self, request_id: str, uses: Sequence[AdapterUse], outcome: "Future[Uses | Exception]"
    ) -> None:
        try:
            wanted = [(self._sources.open(use, self._find), use.weight) for use in uses]
            held = self._pool.hold(request_id, wanted)
        except Exception as error:  # of whatever kind: it fails the request on all ranks
            outcome.set_result(error)
            return
        if held is not None:
            outcome.set_result(held)
        else:
            self._pool.load(request_id, outcome.set_result)


def no_adapters() -> RankAdapters:
    """Return those of a rank that knows none, and refuses them."""
    sources = AdapterSources()

    def place(name: str, _components: Components) -> Adapter:
        raise InvalidAdapter(f"adapter {name!r}: this rank takes none")

    return RankAdapters(AdapterPool(place, max_bytes=0), sources, Path)
