"""The adapters of requests on a rank other than 0, which loads its own part of each."""

from collections.abc import Sequence
from concurrent.futures import Future

from diffuserve.domain.requests.adapter_use import AdapterUse
from diffuserve.models.adapters.pool import AdapterPool
from diffuserve.models.layers.adapters import Uses


class RankAdapters:
    """Keeps the adapters of requests from their first command until rank 0 forgets them.

    It is used on the stepping thread alone, and waits there: rank 0 has loaded the same adapters before.
    """

    def __init__(self, pool: AdapterPool) -> None:
        self._pool = pool
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

    def _load(self, request_id: str, wanted: Sequence[AdapterUse]) -> Uses | Exception:
        uses = self._pool.hold(request_id, wanted)
        if uses is not None:
            return uses
        outcome: Future[Uses | Exception] = Future()
        self._pool.load(request_id, wanted, outcome.set_result)
        return outcome.result()
