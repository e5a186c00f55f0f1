"""The way out of a job: files, then the last word. Each is a task, so that none waits for another's."""

import asyncio
import logging
import shutil
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from diffuserve.client.leases import LeaseClient
from diffuserve.domain.errors import DiffuserveError, LeaseLost, ServerUnavailable, UploadMissing
from diffuserve.domain.job import Artifact, JobError, JobResult, Phase
from diffuserve.domain.worker import Completion, Failure, ProgressReport, Release, ReleaseCause
from diffuserve.worker.held_jobs import HeldJob
from diffuserve.worker.messages import Done, Failed, FinishedFile, Previewed
from diffuserve.worker.metrics import WorkerMetrics

log = logging.getLogger(__name__)

_UPLOADS, _UPLOAD_PAUSE = 3, 1.0  # of a result whose files do not arrive, before another worker may try


class ResultReporter:
    """Says the last words on jobs; `forget` is told of each job that is off the worker's hands."""

    def __init__(
        self, client: LeaseClient, metrics: WorkerMetrics, forget: Callable[[HeldJob], None]
    ) -> None:
        self._client = client
        self._metrics = metrics
        self._forget = forget
        self._tasks: set[asyncio.Task[None]] = set()
        self._previews: dict[str, asyncio.Task[None]] = {}

    def done(self, job: HeldJob, done: Done) -> None:
        self._start(self._end(job, self._complete(job, done)))

    def failed(self, job: HeldJob, failed: Failed) -> None:
        error = JobError(failed.code, failed.message, failed.retryable, failed.safety)
        self._start(self._end(job, self._fail(job, error)))

    def release(
        self,
        job: HeldJob,
        cause: ReleaseCause,
        patience_seconds: float | None = None,
        is_suspect: bool = False,
    ) -> None:
        release = Release(lease_token=job.lease.lease_token, cause=cause, is_suspect=is_suspect)
        self._start(self._end(job, self._release(job, release, patience_seconds)))

    def preview(self, job: HeldJob, shown: Previewed) -> None:
        """Previews of a job go out one after another, and before its result."""
        before = self._previews.get(job.attempt)
        report = ProgressReport(
            lease_token=job.lease.lease_token,
            phase=Phase.DENOISE,
            step=shown.step,
            total=shown.total,
            preview=shown.png,
            preview_index=shown.index,
        )
        self._previews[job.attempt] = self._start(self._report(job, report, before))

    def progress(self, job: HeldJob) -> None:
        job.has_news = False
        report = ProgressReport(
            lease_token=job.lease.lease_token, phase=job.phase, step=job.step, total=job.total
        )
        self._start(self._report(job, report, None))

    async def all_said(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _end(self, job: HeldJob, last_word: Coroutine[Any, Any, str]) -> None:
        """Whatever goes wrong with one job's last word, the worker goes on."""
        try:
            status = await last_word
        except LeaseLost:
            status = "lease_lost"
            self._metrics.lease_lost()
            log.warning("job %s: the lease is lost; its work is dropped", job.lease.job_id)
        except ServerUnavailable as error:
            status = "unreported"
            log.error("job %s: %s", job.lease.job_id, error)
        except Exception:
            status = "unreported"
            log.exception("job %s: its end could not be reported", job.lease.job_id)
        self._metrics.job_ended(status)
        self._forget(job)
        shutil.rmtree(job.folder, ignore_errors=True)

    async def _complete(self, job: HeldJob, done: Done) -> str:
        if (preview := self._previews.pop(job.attempt, None)) is not None:
            await asyncio.wait({preview})
        try:
            return await self._deliver(job, done, _UPLOADS)
        except (OSError, DiffuserveError) as error:
            if isinstance(error, LeaseLost | ServerUnavailable):
                raise
            return await self._fail(job, JobError("upload_failed", str(error), retryable=True))

    async def _deliver(self, job: HeldJob, done: Done, num_tries: int) -> str:
        """Files that did not arrive are sent again: they are still here, and nothing is drawn anew."""
        artifacts = await asyncio.gather(*(self._upload(job, file) for file in done.files))
        try:
            return await self._publish(job, done, artifacts)
        except UploadMissing as error:
            if num_tries == 1:
                raise
            log.warning("job %s: %s", job.lease.job_id, error)
        await asyncio.sleep(_UPLOAD_PAUSE)
        return await self._deliver(job, done, num_tries - 1)

    async def _publish(self, job: HeldJob, done: Done, artifacts: Sequence[Artifact]) -> str:
        result = JobResult(
            artifacts=tuple(artifacts),
            input=done.input,
            timings=done.timings,
            warnings=done.warnings,
            safety=done.safety,
        )
        completion = Completion(
            lease_token=job.lease.lease_token, result=result, actual_seconds=done.actual_seconds
        )
        return (await self._client.complete(job.lease.job_id, completion)).status

    async def _upload(self, job: HeldJob, file: FinishedFile) -> Artifact:
        job.move(Phase.UPLOAD, job.step, job.total)
        content = Path(file.path).read_bytes()
        stored = await self._client.upload(job.lease.job_id, job.lease.lease_token, file.name, content)
        return Artifact(
            name=file.name,
            content_type=file.content_type,
            size_bytes=stored.size_bytes,
            sha256=stored.sha256,
            width=file.width,
            height=file.height,
            index=file.index,
            role=file.role,
            seed=file.seed,
        )

    async def _fail(self, job: HeldJob, error: JobError) -> str:
        self._previews.pop(job.attempt, None)
        log.info("job %s failed: %s", job.lease.job_id, error.message)
        failure = Failure(lease_token=job.lease.lease_token, error=error)
        return (await self._client.fail(job.lease.job_id, failure)).status

    async def _release(self, job: HeldJob, release: Release, patience_seconds: float | None) -> str:
        self._previews.pop(job.attempt, None)
        return (await self._client.release(job.lease.job_id, release, patience_seconds)).status

    async def _report(self, job: HeldJob, report: ProgressReport, after: asyncio.Task[None] | None) -> None:
        if after is not None:
            await asyncio.wait({after})
        try:
            await self._client.report(job.lease.job_id, report)
        except DiffuserveError as error:  # the heartbeat will tell what matters
            log.debug("job %s: progress was not taken (%s)", job.lease.job_id, error)
