"""Jobs whose progress is being watched: workers report these more often than others."""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from diffuserve.events.base import EventBus, watch_topic

_LOOK_SECONDS = 10.0
"""Seconds for which a job counts as watched after a client has read it: clients poll more often."""


class WatchedJobs:
    """Announces on the bus which jobs are watched here, and receives other control planes' announcements."""

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        self._looks: dict[str, tuple[ExitStack, asyncio.TimerHandle]] = {}

    def watching(self, job_id: str) -> AbstractContextManager[object]:
        """Return a context in which the job is watched."""
        return self._bus.listen(watch_topic(job_id), _ignore)

    def look(self, job_id: str) -> None:
        """Count the job as watched for a while, since a client has read it."""
        if job_id in self._looks:
            watching, timer = self._looks[job_id]
            timer.cancel()
        else:
            watching = ExitStack()
            watching.enter_context(self.watching(job_id))
        timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look_away, job_id)
        self._looks[job_id] = watching, timer

    def among(self, job_ids: Iterable[str]) -> tuple[str, ...]:
        """Return those of the jobs that are watched, at any control plane."""
        return tuple(job_id for job_id in job_ids if self._bus.is_watched(watch_topic(job_id)))

    def _look_away(self, job_id: str) -> None:
        watching, _ = self._looks.pop(job_id)
        watching.close()


def _ignore(_message: Mapping[str, Any]) -> None:
    """Take no message: none is published on this topic."""
