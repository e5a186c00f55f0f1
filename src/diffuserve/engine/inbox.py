"""Messages of other threads to the one that steps: requests to add and to abort, and futures of outcomes."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from diffuserve.domain.errors import EngineClosed
from diffuserve.engine.outputs import GenerationResult, StepOutput
from diffuserve.engine.requests.request_state import RequestState


@dataclass(frozen=True)
class Messages:
    """Requests that came, and the ids of those that are to stop."""

    arrived: Sequence[RequestState]
    aborted: Sequence[str]


class Inbox:
    """Messages to the stepping thread, safe from any; `unfinished` has who has no outcome yet, by id.

    A request whose adapters are not in memory yet is held back, while others go on.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards all that follows
        self._has_messages = False
        self._arrived: list[RequestState] = []
        self._held: dict[str, RequestState] = {}
        self._aborted: list[str] = []
        self.unfinished: dict[str, Future[GenerationResult]] = {}
        self._arrivals = 0
        self.is_closed = False

    @property
    def expects(self) -> bool:
        """Return whether requests are held back, or have come and were not taken yet."""
        return bool(self._held or self._arrived)

    @property
    def num_held(self) -> int:
        """Requests that are held back."""
        with self._changed:
            return len(self._held)

    def holds(self, request_id: str) -> bool:
        """Return whether a request is held back."""
        with self._changed:
            return request_id in self._held

    def put(self, state: RequestState, is_ready: bool = True) -> Future[GenerationResult]:
        """Add a request; return the future of its outcome. Raise `EngineClosed`.

        One that is not ready is held back until `deliver`.
        """
        with self._changed:
            if self.is_closed:
                raise EngineClosed("the engine is closed")
            self._arrivals += 1
            state.arrival = self._arrivals
            if is_ready:
                self._arrived.append(state)
            else:
                self._held[state.request_id] = state
            future = self.unfinished[state.request_id] = Future()
        self.announce()
        return future

    def deliver(self, request_id: str) -> None:
        """Have a request taken that was held back; do nothing if it has been stopped meanwhile."""
        with self._changed:
            self._take_in([request_id])
        self.announce()

    def abort(self, request_id: str) -> bool:
        """Have a request stopped; `False` if it is unknown or finished."""
        with self._changed:
            if request_id not in self.unfinished:
                return False
            self._take_in([request_id])
            self._aborted.append(request_id)
        self.announce()
        return True

    def announce(self) -> None:
        """Wake the thread that waits for messages: there is something to do."""
        with self._changed:
            self._has_messages = True
            self._changed.notify_all()

    def wait(self, timeout: float | None = None) -> None:
        """Wait for a message since the last `take`, or until it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_messages or self.is_closed, timeout)

    def take(self) -> Messages:
        """Return what came since the last time."""
        with self._changed:
            self._has_messages = False
            messages = Messages(self._arrived, self._aborted)
            self._arrived, self._aborted = [], []
            return messages

    def settle(self, outputs: Sequence[StepOutput]) -> None:
        """Resolve the futures of what finished."""
        for output in outputs:
            if not output.finished:
                continue
            with self._changed:
                future = self.unfinished.pop(output.request_id)
            if not future.set_running_or_notify_cancel():
                continue
            if output.result is not None:
                future.set_result(output.result)
            else:
                future.set_exception(output.error)

    def close(self) -> bool:
        """Take nothing more; return whether it was open."""
        with self._changed:
            was_open, self.is_closed = not self.is_closed, True
            self._take_in(list(self._held))
        self.announce()
        return was_open

    def _take_in(self, request_ids: Sequence[str]) -> None:
        """Count requests that were held back as arrived; the caller holds the lock."""
        held = [self._held.pop(request_id, None) for request_id in request_ids]
        self._arrived += [state for state in held if state is not None]
