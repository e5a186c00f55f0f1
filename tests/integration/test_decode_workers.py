"""Workers of several roles share jobs: some denoise, others decode."""

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from diffuserve.agent.agent import WorkerAgent
from diffuserve.domain.errors import ArtifactNotFound, LatentsUnusable
from diffuserve.domain.jobs.job import Job, JobStatus
from diffuserve.domain.workers.worker import LATENTS_NAME, WorkerRole
from diffuserve.protocol.config import ImageOptions
from diffuserve.storage.base import latents_key
from support.fake_family.install import install_fake_family, write_fake_model
from support.plane import Plane, until
from support.waiting import eventually
from support.worker_fakes import engine_of

Start = Callable[..., WorkerAgent]
SLOW = "30"  # seconds: only a death or a lost lease ends a job of such an engine


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


def null_options(ledger: Path, seconds: str = "0") -> tuple[str, ...]:
    return ("--files", "1", "--seconds", seconds, "--ledger", str(ledger))


def phases_done(ledger: Path) -> Counter[str]:
    """Count how often each phase was done, by all engines."""
    return Counter(line.split(" ")[-1] for line in ledger.read_text().splitlines())


async def engine_pid(agent: WorkerAgent) -> int:
    await eventually(lambda: agent._models.is_ready)
    link = engine_of(agent).link
    assert link is not None
    return link.pid


async def event_types(plane: Plane, job: Job) -> list[str]:
    return [event.type for event in await plane.store.jobs.events_after(job.id)]


async def denoised(plane: Plane, job: Job) -> Job:
    async def is_denoised() -> bool:
        return (await plane.store.jobs.get(job.id)).is_denoised

    await eventually(is_denoised)
    return await plane.store.jobs.get(job.id)


async def test_a_job_goes_through_two_workers_and_nobody_gets_its_latents(
    plane: Plane, start: Start, ledger: Path
) -> None:
    start(*null_options(ledger), role=WorkerRole.DENOISE)
    job = await denoised(plane, await plane.submit())
    async with httpx.AsyncClient(base_url=plane.url) as client:
        waiting = (await client.get(f"/v1/jobs/{job.id}")).json()
        assert (waiting["status"], waiting["phase"]) == ("queued", "decode")
        assert "--role decode" in waiting["queue"]["reason"]
        latents = latents_key(job.id, job.lease_token)
        assert await plane.artifacts.size(latents) > 0
        start(*null_options(ledger), role=WorkerRole.DECODE)
        done = await until(plane, job, JobStatus.SUCCEEDED)
        shown = (await client.get(f"/v1/jobs/{job.id}")).text
        assert LATENTS_NAME not in shown
        for token in (job.lease_token, done.lease_token):
            assert (await client.get(f"/v1/results/{job.id}/{token}/{LATENTS_NAME}")).status_code == 404
        workers = (await client.get("/v1/workers")).json()["data"]
        assert {worker["role"] for worker in workers} == {"denoise", "decode"}
    assert await event_types(plane, job) == ["queued", "running", "denoised", "running", "succeeded"]
    assert phases_done(ledger) == {"denoise": 1, "decode": 1}
    assert done.result is not None
    assert [artifact.name for artifact in done.result.artifacts] == ["0.png"]


async def test_a_dead_engine_costs_at_most_the_phase_that_it_was_in(
    plane: Plane, start: Start, ledger: Path
) -> None:
    """The engines take so long that only those which are started later finish anything."""
    slow = start(*null_options(ledger, SLOW), role=WorkerRole.DENOISE, engine_restarts=0)
    job = await plane.submit()
    await until(plane, job, JobStatus.RUNNING)
    os.kill(await engine_pid(slow), signal.SIGKILL)
    start(*null_options(ledger), role=WorkerRole.DENOISE)
    await denoised(plane, job)
    slow = start(*null_options(ledger, SLOW), role=WorkerRole.DECODE, engine_restarts=0)
    await until(plane, job, JobStatus.RUNNING)
    os.kill(await engine_pid(slow), signal.SIGKILL)
    start(*null_options(ledger), role=WorkerRole.DECODE)
    await until(plane, job, JobStatus.SUCCEEDED)
    assert phases_done(ledger) == {"denoise": 1, "decode": 1}
    log = await event_types(plane, job)
    assert (log.count("denoised"), log.count("requeued"), log.count("running")) == (1, 2, 4)


async def test_a_frozen_worker_that_comes_back_changes_nothing(
    plane: Plane, start: Start, ledger: Path
) -> None:
    start(*null_options(ledger), role=WorkerRole.DENOISE)
    job = await denoised(plane, await plane.submit())
    late = start(*null_options(ledger, "1.0"), role=WorkerRole.DECODE)
    await until(plane, job, JobStatus.RUNNING)
    await plane.expire(job)
    start(*null_options(ledger), role=WorkerRole.DECODE)
    done = await until(plane, job, JobStatus.SUCCEEDED)
    await eventually(lambda: not late.held)
    assert (await plane.store.jobs.get(job.id)).version == done.version
    assert phases_done(ledger)["denoise"] == 1


