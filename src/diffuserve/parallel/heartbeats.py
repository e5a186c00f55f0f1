"""Heartbeats of ranks: each writes a count to the group's key-value store every two seconds.

If a rank is killed or frozen, the others wait for it in a collective, which may take minutes to time
out. Heartbeats bypass the collectives, on a thread of their own: a rank that misses another's for ten
seconds ends its own process, so that the whole group is restarted.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

from torch.distributed.distributed_c10d import PrefixStore, Store

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 2.0
SILENCE_SECONDS = 10.0
BROKEN_GROUP = 70
"""The exit code of a process that leaves a broken group."""


class HeartbeatWatch:
    """Keeps when each rank's count last changed. Pure: counts and times are given to it."""

    def __init__(self, num_ranks: int, now: float, silence_seconds: float = SILENCE_SECONDS) -> None:
        self._silence_seconds = silence_seconds
        self._counts = [0] * num_ranks
        self._changed_at = [now] * num_ranks

    def update(self, counts: Sequence[int], now: float) -> None:
        """Note the counts of all ranks as of `now`."""
        for rank, count in enumerate(counts):
            if count != self._counts[rank]:
                self._counts[rank], self._changed_at[rank] = count, now

    def silent(self, now: float) -> list[int]:
        """Return the ranks whose counts have not changed for longer than `silence_seconds`."""
        return [rank for rank, at in enumerate(self._changed_at) if now - at > self._silence_seconds]


class RankHeartbeats:
    """Sends this rank's heartbeats and watches the others'.

    `on_silence` is called with the silent ranks, or with none if the store itself is gone.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        store: Store,
        on_silence: Callable[[list[int]], None],
        interval_seconds: float = HEARTBEAT_SECONDS,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        self._rank, self._size = rank, size
        self._store = PrefixStore("heartbeats", store)
        self._on_silence = on_silence
        self._interval_seconds, self._silence_seconds = interval_seconds, silence_seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rank-heartbeats", daemon=True)

    def start(self) -> None:
        """Start to send and to watch, once the model is loaded: loading may block all threads for long."""
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        watch, count = HeartbeatWatch(self._size, time.monotonic(), self._silence_seconds), 0
        while not self._stopped.wait(self._interval_seconds):
            count += 1
            try:
                self._store.set(str(self._rank), str(count))
                watch.update([self._count(rank) for rank in range(self._size)], time.monotonic())
            except RuntimeError as error:  # the store ended with the launcher of rank 0
                log.error("rank %d cannot send its heartbeat: %s", self._rank, error)
                self._on_silence([])
            if silent := watch.silent(time.monotonic()):
                self._on_silence(silent)

    def _count(self, rank: int) -> int:
        """Return the count of a rank; 0 while it still loads."""
        key = str(rank)
        return int(self._store.get(key)) if self._store.check([key]) else 0


def leave_broken_group(silent: Sequence[int]) -> NoReturn:
    """End this process, as the ranks in `silent`, or unknown ones if it is empty, do not respond."""
    ranks = f"ranks {', '.join(map(str, silent))} are" if silent else "the other ranks are"
    log.error("%s silent; this process ends, and the group is restarted", ranks)
    os._exit(BROKEN_GROUP)
