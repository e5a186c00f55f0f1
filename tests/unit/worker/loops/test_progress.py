"""Progress is reported of jobs that advanced, and no more than twice a second."""

import asyncio
from pathlib import Path

from diffuserve.domain.errors import ServerUnavailable
from diffuserve.domain.job import Phase
from diffuserve.worker.messages import PreviewReady, StepProgress
from support.virtual_time import in_virtual_time
from support.waiting import eventually
from support.worker_fakes import make_lease, running_agent


@in_virtual_time
async def test_progress_is_reported_once_for_each_advance(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        engine = await worker.take(make_lease())
        engine.say(StepProgress(attempt="j1-1", phase="denoise", step=1, total=8))
        await eventually(lambda: len(worker.plane.reports) == 1)
        await asyncio.sleep(60.0)
        ((job_id, report),) = worker.plane.reports
        assert job_id == "j1"
        assert (report.lease_token, report.phase, report.step, report.total) == (1, Phase.DENOISE, 1, 8)


@in_virtual_time
async def test_many_steps_share_a_report(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        engine = await worker.take(make_lease())
        for step in range(1, 101):
            engine.say(StepProgress(attempt="j1-1", phase="denoise", step=step, total=100))
            await asyncio.sleep(0.05)
        await eventually(lambda: worker.plane.reports[-1][1].step == 100)
        assert len(worker.plane.reports) <= 100 * 0.05 / 0.5 + 1


@in_virtual_time
async def test_jobs_that_advanced_share_a_request(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        engine = await worker.take(make_lease("j1"))
        await worker.take(make_lease("j2"))
        await worker.take(make_lease("j3"))
        await asyncio.sleep(1.0)
        for attempt in ("j1-1", "j3-1"):
            engine.say(StepProgress(attempt=attempt, phase="denoise", step=1, total=8))
        await eventually(lambda: bool(worker.plane.reports))
        await asyncio.sleep(60.0)
        (request,) = worker.plane.progress_requests
        assert [advanced.job_id for advanced in request.jobs] == ["j1", "j3"]


@in_virtual_time
async def test_a_lost_report_is_not_repeated(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        worker.plane.report_outcomes.append(ServerUnavailable("away"))
        engine = await worker.take(make_lease())
        engine.say(StepProgress(attempt="j1-1", phase="denoise", step=1, total=8))
        await eventually(lambda: bool(worker.plane.reports))
        await asyncio.sleep(60.0)
        assert len(worker.plane.reports) == 1


@in_virtual_time
async def test_previews_are_reported_at_once(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        engine = await worker.take(make_lease())
        engine.say(PreviewReady(attempt="j1-1", image=1, index=0, step=2, total=8, png="iVBO"))
        await eventually(lambda: bool(worker.plane.reports))
        ((_, report),) = worker.plane.reports
        assert (report.preview, report.preview_image, report.preview_index, report.step) == ("iVBO", 1, 0, 2)
