"""Threads that write files, so that the engine's next step does not wait for them."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

_NUM_THREADS = 2


class OrderedWriters:
    """Runs the work of one key in the order of submission, and that of different keys side by side.

    Work that waits for earlier work of its key occupies no thread: a long clip holds up no image.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="file-writer")
        self._changed = threading.Condition()  # guards the queues
        self._queues: dict[str, deque[Callable[[], None]]] = {}  # of the keys whose work is under way

    def submit(self, key: str, work: Callable[[], None]) -> None:
        """Run `work` after all earlier work of `key`. It must not raise: nothing waits for its outcome."""
        with self._changed:
            if key in self._queues:
                self._queues[key].append(work)
                return
            self._queues[key] = deque()
        self._pool.submit(self._run, key, work)

    def __enter__(self) -> "OrderedWriters":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._queues)
        self._pool.shutdown()

    def _run(self, key: str, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            following = self._next(key)
            if following is not None:
                self._pool.submit(self._run, key, following)

    def _next(self, key: str) -> Callable[[], None] | None:
        with self._changed:
            if self._queues[key]:
                return self._queues[key].popleft()
            del self._queues[key]
            self._changed.notify_all()
            return None
