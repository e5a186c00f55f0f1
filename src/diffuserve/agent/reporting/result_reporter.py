"""Reports of jobs to the control plane. Each is a task of its own, so that no job waits for another's."""

import asyncio
import base64
import hashlib
import logging
import shutil
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from diffuserve.agent.metrics import WorkerMetrics
from diffuserve.agent.reporting.checkpoint_reporter import CheckpointReporter
from diffuserve.agent.reporting.job_spans import JobSpans
from diffuserve.agent.reporting.live_reporter import LiveReporter
from diffuserve.agent.state.held_job import HeldJob
from diffuserve.client.leases import LeaseClient
from diffuserve.domain.errors import (
    DiffuserveError,
    Forbidden,
    LeaseLost,
    ServerUnavailable,
    StorageAway,
    Unauthorized,
    UploadFailed,
    UploadMissing,
)
from diffuserve.domain.jobs.job import IMAGE_GENERATE, Artifact, JobError, JobResult, JobStatus, Phase
from diffuserve.domain.jobs.progress_report import ProgressReport, WorkerProgress
from diffuserve.domain.workers.worker import (
    LATENTS_NAME,
    Completion,
    Failure,
    HandOver,
    Release,
    ReleaseCause,
    StoredFile,
)
from diffuserve.protocol.messages import FinishedFile, JobDenoised, JobFailed, JobFinished, PreviewReady
from diffuserve.telemetry import log_context, tracing

log = logging.getLogger(__name__)

LEASE_LOST = "lease_lost"
"""How an attempt is counted whose lease was lost."""

# How often a result whose files do not arrive is uploaded before the job is left to another worker.
_NUM_UPLOADS, _UPLOAD_PAUSE_SECONDS = 3, 1.0
# Limit of the cleanup of a job's stored files before its release, as uploads may hang.
_TIDY_SECONDS = 6.0
# Limit of concurrent uploads of clips, which leaves connections, memory and bandwidth to images.
_MAX_CLIP_UPLOADS = 4


