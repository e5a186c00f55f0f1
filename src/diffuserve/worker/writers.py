"""Threads that write files, so that no image waits for another's step."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType

_NUM_THREADS = 2


class OrderedWriters:
    """Work of one key runs in the order in which it came, of different keys side by side.

    One thread submits. Work waits only for work that was submitted, and so begun, before it: the pool
    takes first what came first, and nothing waits for ever.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="file-writer")
        self._last: dict[str, Future[None]] = {}

    def submit(self, key: str, work: Callable[[], None]) -> None:
        """`work` raises nothing: whoever could hear of it is long gone."""
        self._last[key] = self._pool.submit(_run_after, self._last.get(key), work)

    def finish(self, key: str, work: Callable[[], None]) -> None:
        """Its last work."""
        self._pool.submit(_run_after, self._last.pop(key, None), work)

    def forget(self, key: str) -> None:
        """No last work comes; what was submitted still runs."""
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
