"""Threads that write files, so that the engine's next step does not wait for them."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

_NUM_THREADS = 2


class OrderedWriters:
    """Runs the work of one key in the order of submission, and that of different keys concurrently.

    Work that waits for earlier work of its key occupies no thread, so a long clip does not block images.
    Images and clips alternate while both wait: regardless of the number of clips, the first image waits only
    for those being written.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="file-writer")
        self._changed = threading.Condition()  # guards the fields below
        self._queues: dict[str, deque[Callable[[], None]]] = {}  # by key, for keys with work in progress
        self._ready: dict[bool, deque[tuple[str, Callable[[], None]]]] = {True: deque(), False: deque()}
        self._clip_is_next = False

    def submit(self, key: str, work: Callable[[], None], *, is_clip: bool = False) -> None:
        """Run `work` after all earlier work of `key`. It must not raise: nothing waits for its outcome."""
        with self._changed:
            if key in self._queues:
                self._queues[key].append(work)
                return
            self._queues[key] = deque()
            self._ready[is_clip].append((key, work))
        self._pool.submit(self._run_next)

    def __enter__(self) -> "OrderedWriters":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._queues)
        self._pool.shutdown()

    def _run_next(self) -> None:
        """Run the next piece of work; each piece that is ready has one such call."""
        is_clip, key, work = self._take_turn()
        try:
            work()
        finally:
            if self._has_more(key, is_clip):
                self._pool.submit(self._run_next)

    def _take_turn(self) -> tuple[bool, str, Callable[[], None]]:
        with self._changed:
            is_clip = self._clip_is_next if self._ready[self._clip_is_next] else not self._clip_is_next
            self._clip_is_next = not is_clip
            return (is_clip, *self._ready[is_clip].popleft())

    def _has_more(self, key: str, is_clip: bool) -> bool:
        """Queue the key's next work behind that of other keys, or forget the key if it has none."""
        with self._changed:
            if self._queues[key]:
                self._ready[is_clip].append((key, self._queues[key].popleft()))
                return True
            del self._queues[key]
            self._changed.notify_all()
            return False
