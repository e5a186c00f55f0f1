"""Progress is reported of jobs that advanced, and no more than twice a second."""

import asyncio
from pathlib import Path

from diffuserve.domain.errors import ServerUnavailable
from diffuserve.domain.jobs.job import Phase
from diffuserve.protocol.messages import PreviewReady, StepProgress
from support.virtual_time import in_virtual_time
from support.waiting import eventually
from support.worker_fakes import AgentUnderTest, make_lease, running_agent


async def step_for_ten_seconds(worker: AgentUnderTest) -> None:
    engine = await worker.take(make_lease())
    for step in range(1, 101):
        engine.say(StepProgress(attempt="j1-1", phase="denoise", step=step, total=100))
        await asyncio.sleep(0.1)


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
        worker.plane.watched = {"j1"}
        await step_for_ten_seconds(worker)
        await eventually(lambda: worker.plane.reports[-1][1].step == 100)
        assert 15 <= len(worker.plane.reports) <= 10 / 0.5 + 1


@in_virtual_time
async def test_a_job_that_nobody_watches_is_reported_now_and_then(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        await step_for_ten_seconds(worker)
        await eventually(lambda: worker.plane.reports[-1][1].step == 100)
        assert 5 <= len(worker.plane.reports) <= 10 / 2 + 2


@in_virtual_time
async def test_a_job_is_reported_more_often_from_the_report_on_which_finds_it_watched(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as worker:
        stepping = asyncio.create_task(step_for_ten_seconds(worker))
        await eventually(lambda: len(worker.plane.reports) == 2)
        worker.plane.watched = {"j1"}
        await eventually(lambda: len(worker.plane.reports) == 3)
        before = asyncio.get_running_loop().time()
        await eventually(lambda: len(worker.plane.reports) == 6)
        assert asyncio.get_running_loop().time() - before < 2.0
        await stepping


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