@pytest.mark.parametrize("how", ["gone", "damaged"])
async def test_unusable_latents_are_drawn_anew(plane: Plane, start: Start, ledger: Path, how: str) -> None:
    start(*null_options(ledger), role=WorkerRole.DENOISE)
    job = await denoised(plane, await plane.submit())
    path = plane.folder / "artifacts" / latents_key(job.id, job.lease_token)
    path.unlink() if how == "gone" else path.write_bytes(b"x" * path.stat().st_size)
    start(*null_options(ledger), role=WorkerRole.DECODE)
    await until(plane, job, JobStatus.SUCCEEDED)
    log = await plane.store.jobs.events_after(job.id)
    assert [event.data["cause"] for event in log if event.type == "requeued"] == [LatentsUnusable.code]
    assert phases_done(ledger) == {"denoise": 2, "decode": 1}


async def test_latents_of_a_job_that_ended_are_swept(plane: Plane, start: Start, ledger: Path) -> None:
    from diffuserve.jobs.tasks.reaper import Reaper

    reaper = Reaper(plane.store.housekeeping, plane.artifacts)
    start(*null_options(ledger), role=WorkerRole.DENOISE)
    job = await denoised(plane, await plane.submit())
    await reaper.sweep_orphans(older_than_seconds=0.0)
    assert await plane.artifacts.size(latents_key(job.id, job.lease_token)) > 0
    start(*null_options(ledger), role=WorkerRole.DECODE)
    done = await until(plane, job, JobStatus.SUCCEEDED)
    await reaper.sweep_orphans(older_than_seconds=0.0)
    with pytest.raises(ArtifactNotFound):
        await plane.artifacts.size(latents_key(job.id, job.lease_token))
    assert await plane.artifacts.size(f"{job.id}/{done.lease_token}/0.png") > 0


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.syspath_prepend(str(install_fake_family(tmp_path / "site")))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    return str(write_fake_model(tmp_path / "clouds"))


@pytest.mark.slow
async def test_latents_of_other_weights_are_refused_and_drawn_anew(
    plane: Plane, start: Start, model: str
) -> None:
    (foreign := Path(model) / "vae").mkdir()
    other_weights = foreign / "weights.safetensors"

    def start_role(role: WorkerRole) -> WorkerAgent:
        return start(
            engine_command=(), model=model, device="cpu", images=ImageOptions(image_filter="none"), role=role
        )

    async def leave(agent: WorkerAgent) -> None:
        agent.drain()
        await agent.over  # type: ignore[attr-defined]

    values = {"prompt": "cloud", "seed": 1, "width": 64, "height": 64, "num_inference_steps": 2}
    first = start_role(WorkerRole.DENOISE)
    job = await denoised(plane, await plane.submit(model="clouds", input=values))
    await leave(first)
    other_weights.write_bytes(b"other")
    stranger = start_role(WorkerRole.DECODE)

    async def is_requeued() -> bool:
        return "requeued" in await event_types(plane, job)

    await eventually(is_requeued)
    await leave(stranger)
    for role in (WorkerRole.DENOISE, WorkerRole.DECODE):  # both have these weights
        start_role(role)
    await until(plane, job, JobStatus.SUCCEEDED)
    log = await plane.store.jobs.events_after(job.id)
    assert [event.data["cause"] for event in log if event.type == "requeued"] == [LatentsUnusable.code]
    assert [event.type for event in log].count("denoised") == 2


@pytest.mark.slow
async def test_two_workers_that_denoise_and_one_that_decodes_draw_what_one_of_all_draws(
    plane: Plane, start: Start, model: str
) -> None:
    inputs = [
        {"prompt": f"cloud {seed}", "seed": seed, "width": 64, "height": 64, "num_inference_steps": 4}
        for seed in range(4)
    ]

    def start_role(role: WorkerRole) -> WorkerAgent:
        return start(
            engine_command=(), model=model, device="cpu", images=ImageOptions(image_filter="none"), role=role
        )

    async def draw() -> list[Job]:
        jobs = [await plane.submit(model="clouds", input=values) for values in inputs]
        return [await until(plane, job, JobStatus.SUCCEEDED) for job in jobs]

    everything = start_role(WorkerRole.ALL)
    whole = await draw()
    everything.drain()
    await everything.over  # type: ignore[attr-defined]
    for role in (WorkerRole.DENOISE, WorkerRole.DENOISE, WorkerRole.DECODE):
        start_role(role)
    parted = await draw()
    assert [hashes(job) for job in parted] == [hashes(job) for job in whole]
    logs = [await event_types(plane, job) for job in parted]
    assert all("denoised" in log for log in logs)
    for job in parted:
        assert job.result is not None
        assert job.result.timings["denoise_seconds"] > 0
        assert job.result.timings["decode_seconds"] > 0


def hashes(job: Job) -> list[tuple[str, str]]:
    assert job.result is not None
    return [(artifact.name, artifact.sha256) for artifact in job.result.artifacts]


def test_an_unknown_role_is_refused(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from diffuserve.cli.main import app

    result: Any = CliRunner().invoke(app, ["worker", "--role", "draw"])
    assert result.exit_code == 2
