"""Log lines about jobs: one for each that has ended, and the throughput while there is work."""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from diffuserve.domain.errors import ServerUnavailable
from diffuserve.domain.jobs.job import EndedJob, JobStatus
from diffuserve.domain.workers.worker import Worker, WorkerState
from diffuserve.jobs.reads.operations import Operations
from diffuserve.telemetry.log_fields import fields
from diffuserve.telemetry.tracing import trace_id_of

log = logging.getLogger(__name__)

_PERIOD_SECONDS = 10.0


@dataclass
class JobLog:
    """Logs the jobs that end through this process, and what all processes together do meanwhile."""

    operations: Operations
    _num_images: int = 0

    def note(self, job: EndedJob) -> None:
        """Log the end of a job, as a warning if it has failed."""
        images = int(job.input.get("num_images") or 1)
        if job.status is JobStatus.SUCCEEDED:
            self._num_images += images
        started_at = job.started_at or job.finished_at
        log.log(
            logging.WARNING if job.status is JobStatus.FAILED else logging.INFO,
            "job finished",
            extra=fields(
                job_id=job.id,
                tenant=job.tenant_id,
                model=job.model,
                status=job.status.value,
                error=job.error_code,
                worker_id=job.worker_id,
                trace_id=trace_id_of(job.traceparent),
                size=_size(job.input),
                steps=job.input.get("num_inference_steps"),
                images=images,
                queue_seconds=round(started_at - job.created_at, 3),
                run_seconds=round(job.finished_at - started_at, 3),
            ),
        )

    async def run(self) -> None:
        """Log the throughput every ten seconds in which images were finished, or jobs run or wait."""
        loop = asyncio.get_running_loop()
        since = loop.time()
        while True:
            await asyncio.sleep(_PERIOD_SECONDS)
            seconds, since = loop.time() - since, loop.time()
            with suppress(ServerUnavailable):  # logged where it was noticed
                await self.report(seconds)

    async def report(self, seconds: float) -> None:
        """Log the throughput of the last `seconds`, unless there was no work and there is none now."""
        images_per_second, self._num_images = self._num_images / seconds, 0
        waiting = sum(lane.num_ready for lane in await self.operations.lanes())
        workers = await self.operations.workers()
        running = sum(worker.num_leases for worker in workers)
        if not (images_per_second or running or waiting):
            return
        log.info(
            "throughput",
            extra=fields(
                images_per_second=round(images_per_second, 2),
                running=running,
                waiting=waiting,
                mean_batch=mean_batch(workers),
                workers=sum(worker.state is not WorkerState.LOST for worker in workers),
            ),
        )


def _size(values: Mapping[str, Any]) -> str:
    if values.get("width") is None:
        return f"{values.get('seconds')} s"
    return f"{values['width']}x{values['height']}"


def mean_batch(workers: Iterable[Worker]) -> float | None:
    """Return the mean of the live workers' mean batches; `None` if none of them took a step lately."""
    means = [worker.report.mean_batch for worker in workers if worker.state is not WorkerState.LOST]
    known = [mean for mean in means if mean is not None]
    return round(sum(known) / len(known), 2) if known else None
