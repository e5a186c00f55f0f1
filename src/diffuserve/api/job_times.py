"""How long jobs wait and run, for the metrics, without asking the store again."""

import time
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from diffuserve.domain.errors import DiffuserveError
from diffuserve.domain.job import Job, JobStatus
from diffuserve.domain.worker import Lease
from diffuserve.jobs.store import JobStore
from diffuserve.telemetry.metrics import ControlMetrics

_MAX_JOBS = 200_000


@dataclass(frozen=True)
class _Run:
    model: str
    steps: int
    started_at: float


class JobTimes:
    """Remembers what this process took in and gave out; asks the store about what others gave out."""

    def __init__(self, store: JobStore, metrics: ControlMetrics) -> None:
        self._store = store
        self._metrics = metrics
        self._accepted: OrderedDict[str, float] = OrderedDict()
        self._runs: OrderedDict[str, _Run] = OrderedDict()

    def accepted(self, job: Job) -> None:
        self._metrics.accepted.labels(job.model, job.band).inc()
        self._accepted[job.id] = time.monotonic()
        _trim(self._accepted)

    def claimed(self, leases: Iterable[Lease]) -> None:
        now = time.monotonic()
        for lease in leases:
            accepted_at = self._accepted.pop(lease.job_id, None)
            if accepted_at is not None:
                self._metrics.queue_seconds.observe(now - accepted_at)
            steps = int(lease.input.get("num_inference_steps") or 0)
            self._runs[lease.job_id] = _Run(lease.model, steps, now)
        _trim(self._runs)

    async def run_ended(self, job_id: str, status: JobStatus, gpu_seconds: float = 0.0) -> None:
        """After a worker's last word on an attempt, which left the job in `status`."""
        with suppress(DiffuserveError):  # the word is stored; its metrics are not worth an error
            run = self._runs.pop(job_id, None) or await self._stored_run(job_id)
            self._count(run, status, gpu_seconds)

    def _count(self, run: _Run, status: JobStatus, gpu_seconds: float) -> None:
        metrics, seconds = self._metrics, time.monotonic() - run.started_at
        metrics.run_seconds.observe(seconds)
        outcome = "useful" if status is JobStatus.SUCCEEDED else "wasted"
        metrics.device_seconds.labels(run.model, outcome).inc(max(gpu_seconds, 0.0))
        if status is JobStatus.SUCCEEDED:
            metrics.generation_seconds.labels(run.model, str(run.steps)).observe(seconds)

    async def _stored_run(self, job_id: str) -> _Run:
        job = await self._store.jobs.get(job_id)
        seconds = max((job.finished_at or time.time()) - (job.started_at or job.created_at), 0.0)
        steps = int(job.input.get("num_inference_steps") or 0)
        return _Run(job.model, steps, time.monotonic() - seconds)


def _trim(entries: OrderedDict[str, float] | OrderedDict[str, _Run]) -> None:
    while len(entries) > _MAX_JOBS:
        entries.popitem(last=False)
