"""The requests in progress, by their phases."""

from collections.abc import Iterator

from diffuserve.engine.requests.phases import RequestPhase
from diffuserve.engine.requests.request_state import RequestState


class Requests:
    """The requests of one engine, owned by its stepping thread.

    Those that are `stepping` wait or denoise, those `decoding` have done their last step; those that wait for
    their `retry` are in the order in which they failed.
    """

    def __init__(self) -> None:
        self.stepping: dict[str, RequestState] = {}
        self.decoding: dict[str, RequestState] = {}
        self.retry: dict[str, RequestState] = {}

    def __iter__(self) -> Iterator[RequestState]:
        yield from (*self.stepping.values(), *self.decoding.values(), *self.retry.values())

    def add(self, state: RequestState) -> None:
        """Add a request that waits."""
        self._of(state.phase)[state.request_id] = state

    def find(self, request_id: str) -> RequestState | None:
        """Return a request in progress."""
        tables = (self.stepping, self.decoding, self.retry)
        return next((table[request_id] for table in tables if request_id in table), None)

    def move(self, state: RequestState, phase: RequestPhase) -> None:
        """Have a request enter its next phase."""
        before = self._of(state.phase)
        state.move_to(phase)
        del before[state.request_id]
        if phase is not RequestPhase.ENDED:
            self._of(phase)[state.request_id] = state

    def _of(self, phase: RequestPhase) -> dict[str, RequestState]:
        if phase is RequestPhase.RETRY:
            return self.retry
        return self.decoding if phase is RequestPhase.DECODING else self.stepping
