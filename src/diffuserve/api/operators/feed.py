"""Changes of the server, computed once for all that watch it."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager

import orjson
from sse_starlette import ServerSentEvent

from diffuserve.api.operators.snapshots import Snapshot, Snapshots
from diffuserve.domain.deltas import delta
from diffuserve.domain.errors import ServerUnavailable
from diffuserve.telemetry.log_fields import once_a_minute

log = logging.getLogger(__name__)

PERIOD_SECONDS = 2.0
_MAX_RECENT = 8  # changes that a watcher may be behind before it gets the whole state again


class OverviewFeed:
    """The newest state of the server and its last changes, which all watchers read, each from its own place.

    The store is read while anybody watches, every two seconds.
    """

    def __init__(self, snapshots: Snapshots, period_seconds: float = PERIOD_SECONDS) -> None:
        self._snapshots = snapshots
        self._period_seconds = period_seconds
        self._newest: Snapshot | None = None
        self._changes: deque[bytes] = deque(maxlen=_MAX_RECENT)
        self._num_changes = 0
        self._num_watchers = 0
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def events(self) -> AsyncGenerator[bytes]:
        """Yield the state as server-sent event `snapshot`, then each of its changes as `delta`, forever.

        A watcher that is too far behind gets the state again. Raise `ServerUnavailable` if there is none yet.
        """
        with self._watched():
            if self._newest is None:
                first = await self._snapshots.newest()
                self._newest = self._newest or first
            place = -_MAX_RECENT - 1
            while True:
                missed, place, changed = self._num_changes - place, self._num_changes, self._changed
                if missed > len(self._changes):
                    yield _event("snapshot", self._newest, self._newest.encoded)
                else:
                    for change in list(self._changes)[len(self._changes) - missed :]:
                        yield change
                await changed.wait()

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Read the store for this watcher and all others, until the last has gone."""
        self._num_watchers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._read_forever(), name="overview-feed")
        try:
            yield
        finally:
            self._num_watchers -= 1
            if not self._num_watchers:
                self._task.cancel()
                self._task, self._newest = None, None
                self._changes.clear()

    async def _read_forever(self) -> None:
        while True:
            await asyncio.sleep(self._period_seconds)
            try:
                self._publish(await self._snapshots.newest())
            except ServerUnavailable as error:
                log.warning("watchers see no news: %s", error, extra=once_a_minute())

    def _publish(self, snapshot: Snapshot) -> None:
        """Send the change since the newest state; `at` and `revision` at least have changed."""
        if self._newest is not None:
            change = delta(self._newest.content, snapshot.content)
            self._changes.append(_event("delta", snapshot, orjson.dumps(change)))
            self._num_changes += 1
        self._newest = snapshot
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _event(kind: str, snapshot: Snapshot, data: bytes) -> bytes:
    event_id = str(snapshot.resource.revision)
    return ServerSentEvent(data.decode(), event=kind, id=event_id, sep="\n").encode()
