"""State of a job that is followed, shared by all that follow it in one process."""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any

from diffuserve.api.following.streamed_events import StreamedEvent
from diffuserve.domain.errors import JobNotFound
from diffuserve.domain.jobs.job import Job, JobEvent, JobStatus

Update = Job | StreamedEvent
"""A state of the job, or a live event; entries of the log are read from `JobFeed.log`."""

_MAX_RECENT = 32  # a follower that is further behind skips to the job's current state
_WOKEN_AT_ONCE = 25  # followers woken before other requests are served
_CROWD = 100  # followers of one job beyond which live events are thinned out
_SECONDS_PER_FOLLOWER = 0.0015  # between two live events of a crowded job, for each of its followers


class FanOut:
    """Wakes many tasks in groups, so that the event loop serves other work in between."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    def wake(self, futures: Iterable[asyncio.Future[None]]) -> None:
        """Wake the tasks that wait for these futures, after those that are being woken."""
        is_idle = not self._waiting
        self._waiting.extend(futures)
        if is_idle and self._waiting:
            self._wake_some()

    def _wake_some(self) -> None:
        for _ in range(min(_WOKEN_AT_ONCE, len(self._waiting))):
            future = self._waiting.popleft()
            if not future.done():  # else its task was canceled, or its time is over
                future.set_result(None)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._wake_some)


class JobFeed:
    """The newest state of a job, its log, and the updates that its followers may not have seen yet.

    All followers read the same updates, each from its own position. So a slow follower blocks nobody and
    needs no buffer of its own. One that is too far behind skips to the job's current state; it loses live
    events but no entry of the log.
    """

    def __init__(self, job: Job, fan_out: FanOut, on_changed: Callable[[str], None]) -> None:
        """`on_changed` is called with the job's id when the job must be read again."""
        self.job = job
        self.log: list[StreamedEvent] = []
        self.is_gone = False
        self.is_stale = False
        self.is_behind = False
        self.num_followers = 0
        self.num_watching = 0  # followers that want every state; the others wait for the end
        self.wants_log = False  # stays set, so that a log once read stays complete
        self._fan_out = fan_out
        self._on_changed = on_changed
        self._recent: deque[Update] = deque(maxlen=_MAX_RECENT)
        self._num_updates = 0
        self._heard: deque[Mapping[str, Any]] = deque(maxlen=_MAX_RECENT)
        self._pause: asyncio.TimerHandle | None = None
        self._waiting: dict[asyncio.Future[None], None] = {}  # in order of arrival
        self.resources = ExitStack()
        self.resources.callback(self._cancel_pause)

    @property
    def newest(self) -> int:
        """Place behind the newest update, from which a new follower reads on."""
        return self._num_updates

    @property
    def has_log(self) -> bool:
        """True once the log was read; its first entry is written with the job."""
        return bool(self.log)

    def invalidate(self) -> None:
        """Request a new read of the job; later messages are published after its new state."""
        self.is_stale = True
        self._on_changed(self.job.id)

    def hear(self, message: Mapping[str, Any]) -> None:
        """Handle a message of the bus."""
        if message["type"] == "changed":
            if self.num_watching or message.get("status") != JobStatus.RUNNING:
                self.invalidate()
            else:  # nobody waits for that
                self.is_behind = True
        elif self.num_watching:
            self._heard.append(message)
            self._release_heard()

    def update(self, job: Job, log: Iterable[JobEvent], is_stale: bool) -> None:
        """Store the job as it was read, with its whole log if that was read too.

        `is_stale` means that the job has changed again since.
        """
        self.is_stale, self.is_behind = is_stale, False
        known = len(self.log)
        new = [StreamedEvent.stored(event) for event in log if event.seq > known]
        if job.version >= self.job.version and (new or job != self.job):
            self.log += new
            self.job = job
            self._publish([job])
        self._release_heard()

    def end(self) -> None:
        """Record that the job was deleted."""
        self.is_gone = True
        self._publish([])

    def since(self, place: int) -> list[Update]:
        """Return the updates from `place` on, or the current job if some of them are forgotten.

        Raise `JobNotFound` if there are none, and the job was deleted.
        """
        missed = self._num_updates - place
        if self.is_gone and not missed:
            raise JobNotFound(f"no job {self.job.id}")
        if missed > len(self._recent):
            return [self.job]
        return list(self._recent)[len(self._recent) - missed :]

    async def wait(self, end: float = math.inf) -> None:
        """Wait for an update, at the longest until the time `end` of the event loop."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._waiting[future] = None
        timer = None if end == math.inf else loop.call_at(end, _set, future)
        try:
            await future
        finally:
            self._waiting.pop(future, None)
            if timer is not None:
                timer.cancel()

    def _release_heard(self) -> None:
        """Publish pending messages, unless a new state comes first or a crowd's pause is not over."""
        if self.is_stale or self._pause is not None or not self._heard:
            return
        heard, is_crowded = list(self._heard), self.num_followers > _CROWD
        self._heard.clear()
        if is_crowded:
            heard = list({(message["type"], message.get("image")): message for message in heard}.values())
            pause = self.num_followers * _SECONDS_PER_FOLLOWER
            self._pause = asyncio.get_running_loop().call_later(pause, self._end_pause)
        self._publish([StreamedEvent.live(self.job.id, message) for message in heard])

    def _end_pause(self) -> None:
        self._pause = None
        self._release_heard()

    def _cancel_pause(self) -> None:
        if self._pause is not None:
            self._pause.cancel()

    def _publish(self, updates: Iterable[Update]) -> None:
        for update in updates:
            self._recent.append(update)
            self._num_updates += 1
        waiting, self._waiting = self._waiting, {}
        self._fan_out.wake(waiting)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
