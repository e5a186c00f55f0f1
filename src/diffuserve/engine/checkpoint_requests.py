"""Requests for checkpoints from other threads, which the stepping thread answers between two steps."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from diffuserve.engine.checkpoint import Checkpoint

_LOOK_SECONDS = 0.05


@dataclass
class CheckpointRequests:
    """Holds pending requests; `take` is called under `stepping`, the lock of the stepping thread."""

    stepping: threading.Lock
    take: Callable[[str], Checkpoint]
    _asked: list[tuple[str, "Future[Checkpoint]"]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, request_id: str, wake: Callable[[], None]) -> Checkpoint:
        """Return a checkpoint: the stepping thread takes it after its step, or this thread if none steps."""
        future: Future[Checkpoint] = Future()
        with self._lock:
            self._asked.append((request_id, future))
        wake()
        while not future.done():
            if self.stepping.acquire(timeout=_LOOK_SECONDS):
                try:
                    self.respond()
                finally:
                    self.stepping.release()
        return future.result()

    def respond(self) -> None:
        """Answer pending requests; the caller holds the lock of the stepping thread."""
        if not self._asked:
            return
        with self._lock:
            asked, self._asked = self._asked, []
        for request_id, future in asked:
            try:
                future.set_result(self.take(request_id))
            except Exception as error:  # raised in the requesting thread; the step goes on
                future.set_exception(error)
