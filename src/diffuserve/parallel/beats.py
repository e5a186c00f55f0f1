"""A sign of life of every rank, every two seconds, through torchrun's key-value store.

A rank that is killed or frozen leaves the others waiting in a collective, which may take minutes to
give up. Beats go another way, on a thread of their own: who misses one for ten seconds ends its own
process, so that the whole group is started anew.
"""

import logging
import os
import threading
import time
from collections.abc import Callable

from torch.distributed.distributed_c10d import PrefixStore, Store

log = logging.getLogger(__name__)

BEAT_SECONDS = 2.0
SILENCE_SECONDS = 10.0
BROKEN = 70
"""The exit code of a process that leaves a broken group."""


class Watch:
    """Who was last heard when. Pure, but for what it is told."""

    def __init__(self, ranks: int, now: float, silence_seconds: float = SILENCE_SECONDS) -> None:
        self._silence_seconds = silence_seconds
        self._counts = [0] * ranks
        self._heard = [now] * ranks

    def hear(self, counts: list[int], now: float) -> None:
        for rank, count in enumerate(counts):
            if count != self._counts[rank]:
                self._counts[rank], self._heard[rank] = count, now

    def silent(self, now: float) -> list[int]:
        return [rank for rank, heard in enumerate(self._heard) if now - heard > self._silence_seconds]


class Beats:
    """This rank's beat, and its ear for the others'."""

    def __init__(self, rank: int, size: int, store: Store, on_silence: Callable[[list[int]], None]) -> None:
        self._rank, self._size = rank, size
        self._store = PrefixStore("beats", store)
        self._on_silence = on_silence
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="beats", daemon=True)

    def start(self) -> None:
        """Once the model is loaded: what loads may hold everything up for long."""
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        watch, count = Watch(self._size, time.monotonic()), 0
        keys = [str(rank) for rank in range(self._size)]
        while not self._is_over.wait(BEAT_SECONDS):
            count += 1
            try:
                self._store.set(keys[self._rank], str(count))
                watch.hear([self._count(key) for key in keys], time.monotonic())
            except RuntimeError as error:  # the store went with torchrun
                log.error("rank %d cannot beat: %s", self._rank, error)
                self._on_silence([])
            if silent := watch.silent(time.monotonic()):
                self._on_silence(silent)

    def _count(self, key: str) -> int:
        """0 of a rank that still loads."""
        return int(self._store.get(key)) if self._store.check([key]) else 0


def leave_broken_group(silent: list[int]) -> None:
    who = f"ranks {', '.join(map(str, silent))} are" if silent else "the others are"
    log.error("%s silent; this process ends, and the group is started anew", who)
    os._exit(BROKEN)
