"""Parts of a clip that is being drawn, uploaded in order; whatever fails there, the job goes on."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from diffuserve.agent.metrics import WorkerMetrics
from diffuserve.agent.reporting.result_reporter import ResultReporter
from diffuserve.agent.state.held_job import HeldJob
from diffuserve.domain.errors import (
    Conflict,
    DiffuserveError,
    LeaseLost,
    ServerUnavailable,
    StorageRefused,
    TooLarge,
)
from diffuserve.domain.jobs.job import VIDEO_GENERATE
from diffuserve.domain.workers.worker import ReleaseCause
from diffuserve.protocol.messages import FinishedFile, JobFailed, JobFinished, LivePart
from support.virtual_time import in_virtual_time
from support.worker_fakes import FakeControlPlane, make_lease

FAILURES = [
    ServerUnavailable("away"),
    Conflict("not live"),
    LeaseLost("j1"),
    TooLarge("too large"),
    StorageRefused("read-only"),
]


@dataclass
class LivePlane(FakeControlPlane):
    """Stores parts, but for the one that fails; `calls` are what it was asked, in order."""

    failing_part: int | None = None
    failing_drop: DiffuserveError | None = None
    error: DiffuserveError = field(default_factory=lambda: ServerUnavailable("away"))
    parts: dict[int, bytes] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    async def put_live_part(self, job_id: str, lease_token: int, number: int, content: bytes) -> None:
        await asyncio.sleep(10.0 - number)  # the first is the slowest
        self.calls.append(f"part {number}")
        if number == self.failing_part:
            raise self.error
        self.parts[number] = content

    async def drop_live_parts(self, job_id: str, lease_token: int) -> None:
        self.calls.append("drop")
        if self.failing_drop is not None:
            raise self.failing_drop
        self.parts.clear()


class Showing:
    """A live job, its control plane and its reporter."""

    def __init__(self, folder: Path, plane: LivePlane) -> None:
        self.plane, self.metrics = plane, WorkerMetrics()
        self.reporter = ResultReporter(plane.client, self.metrics, lambda _: None)
        self.job = HeldJob(make_lease(kind=VIDEO_GENERATE, live=True), folder / "j1-1")
        self.job.folder.mkdir()
        self.clip = self.job.folder / "0.mp4"
        self.clip.write_bytes(b"the whole clip")

    def show(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            path = self.job.folder / f"live-{number:04d}.m4s"
            path.write_bytes(b"part %d" % number)
            self.reporter.live.part(self.job, LivePart(attempt="j1-1", number=number, path=str(path)))

    async def finish(self) -> None:
        file = FinishedFile(
            path=str(self.clip), name="0.mp4", content_type="video/mp4", width=8, height=8, role="video"
        )
        self.reporter.finished(self.job, JobFinished(attempt="j1-1", files=(file,), actual_seconds=2.0))
        await self.reporter.all_reported()

    @property
    def num_succeeded(self) -> float | None:
        return self.metrics.registry.get_sample_value("diffusion_worker_jobs_total", {"status": "succeeded"})


@in_virtual_time
async def test_parts_are_stored_in_order_and_before_the_result(tmp_path: Path) -> None:
    showing = Showing(tmp_path, LivePlane())
    showing.show(range(3))
    await showing.finish()
    assert showing.plane.calls == ["part 0", "part 1", "part 2"]
    assert showing.plane.parts == {number: b"part %d" % number for number in range(3)}
    assert showing.plane.uploads == [("j1", "0.mp4")]
    assert showing.num_succeeded == 1


@in_virtual_time
@pytest.mark.parametrize("error", FAILURES, ids=lambda error: type(error).__name__)
async def test_a_part_that_cannot_be_stored_ends_the_show_and_not_the_job(
    tmp_path: Path, error: DiffuserveError, caplog: pytest.LogCaptureFixture
) -> None:
    showing = Showing(tmp_path, LivePlane(failing_part=1, error=error))
    showing.show(range(4))
    await showing.finish()
    assert showing.plane.calls == ["part 0", "part 1"], "a clip with a gap could not be played"
    assert showing.num_succeeded == 1
    assert showing.plane.failures == []
    assert "no more of its clip is shown" in caplog.text


@in_virtual_time
async def test_a_part_whose_file_is_gone_ends_the_show_and_not_the_job(tmp_path: Path) -> None:
    showing = Showing(tmp_path, LivePlane())
    showing.show(range(2))
    (showing.job.folder / "live-0000.m4s").unlink()
    await showing.finish()
    assert showing.plane.calls == []
    assert showing.num_succeeded == 1


@in_virtual_time
@pytest.mark.parametrize("error", [None, *FAILURES], ids=lambda error: type(error).__name__)
async def test_what_was_shown_is_taken_back_before_the_job_fails(
    tmp_path: Path, error: DiffuserveError | None
) -> None:
    """INV-7, if frames are blocked after others were shown."""
    showing = Showing(tmp_path, LivePlane(failing_drop=error))
    showing.show(range(3))
    await asyncio.sleep(15.0)
    showing.reporter.live.drop(showing.job)
    showing.show([3])
    failed = JobFailed(attempt="j1-1", code="output_blocked", message="blocked")
    showing.reporter.failed(showing.job, failed)
    await showing.reporter.all_reported()
    assert showing.plane.calls == ["part 0", "part 1", "drop", "drop"], "nothing is stored after that"
    ((_, failure),) = showing.plane.failures
    assert failure.error.code == "output_blocked"
    assert error is not None or showing.plane.parts == {}


@in_virtual_time
async def test_parts_of_a_released_job_are_taken_back(tmp_path: Path) -> None:
    showing = Showing(tmp_path, LivePlane())
    showing.show(range(2))
    await asyncio.sleep(60.0)
    showing.reporter.release(showing.job, ReleaseCause.DRAIN)
    await showing.reporter.all_reported()
    assert (showing.plane.parts, len(showing.plane.releases)) == ({}, 1)


@in_virtual_time
async def test_a_job_that_showed_nothing_asks_for_nothing_to_be_taken_back(tmp_path: Path) -> None:
    showing = Showing(tmp_path, LivePlane())
    showing.reporter.failed(showing.job, JobFailed(attempt="j1-1", code="odd", message="odd"))
    await showing.reporter.all_reported()
    assert showing.plane.calls == []
