"""Changes of the queue that this process made within the last seconds.

What was read up to a second ago is brought up to date with them: a client that submits sixty jobs at once
reads in each response how many of them are ahead.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice

from diffuserve.jobs.database.lane_change import LaneChange

_KEPT_SECONDS = 10.0


class RecentChanges:
    """Remembers changes in the order in which they were committed, and jobs that are about to be.

    A read takes the `mark` when it begins: what was committed before is in it, and `since` has the rest. A
    change that is committed while the read is under way may count twice, until the next read.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives the time in tests."""
        self._clock = clock
        self._changes: deque[tuple[float, LaneChange]] = deque()
        self._num_dropped = 0
        self._pending: dict[int, LaneChange] = {}

    @property
    def mark(self) -> int:
        """The number of changes so far."""
        return self._num_dropped + len(self._changes)

    def note(self, changes: Iterable[LaneChange]) -> None:
        """Remember what was committed just now."""
        now = self._clock()
        self._changes.extend((now, change) for change in changes)
        while self._changes and self._changes[0][0] < now - _KEPT_SECONDS:
            self._changes.popleft()
            self._num_dropped += 1

    @contextmanager
    def pending(self, change: LaneChange) -> Iterator[None]:
        """Count jobs that are being submitted as if they were, until the end of the block."""
        self._pending[id(change)] = change
        try:
            yield
        finally:
            del self._pending[id(change)]

    def since(self, mark: int) -> Iterator[LaneChange]:
        """Return what was committed from this mark on, and what is about to be."""
        yield from (change for _, change in islice(self._changes, max(0, mark - self._num_dropped), None))
        yield from self._pending.values()
