"""Threads that write files, so that the engine's next step does not wait for them."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType

_NUM_THREADS = 2


class OrderedWriters:
    """Runs the work of one key in the order of submission, and that of different keys side by side.

    Only one thread may submit. The pool starts work in the order of submission, and work waits only for
    work that was submitted, and so started, before it: there is no deadlock.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="file-writer")
        self._last: dict[str, Future[None]] = {}

    def submit(self, key: str, work: Callable[[], None]) -> None:
        """Run `work` after all earlier work of `key`. It must not raise: nothing waits for its outcome."""
        self._last[key] = self._pool.submit(_run_after, self._last.get(key), work)

    def finish(self, key: str, work: Callable[[], None]) -> None:
        """Submit the last work of `key`."""
        self._pool.submit(_run_after, self._last.pop(key, None), work)

    def forget(self, key: str) -> None:
        """Note that no further work of `key` comes; what was submitted still runs."""
        self._last.pop(key, None)

    def __enter__(self) -> "OrderedWriters":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()


def _run_after(before: Future[None] | None, work: Callable[[], None]) -> None:
    if before is not None:
        wait([before])
    work()
