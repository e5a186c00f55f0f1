"""Metrics of jobs' waits and runs, measured without further reads of the store."""

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from cachetools import LRUCache

from diffuserve.domain.errors import DiffuserveError
from diffuserve.domain.jobs.job import Job, JobStatus
from diffuserve.domain.workers.worker import Lease
from diffuserve.jobs.policy.charges import SLACK_SECONDS
from diffuserve.jobs.store import JobStore
from diffuserve.telemetry.metrics import ControlMetrics

_MAX_JOBS = 200_000


@dataclass(frozen=True)
class _Run:
    """A run that began at `started_at`, at most `earlier_seconds` after the work that it resumes."""

    model: str
    steps: int
    started_at: float
    is_whole: bool = True  # not only its decoding
    earlier_seconds: float = 0.0


class JobMetrics:
    """Remembers the jobs that this process accepted and leased; reads others from the store."""

    def __init__(self, store: JobStore, metrics: ControlMetrics) -> None:
        self._store = store
        self._metrics = metrics
        self._accepted: LRUCache[str, float] = LRUCache(_MAX_JOBS)
        self._runs: LRUCache[str, _Run] = LRUCache(_MAX_JOBS)

    def record_accepted(self, job: Job) -> None:
        """Count a submitted job, and remember when its wait began."""
        self._metrics.accepted.labels(job.model, job.band).inc()
        self._accepted[job.id] = time.monotonic()

    def record_claimed(self, leases: Iterable[Lease]) -> None:
        """Observe how long each job waited, and remember when its run began."""
        now = time.monotonic()
        for lease in leases:
            self._metrics.leases_granted.labels(lease.model).inc()
            self._metrics.checkpoints_resumed.inc(lease.checkpoint is not None)
            accepted_at = self._accepted.pop(lease.job_id, None)
            if accepted_at is not None:
                self._metrics.queue_seconds.observe(now - accepted_at)
            steps = int(lease.input.get("num_inference_steps") or 0)
            earlier = 0.0 if lease.checkpoint is None else max(time.time() - lease.created_at, 0.0)
            self._runs[lease.job_id] = _Run(lease.model, steps, now, lease.latents is None, earlier)

    async def record_run_end(
        self,
        job_id: str,
        status: JobStatus,
        device_seconds: float | None = None,
        useful: JobStatus | None = None,
    ) -> None:
        """Observe an attempt that its worker has ended, which left the job in `status`.

        Its device-seconds were useful if the job succeeded, or is in the status `useful`. At most the elapsed
        seconds are counted.
        """
        with suppress(DiffuserveError):  # the outcome is stored already; its metrics are not worth an error
            run = self._runs.pop(job_id, None) or await self._stored_run(job_id)
            self._observe(run, status, device_seconds or 0.0, status in (JobStatus.SUCCEEDED, useful))

    def _observe(self, run: _Run, status: JobStatus, device_seconds: float, is_useful: bool) -> None:
        metrics, seconds = self._metrics, time.monotonic() - run.started_at
        metrics.run_seconds.observe(seconds)
        possible = min(max(device_seconds, 0.0), run.earlier_seconds + seconds + SLACK_SECONDS)
        metrics.device_seconds.labels(run.model, _outcome(status, is_useful)).inc(possible)
        if status is JobStatus.SUCCEEDED and run.is_whole:
            metrics.generation_seconds.labels(run.model, str(run.steps)).observe(seconds)

    async def _stored_run(self, job_id: str) -> _Run:
        job = await self._store.jobs.get(job_id)
        seconds = max((job.finished_at or time.time()) - (job.started_at or job.created_at), 0.0)
        steps = int(job.input.get("num_inference_steps") or 0)
        return _Run(job.model, steps, time.monotonic() - seconds)


def _outcome(status: JobStatus, is_useful: bool) -> str:
    if is_useful:
        return "useful"
    return "canceled" if status is JobStatus.CANCELED else "lost"
