"""Outcomes reach the control plane, whatever fails on the way."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from diffuserve.agent.metrics import WorkerMetrics
from diffuserve.agent.reporting.result_reporter import ResultReporter
from diffuserve.agent.state.held_job import HeldJob
from diffuserve.domain.errors import (
    InvalidParams,
    LeaseLost,
    ServerUnavailable,
    StorageRefused,
    TooLarge,
    UploadFailed,
    UploadMissing,
)
from diffuserve.domain.jobs.job import JobStatus, Phase
from diffuserve.domain.workers.worker import LeaseOutcome, ReleaseCause
from diffuserve.protocol.messages import FinishedFile, JobFailed, JobFinished, PreviewReady
from support.virtual_time import in_virtual_time, now
from support.worker_fakes import FakeControlPlane, make_lease


class Reporting:
    """A reporter, its control plane, and a held job with a file in its folder."""

    def __init__(self, folder: Path) -> None:
        self.plane = FakeControlPlane()
        self.metrics = WorkerMetrics()
        self.forgotten: list[HeldJob] = []
        self.reporter = ResultReporter(self.plane.client, self.metrics, self.forgotten.append)
        self.job = HeldJob(make_lease(), folder / "j1-1")
        self.job.folder.mkdir()
        path = self.job.folder / "0.png"
        path.write_bytes(b"image")
        self.file = FinishedFile(path=str(path), name="0.png", content_type="image/png", width=8, height=8)

    async def finish(self) -> None:
        self.reporter.finished(self.job, JobFinished(attempt="j1-1", files=(self.file,), actual_seconds=2.0))
        await self.reporter.all_reported()

    def num_jobs(self, status: str) -> float | None:
        return self.metrics.registry.get_sample_value("diffusion_worker_jobs_total", {"status": status})


@in_virtual_time
async def test_a_finished_job_is_uploaded_and_completed(tmp_path: Path) -> None:
    reporting = Reporting(tmp_path)
    await reporting.finish()
    ((job_id, completion),) = reporting.plane.completions
    (artifact,) = completion.result.artifacts
    assert (job_id, completion.lease_token, completion.actual_seconds) == ("j1", 1, 2.0)
    assert (artifact.name, artifact.size_bytes, artifact.width) == ("0.png", 5, 8)
    assert reporting.job.phase is Phase.UPLOAD
    assert reporting.forgotten == [reporting.job]
    assert not reporting.job.folder.exists()
    assert reporting.num_jobs("succeeded") == 1


@in_virtual_time
@pytest.mark.parametrize(
    ("max_bytes", "contents", "num_uploads"),
    [(5, {"0.png": "aW1hZ2U="}, 0), (4, {}, 1)],
    ids=["fit", "too large"],
)
async def test_small_files_are_sent_with_the_completion(
    tmp_path: Path, max_bytes: int, contents: dict[str, str], num_uploads: int
) -> None:
    reporting = Reporting(tmp_path)
    reporting.plane.max_inline_bytes = max_bytes
    await reporting.finish()
    ((_, completion),) = reporting.plane.completions
    assert (completion.contents, len(reporting.plane.uploads)) == (contents, num_uploads)
    (artifact,) = completion.result.artifacts
    assert (artifact.size_bytes, artifact.sha256) == (5, hashlib.sha256(b"image").hexdigest())


@in_virtual_time
async def test_files_that_did_not_arrive_are_uploaded_again_after_a_pause(tmp_path: Path) -> None:
    reporting = Reporting(tmp_path)
    reporting.plane.final_outcomes.extend([UploadMissing("0.png"), UploadMissing("0.png")])
    await reporting.finish()
    assert len(reporting.plane.uploads) == 3
    assert now() == pytest.approx(2.0)
    assert reporting.num_jobs("succeeded") == 1


@in_virtual_time
async def test_a_job_fails_retryably_after_three_uploads(tmp_path: Path) -> None:
    reporting = Reporting(tmp_path)
    reporting.plane.final_outcomes.extend([UploadMissing("0.png")] * 3)
    await reporting.finish()
    assert len(reporting.plane.uploads) == 3
    ((_, failure),) = reporting.plane.failures
    assert (failure.error.code, failure.error.retryable) == ("upload_failed", True)


@in_virtual_time
@pytest.mark.parametrize(
    "error",
    [TooLarge("too large"), InvalidParams("name", "x", "no"), StorageRefused("no"), UploadFailed("no")],
)
async def test_an_upload_that_is_refused_fails_the_job_retryably(tmp_path: Path, error: Exception) -> None:
    reporting = Reporting(tmp_path)
    reporting.plane.upload_outcomes.append(error)
    await reporting.finish()
    ((_, failure),) = reporting.plane.failures
    assert (failure.error.code, failure.error.message) == ("upload_failed", str(error))
    assert reporting.plane.completions == []


@in_virtual_time
async def test_a_file_that_is_gone_fails_the_job_retryably(tmp_path: Path) -> None:
    reporting = Reporting(tmp_path)
    Path(reporting.file.path).unlink()
    await reporting.finish()
    ((_, failure),) = reporting.plane.failures
    assert failure.error.code == "upload_failed"


@in_virtual_time
@pytest.mark.parametrize(
    ("error", "status"),
    [
        (LeaseLost("j1"), "lease_lost"),
        (ServerUnavailable("away"), "unreported"),
        (RuntimeError("a bug"), "unreported"),
    ],
)
async def test_a_job_is_forgotten_even_if_its_outcome_cannot_be_reported(
    tmp_path: Path, error: Exception, status: str
) -> None:
    reporting = Reporting(tmp_path)
    reporting.plane.final_outcomes.append(error)
    await reporting.finish()
    assert reporting.plane.failures == [], "no failure is reported of a job that succeeded"
    assert reporting.num_jobs(status) == 1
    assert reporting.forgotten == [reporting.job]
    assert not reporting.job.folder.exists()


@in_virtual_time
async def test_an_upload_whose_lease_is_lost_is_counted(tmp_path: Path) -> None:
    reporting = Reporting(tmp_path)
    reporting.plane.upload_outcomes.append(LeaseLost("j1"))
    await reporting.finish()
    assert reporting.plane.completions == []
    assert reporting.metrics.registry.get_sample_value("diffusion_worker_leases_lost_total") == 1


@in_virtual_time
async def test_a_failed_job_is_reported_with_its_error(tmp_path: Path) -> None:
    reporting = Reporting(tmp_path)
    record: dict[str, Any] = {"image": {"verdicts": []}}
    failed = JobFailed(
        attempt="j1-1", code="output_blocked", message="blocked", safety=record, actual_seconds=7.5
    )
    reporting.reporter.failed(reporting.job, failed)
    await reporting.reporter.all_reported()
    ((job_id, failure),) = reporting.plane.failures
    assert (job_id, failure.error.code, failure.error.safety) == ("j1", "output_blocked", record)
    assert failure.actual_seconds == 7.5
    assert reporting.num_jobs("failed") == 1


@pytest.mark.parametrize(
    ("status", "logged"),
    [
        (JobStatus.FAILED, "job j1 failed: aborted"),
        (JobStatus.CANCELED, "job j1 canceled"),
        (JobStatus.QUEUED, "job j1 failed, and is tried again: aborted"),
    ],
)
@in_virtual_time
async def test_the_log_says_how_a_failed_attempt_ended_its_job(
    tmp_path: Path,
    status: JobStatus,
    logged: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    reporting = Reporting(tmp_path)
    outcome = LeaseOutcome(job_id="j1", status=status)
    monkeypatch.setattr(reporting.plane, "fail", AsyncMock(return_value=outcome))
    with caplog.at_level("INFO"):
        reporting.reporter.failed(reporting.job, JobFailed(attempt="j1-1", code="aborted", message="aborted"))
        await reporting.reporter.all_reported()
    assert [record.getMessage() for record in caplog.records] == [logged]


@in_virtual_time
async def test_a_released_job_names_its_cause(tmp_path: Path) -> None:
    reporting = Reporting(tmp_path)
    reporting.reporter.release(reporting.job, ReleaseCause.WORKER_LOST, is_suspect=True)
    await reporting.reporter.all_reported()
    ((_, release),) = reporting.plane.releases
    assert (release.lease_token, release.cause, release.is_suspect) == (1, ReleaseCause.WORKER_LOST, True)


@in_virtual_time
async def test_previews_are_reported_in_order_and_before_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reporting, order = Reporting(tmp_path), list[str]()
    report, complete = reporting.plane.report, reporting.plane.complete

    async def slow_report(job_id: str, progress: object) -> None:
        await asyncio.sleep(5.0 - len(order))  # the first is the slowest
        order.append(f"preview {progress.preview_index}")  # type: ignore[attr-defined]
        await report(job_id, progress)  # type: ignore[arg-type]

    async def noted_complete(job_id: str, completion: object) -> object:
        order.append("result")
        return await complete(job_id, completion)  # type: ignore[arg-type]

    monkeypatch.setattr(reporting.plane, "report", slow_report)
    monkeypatch.setattr(reporting.plane, "complete", noted_complete)
    for index in range(3):
        preview = PreviewReady(attempt="j1-1", image=0, index=index, step=index + 1, total=8, png="iVBO")
        reporting.reporter.preview(reporting.job, preview)
    await reporting.finish()
    assert order == ["preview 0", "preview 1", "preview 2", "result"]


@in_virtual_time
async def test_jobs_are_reported_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reporting = Reporting(tmp_path)
    other = HeldJob(make_lease("j2"), tmp_path / "j2-1")
    fail = reporting.plane.fail

    async def slow_fail(job_id: str, failure: object) -> object:
        await asyncio.sleep(10.0)
        return await fail(job_id, failure)  # type: ignore[arg-type]

    monkeypatch.setattr(reporting.plane, "fail", slow_fail)
    for job in (reporting.job, other):
        reporting.reporter.failed(job, JobFailed(attempt=job.attempt, code="odd", message="odd"))
    await reporting.reporter.all_reported()
    assert now() == pytest.approx(10.0)
    assert len(reporting.plane.failures) == 2