class ResultReporter:
    """Reports progress and outcomes; `forget` is called with each job whose outcome was reported.

    An outcome that cannot be reported is logged and counted, and the job is forgotten too: its lease then
    expires.
    """

    def __init__(
        self,
        client: LeaseClient,
        metrics: WorkerMetrics,
        forget: Callable[[HeldJob], None],
        spans: JobSpans | None = None,
    ) -> None:
        self._client = client
        self._metrics = metrics
        self._forget = forget
        self._spans = spans or JobSpans()
        self._tasks: set[asyncio.Task[None]] = set()
        self._deliveries: dict[str, asyncio.Task[None]] = {}
        self.live = LiveReporter(client, self._start)
        self.checkpoints = CheckpointReporter(client, self._start)
        self._last_previews: dict[str, asyncio.Task[None]] = {}
        self._clip_uploads = asyncio.Semaphore(_MAX_CLIP_UPLOADS)

    def finished(self, job: HeldJob, finished: JobFinished | JobDenoised) -> None:
        """Upload a job's files and complete it, or upload its latents and hand it over for decoding."""
        delivery = self._start(self._report_outcome(job, self._complete(job, finished)))
        self._deliveries[job.attempt] = delivery
        delivery.add_done_callback(lambda _done: self._deliveries.pop(job.attempt, None))

    def take_back(self, job: HeldJob) -> bool:
        """Stop delivering a finished job that waits for the artifact store; return whether it was waiting."""
        delivery = self._deliveries.get(job.attempt)
        if delivery is None or not self._client.is_storage_away:
            return False
        delivery.cancel()
        return True

    def failed(self, job: HeldJob, failed: JobFailed) -> None:
        error = JobError(failed.code, failed.message, failed.retryable, failed.safety)
        self._start(self._report_outcome(job, self._fail(job, error, failed.actual_seconds)))

    def release(
        self,
        job: HeldJob,
        cause: ReleaseCause,
        patience_seconds: float | None = None,
        is_suspect: bool = False,
    ) -> None:
        """Release a job to the queue."""
        release = Release(lease_token=job.lease.lease_token, cause=cause, is_suspect=is_suspect)
        self._start(
            self._report_outcome(job, self._release(job, release, patience_seconds), "it is not released")
        )

    def preview(self, job: HeldJob, preview: PreviewReady) -> None:
        """Report a preview after the job's earlier ones; the job's result waits for all of them."""
        before = self._last_previews.get(job.attempt)
        report = ProgressReport(
            lease_token=job.lease.lease_token,
            phase=Phase.DENOISE,
            step=preview.step,
            total=preview.total,
            preview=preview.png,
            preview_index=preview.index,
            preview_image=preview.image,
        )
        self._last_previews[job.attempt] = self._start(self._report(job, report, before))

    def progress(self, worker_id: str, jobs: Sequence[HeldJob]) -> None:
        """Report the progress of several jobs in one request."""
        now = asyncio.get_running_loop().time()
        for job in jobs:
            job.has_unreported_progress, job.reported_at = False, now
        self._start(self._report_all(worker_id, jobs))

    async def all_reported(self) -> None:
        """Wait until no report is in progress."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _report_outcome(
        self, job: HeldJob, report: Coroutine[Any, Any, str], without_lease: str = "its work is dropped"
    ) -> None:
        """Await `report`, which returns the job's new status; errors are logged, and the worker goes on."""
        log_context.bind(**job.log_names)
        tracing.enter(job.span.context)
        try:
            status = await report
        except LeaseLost:
            status = LEASE_LOST
            self._metrics.lease_lost()
            log.warning("job %s: the lease is lost; %s", job.lease.job_id, without_lease)
        except (ServerUnavailable, Unauthorized, Forbidden) as error:
            status = "unreported"
            log.error("job %s: %s", job.lease.job_id, error)
        except Exception:
            status = "unreported"
            log.exception("job %s: its outcome could not be reported", job.lease.job_id)
        self._metrics.job_ended(status)
        self._spans.end(job, status)
        self._forget(job)
        shutil.rmtree(job.folder, ignore_errors=True)

    async def _complete(self, job: HeldJob, finished: JobFinished | JobDenoised) -> str:
        if (preview := self._last_previews.pop(job.attempt, None)) is not None:
            await asyncio.wait({preview})
        await self.live.finish(job)
        await self.checkpoints.drop(job)
        upload = self._spans.begin_upload(job)
        tracing.enter(upload.context)
        try:
            return await self._deliver(job, finished)
        except StorageAway as error:  # unavailable for longer than any wait
            return await self._fail_upload(job, error, finished.actual_seconds)
        except (LeaseLost, ServerUnavailable):
            raise
        except (OSError, DiffuserveError) as error:
            upload.fail(UploadFailed.code)
            return await self._fail_upload(job, error, finished.actual_seconds)
        finally:
            upload.end()

    async def _fail_upload(self, job: HeldJob, error: Exception, seconds: float) -> str:
        return await self._fail(job, JobError(UploadFailed.code, str(error), retryable=True), seconds)

    async def _deliver(self, job: HeldJob, finished: JobFinished | JobDenoised) -> str:
        """Upload and report; repeat this if files did not arrive, which is cheaper than another attempt."""
        for num_left in reversed(range(_NUM_UPLOADS)):
            try:
                if isinstance(finished, JobDenoised):
                    return await self._hand_over(job, finished)
                return await self._publish(job, finished)
            except UploadMissing as error:
                if num_left == 0:
                    raise
                log.warning("job %s: %s", job.lease.job_id, error)
            await asyncio.sleep(_UPLOAD_PAUSE_SECONDS)
        raise AssertionError("unreachable: the last upload returns or raises")

    async def _hand_over(self, job: HeldJob, denoised: JobDenoised) -> str:
        stored = await self._send(job, job.file(denoised.path), LATENTS_NAME)
        report = HandOver(
            lease_token=job.lease.lease_token,
            size_bytes=stored.size_bytes,
            sha256=stored.sha256,
            weights=denoised.weights,
            actual_seconds=denoised.actual_seconds,
        )
        return (await self._client.hand_over(job.lease.job_id, report)).status

    async def _publish(self, job: HeldJob, finished: JobFinished) -> str:
        begin = asyncio.get_running_loop().time()
        contents = self._inline_contents(job, finished.files)
        uploads = (self._upload(job, file, contents.get(file.name)) for file in finished.files)
        artifacts = await asyncio.gather(*uploads)
        seconds = {"upload_seconds": asyncio.get_running_loop().time() - begin}
        if job.load_seconds is not None:
            seconds["load_seconds"] = job.load_seconds
        result = JobResult(
            artifacts=tuple(artifacts),
            input=finished.input,
            timings={**finished.timings, **seconds},
            warnings=finished.warnings,
            safety=finished.safety,
        )
        completion = Completion(
            lease_token=job.lease.lease_token,
            result=result,
            actual_seconds=finished.actual_seconds,
            contents={name: base64.b64encode(content).decode() for name, content in contents.items()},
        )
        return (await self._client.complete(job.lease.job_id, completion)).status

    async def _send(self, job: HeldJob, path: Path, name: str) -> StoredFile:
        job.advance(Phase.UPLOAD, job.step, job.total)
        async with self._clip_uploads if job.lease.kind != IMAGE_GENERATE else nullcontext():
            return await self._client.upload(job.lease.job_id, job.lease.lease_token, name, path.read_bytes)

    def _inline_contents(self, job: HeldJob, files: Sequence[FinishedFile]) -> dict[str, bytes]:
        """Return the contents of a result's files by name, if they all fit into the completion request."""
        paths = {file.name: job.file(file.path) for file in files}
        if sum(path.stat().st_size for path in paths.values()) > self._client.max_inline_bytes:
            return {}
        return {name: path.read_bytes() for name, path in paths.items()}

    async def _upload(self, job: HeldJob, file: FinishedFile, content: bytes | None) -> Artifact:
        """Return the result's entry of a file, uploaded unless it is part of the completion request."""
        if content is None:
            stored = await self._send(job, job.file(file.path), file.name)
        else:
            stored = StoredFile(
                name=file.name, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest()
            )
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
            num_frames=file.num_frames,
            fps=file.fps,
            seconds=file.seconds,
            channels=file.channels,
            sample_rate=file.sample_rate,
        )

    async def _fail(self, job: HeldJob, error: JobError, seconds: float) -> str:
        self._last_previews.pop(job.attempt, None)
        await self.live.take_back(job)
        await self.checkpoints.drop(job)
        failure = Failure(lease_token=job.lease.lease_token, error=error, actual_seconds=seconds)
        status = (await self._client.fail(job.lease.job_id, failure)).status
        level = logging.INFO if status == JobStatus.CANCELED else logging.WARNING
        log.log(level, "job %s %s", job.lease.job_id, _ending(status, error))
        return status

    async def _release(self, job: HeldJob, release: Release, patience_seconds: float | None) -> str:
        self._last_previews.pop(job.attempt, None)
        tidied = {self._start(self.live.take_back(job)), self._start(self.checkpoints.finish(job))}
        await asyncio.wait(tidied, timeout=_TIDY_SECONDS)
        told = replace(release, actual_seconds=job.kept_seconds)
        return (await self._client.release(job.lease.job_id, told, patience_seconds)).status

    async def _report_all(self, worker_id: str, jobs: Sequence[HeldJob]) -> None:
        """Report progress once, and record which jobs are watched; a lost report is not worth a retry."""
        try:
            watched = await self._client.report_all(
                worker_id, WorkerProgress(jobs=tuple(job.progress for job in jobs))
            )
        except DiffuserveError as error:
            log.debug("progress of %d jobs was not accepted (%s)", len(jobs), error)
            return
        for job in jobs:
            job.is_watched = job.lease.job_id in watched

    async def _report(self, job: HeldJob, report: ProgressReport, after: asyncio.Task[None] | None) -> None:
        """Report progress once, after the task `after`; a lost report is not worth a retry."""
        if after is not None:
            await asyncio.wait({after})
        try:
            await self._client.report(job.lease.job_id, report)
        except DiffuserveError as error:  # the response to the next heartbeat says if the lease is lost
            log.debug("job %s: progress was not accepted (%s)", job.lease.job_id, error, extra=job.log_fields)


def _ending(status: str, error: JobError) -> str:
    """Return how a failed attempt ended its job: the engine reports a canceled job as aborted."""
    match status:
        case JobStatus.CANCELED:
            return "canceled"
        case JobStatus.QUEUED:
            return f"failed, and is tried again: {error.message}"
    return f"{status}: {error.message}"
