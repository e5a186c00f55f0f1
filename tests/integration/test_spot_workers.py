"""Workers whose machines are taken away: real agents, engines and servers that respond as a cloud does."""

import os
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import httpx
import pytest

from diffuserve.agent.agent import WorkerAgent
from diffuserve.agent.spot.azure import AzureNotices
from diffuserve.agent.spot.machine import Machine
from diffuserve.domain.jobs.job import Band, JobStatus, NewJob
from diffuserve.protocol.config import ImageOptions
from support.fake_family.family import STEPS
from support.fake_family.install import install_fake_family, write_fake_model
from support.metadata_servers import AzureMetadata
from support.plane import Plane, until
from support.scripted_server import listening
from support.waiting import eventually

Start = Callable[..., WorkerAgent]
NUM_STEPS = 100  # of 0.04 seconds


@pytest.fixture
async def azure() -> AsyncGenerator[AzureMetadata]:
    async with listening(AzureMetadata()) as server:
        yield server


def spot_machine(azure: AzureMetadata) -> Machine:
    return Machine(is_spot=True, notices=AzureNotices(azure.url))


async def test_a_job_leaves_a_machine_that_is_taken_away_and_its_log_and_metrics_say_so(
    plane: Plane, start: Start, azure: AzureMetadata
) -> None:
    taken_away = start("--seconds", "600", machine=spot_machine(azure), notice_seconds=15.0)
    job = await plane.submit(band=Band.BATCH)
    await eventually(lambda: bool(taken_away.held))
    azure.interrupt()
    assert await taken_away.over == 0  # type: ignore[attr-defined]
    assert azure.started == ["event-0"]
    log = await plane.store.jobs.events_after(job.id)
    assert [event.type for event in log] == ["queued", "running", "interrupted"]
    async with httpx.AsyncClient(base_url=plane.url) as client:
        metrics = (await client.get("/metrics")).text
    assert "diffusion_jobs_interrupted_total 1.0" in metrics
    start()
    await until(plane, job, JobStatus.SUCCEEDED)


async def test_operators_see_why_a_worker_drains(plane: Plane, start: Start, azure: AzureMetadata) -> None:
    agent = start("--seconds", "600", machine=spot_machine(azure))
    await plane.submit()
    await eventually(lambda: bool(agent.held))
    azure.interrupt()

    async def is_shown() -> bool:
        async with httpx.AsyncClient(base_url=plane.url) as client:
            (worker,) = (await client.get("/v1/workers")).json()["data"]
        reason = worker["report"]["drain_reason"]
        return (
            worker["is_spot"] and worker["state"] == "draining" and "interruption notice of azure" in reason
        )

    await eventually(is_shown)


@pytest.mark.slow
async def test_a_long_job_goes_on_elsewhere_from_where_it_was(
    plane: Plane, start: Start, azure: AzureMetadata, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(install_fake_family(tmp_path / "site")))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    model = write_fake_model(tmp_path / "clouds")
    (model / STEPS).touch()

    def num_steps() -> int:
        return (model / STEPS).stat().st_size

    def start_worker(machine: Machine) -> WorkerAgent:
        images = ImageOptions(image_filter="none")
        return start(
            engine_command=(),
            model=str(model),
            device="cpu",
            images=images,
            machine=machine,
            notice_seconds=15.0,
            checkpoint_seconds=3.9,  # none is due before the notice
        )

    taken_away = start_worker(spot_machine(azure))
    values = {"prompt": "cloud", "seed": 1, "width": 64, "height": 64, "num_inference_steps": NUM_STEPS}
    job = await plane.store.jobs.submit(
        NewJob(tenant_id="ada", model="clouds", cost_seconds=4.0, input=values)
    )
    await eventually(lambda: num_steps() > 0.3 * NUM_STEPS)
    azure.interrupt()
    assert await taken_away.over == 0  # type: ignore[attr-defined]
    start_worker(Machine())
    await until(plane, job, JobStatus.SUCCEEDED)
    assert NUM_STEPS <= num_steps() <= NUM_STEPS + 3
    log = await plane.store.jobs.events_after(job.id)
    assert [event.type for event in log] == ["queued", "running", "interrupted", "running", "succeeded"]
