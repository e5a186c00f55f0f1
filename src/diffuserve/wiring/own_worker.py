"""What a server knows of the worker that it runs itself."""

import asyncio
import logging
import socket
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING

from diffuserve.backoff import Backoff, RestartPolicy
from diffuserve.domain.errors import LeaseLost, ServerUnavailable
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.domain.workers.readiness import is_ready
from diffuserve.domain.workers.worker import LoadProgress, Release, ReleaseCause, Worker
from diffuserve.settings import Settings

if TYPE_CHECKING:
    from diffuserve.jobs.store import JobStore

RESTARTS = RestartPolicy(Backoff(first_seconds=0.5, longest_seconds=30.0), healthy_seconds=60.0)
"""When a worker is started again that has ended by itself."""
STOP_MARGIN = 25.0
"""Seconds beside its drain that a stopping worker may take, for the last checkpoints and uploads."""
_LOOK_SECONDS = 0.2
_MANY = 1_000  # more than any worker holds

log = logging.getLogger(__name__)


def log_restart(code: int, pause_seconds: float) -> None:
    """Log that the worker ended with this code, and starts again after a pause."""
    log.warning("the worker ended with code %d; starting another in %.1f s", code, pause_seconds)


def name_of(settings: Settings) -> str:
    """Return a name for the worker that is the same at each start on this data folder, and unique."""
    return f"serve:{socket.gethostname()}:{settings.data_dir.resolve()}"


async def release_jobs_of(store: "JobStore", name: str) -> None:
    """Release the jobs that are leased to an earlier worker of that name.

    It died with its server, so there is no need to wait until its leases expire.
    """
    dead = {worker.id for worker in await store.operations.workers() if worker.name == name}
    held = (JobStatus.RUNNING, JobStatus.CANCELING)
    for job in await store.jobs.list_jobs(statuses=held, limit=_MANY) if dead else ():
        if job.worker_id in dead:
            with suppress(LeaseLost):
                restarted = Release(lease_token=job.lease_token, cause=ReleaseCause.SERVER_RESTARTED)
                await store.leases.release(job.id, restarted)


async def wait_until_ready(
    worker: asyncio.Task[int],
    store: "JobStore",
    known: Collection[str],
    timeout: float | None = None,
    on_look: Callable[[LoadProgress | None], None] = lambda _progress: None,
) -> None:
    """Wait until a worker that is not among the `known` ids is ready.

    Its progress is passed to `on_look` at every look. Raise `ServerUnavailable` after `timeout` seconds, or
    if the worker ends.
    """
    try:
        async with asyncio.timeout(timeout):
            while not any(map(is_ready, new := await _new_workers(store, known))):
                if worker.done():
                    raise ServerUnavailable("the worker could not start; see its log")
                on_look(new[-1].report.loading if new else None)
                await asyncio.sleep(_LOOK_SECONDS)
    except TimeoutError:
        raise ServerUnavailable(f"no worker was ready after {timeout:g} s") from None


async def _new_workers(store: "JobStore", known: Collection[str]) -> list[Worker]:
    return [worker for worker in await store.operations.workers() if worker.id not in known]
