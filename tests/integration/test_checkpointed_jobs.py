"""Half-done jobs survive their workers: what is done of them is stored, and goes on elsewhere."""

import os
import signal
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import httpx
import pytest
from PIL import Image

from diffuserve.agent.agent import WorkerAgent
from diffuserve.domain.jobs.checkpoint import StoredCheckpoint
from diffuserve.domain.jobs.claim import Claim
from diffuserve.domain.jobs.job import Job, JobStatus, NewJob
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.workers.worker import ModelOffer, Registration
from diffuserve.engine.engine import Engine
from diffuserve.jobs.tasks.reaper import Reaper
from diffuserve.protocol.config import ImageOptions
from diffuserve.storage.base import checkpoint_folder, checkpoint_key
from diffuserve.testing.null_engine import NULL_SPEC
from support.fake_family.model import num_steps, write_counted_model
from support.images import psnr
from support.plane import Plane, until
from support.store_driver import REPORT
from support.tiny_pipelines import tiny_folder
from support.waiting import eventually
from support.worker_fakes import engine_of

Start = Callable[..., WorkerAgent]
NUM_STEPS = 100
CHECKPOINT_SECONDS = 0.3  # of steps that take 0.04


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return write_counted_model(tmp_path, monkeypatch)


def start_worker(start: Start, model: Path, checkpoint_seconds: float = CHECKPOINT_SECONDS) -> WorkerAgent:
    return start(
        engine_command=(),
        model=str(model),
        device="cpu",
        images=ImageOptions(image_filter="none"),
        checkpoint_seconds=checkpoint_seconds,
    )


async def submit(plane: Plane, steps: int = NUM_STEPS, cost_seconds: float = 4.0, side: int = 64) -> Job:
    values = {"prompt": "cloud", "seed": 1, "width": side, "height": side, "num_inference_steps": steps}
    return await plane.store.jobs.submit(
        NewJob(tenant_id="ada", model="clouds", cost_seconds=cost_seconds, input=values)
    )


def is_stored(plane: Plane, job: Job, token: int) -> bool:
    return (plane.folder / "artifacts" / checkpoint_folder(job.id, token)).exists()


async def half_done(plane: Plane, agent: WorkerAgent, job: Job, model: Path) -> None:
    """Wait until more than half of a job is done, and a checkpoint of it stored."""

    async def is_half_done() -> bool:
        return num_steps(model) > 0.6 * NUM_STEPS and (await plane.store.leases.begun(job.id))[1] is not None

    await eventually(is_half_done)
    assert job.id in agent.held


@pytest.mark.slow
async def test_a_killed_engine_costs_a_job_of_a_hundred_steps_only_the_last_of_them(
    plane: Plane, start: Start, model: Path
) -> None:
    agent = start_worker(start, model)
    job = await submit(plane)
    await half_done(plane, agent, job, model)
    link = engine_of(agent).link
    assert link is not None
    os.kill(link.pid, signal.SIGKILL)
    await until(plane, job, JobStatus.SUCCEEDED)
    assert NUM_STEPS <= num_steps(model) <= 1.3 * NUM_STEPS


@pytest.mark.slow
async def test_a_worker_that_vanishes_leaves_its_work_to_the_next_and_clients_never_see_it(
    plane: Plane, start: Start, model: Path
) -> None:
    lost = start_worker(start, model)
    job = await submit(plane)
    await half_done(plane, lost, job, model)
    (_, stored) = await plane.store.leases.begun(job.id)
    assert stored is not None
    link = engine_of(lost).link
    assert link is not None
    lost.over.cancel()  # type: ignore[attr-defined]
    os.kill(link.pid, signal.SIGKILL)
    await plane.expire(job)
    start_worker(start, model)
    async with httpx.AsyncClient(base_url=plane.url) as client:
        await until(plane, job, JobStatus.RUNNING)
        shown = (await client.get(f"/v1/jobs/{job.id}")).text
        assert "checkpoint" not in shown
        key = checkpoint_key(job.id, stored.lease_token, stored.slot)
        assert await plane.artifacts.size(key) > 0
        assert (await client.get(f"/v1/results/{key}")).status_code == 404
        done = await until(plane, job, JobStatus.SUCCEEDED)
        log = (await client.get(f"/v1/jobs/{job.id}")).text
        assert "checkpoint" not in log
    assert NUM_STEPS <= num_steps(model) <= 1.3 * NUM_STEPS
    assert done.result is not None
    assert done.actual_seconds is not None
    assert all("safetensors" not in artifact.name for artifact in done.result.artifacts)
    await Reaper(plane.store.housekeeping, plane.artifacts).forget_checkpoints()
    assert not any(is_stored(plane, job, token) for token in range(done.lease_token + 1))
    assert await plane.artifacts.size(f"{job.id}/{done.lease_token}/0.png") > 0


@pytest.mark.slow
async def test_a_killed_engine_of_what_diffusers_runs_goes_on_from_the_last_stored_step(
    plane: Plane, start: Start, tmp_path: Path
) -> None:
    folder = tiny_folder("sd3", tmp_path)
    (folder / "diffuserve.json").write_text('{"name": "clouds"}')
    agent = start_worker(start, folder)
    job = await submit(plane, cost_seconds=20.0, side=512)

    async def stored() -> StoredCheckpoint | None:
        return (await plane.store.leases.begun(job.id))[1]

    async def is_half_done() -> bool:
        found = await stored()
        return found is not None and found.step > NUM_STEPS / 2

    async def is_kept_anew() -> bool:
        found = await stored()
        return found is not None and before is not None and found.lease_token > before.lease_token

    await eventually(is_half_done)
    before = await stored()
    assert before is not None
    link = engine_of(agent).link
    assert link is not None
    os.kill(link.pid, signal.SIGKILL)
    await eventually(is_kept_anew)
    after = await stored()
    assert after is not None
    assert after.step > before.step
    done = await until(plane, job, JobStatus.SUCCEEDED)
    params = GenerationParams(prompt="cloud", seed=1, width=512, height=512, num_inference_steps=NUM_STEPS)
    with Engine.load(folder, device="cpu") as engine:
        (whole,) = engine.generate(params).images
    parts = [part async for part in plane.artifacts.read(f"{job.id}/{done.lease_token}/0.png")]
    assert psnr(Image.open(BytesIO(b"".join(parts))).convert("RGB"), whole) >= 50


@pytest.mark.slow
async def test_a_drain_hands_a_job_on_with_all_that_is_done_of_it(
    plane: Plane, start: Start, model: Path
) -> None:
    first = start_worker(start, model, checkpoint_seconds=3.9)  # none is due before the drain
    job = await submit(plane)
    await eventually(lambda: num_steps(model) > 0.5 * NUM_STEPS)
    first.drain()
    await first.over  # type: ignore[attr-defined]
    start_worker(start, model)
    await until(plane, job, JobStatus.SUCCEEDED)
    assert NUM_STEPS <= num_steps(model) <= NUM_STEPS + 3
    log = await plane.store.jobs.events_after(job.id)
    assert [event.type for event in log] == ["queued", "running", "requeued", "running", "succeeded"]


@pytest.mark.slow
async def test_a_short_job_pays_nothing(plane: Plane, start: Start, model: Path) -> None:
    start_worker(start, model)
    job = await submit(plane, steps=20, cost_seconds=CHECKPOINT_SECONDS / 2)
    done = await until(plane, job, JobStatus.SUCCEEDED)
    assert await plane.store.leases.begun(job.id) == (None, None)
    assert not is_stored(plane, job, done.lease_token)


async def test_the_routes_of_checkpoints_are_fenced_and_keep_what_is_stored_whole_alone(
    plane: Plane,
) -> None:
    offer = ModelOffer(spec=NULL_SPEC)
    worker = await plane.store.leases.register(Registration(models=(offer,), report=REPORT))
    job = await plane.submit()
    (lease,) = await plane.store.leases.claim(worker, Claim(claim_id="c", num_jobs=1))
    async with httpx.AsyncClient(base_url=plane.url) as client:
        path, token = f"/v1/leases/{job.id}/checkpoint", lease.lease_token
        report = {"lease_token": token, "slot": 1, "step": 3, "size_bytes": 5, "sha256": "a" * 64}
        assert (await client.post(path, json=report)).json()["code"] == "upload_missing"
        stale, own = {"lease-token": str(token + 1)}, {"lease-token": str(token)}
        assert (await client.put(f"{path}/1", content=b"12345", headers=stale)).status_code == 409
        assert (await client.put(f"{path}/2", content=b"12345", headers=own)).status_code == 422
        assert (await client.put(f"{path}/1", content=b"1234", headers=own)).status_code == 201
        assert (await client.post(path, json=report)).json()["code"] == "upload_missing"
        assert (await client.get(path, headers=own)).status_code == 404
        assert (await client.put(f"{path}/1", content=b"12345", headers=own)).status_code == 201
        assert (await client.post(path, json=report | {"lease_token": token + 1})).status_code == 409
        for wrong in ({"slot": 2}, {"step": 0}, {"size_bytes": 0}, {"sha256": "x"}):
            assert (await client.post(path, json=report | wrong)).status_code == 422
        assert (await client.post(path, json=report)).status_code == 204
        assert (await client.get(path, headers=own)).content == b"12345"
        assert (await client.get(path, headers=stale)).status_code == 409
        (listed,) = (await client.get(f"/v1/leases/{job.id}/inputs", headers=own)).json()["files"]
        assert (listed["id"], listed["url"]) == ("checkpoint", None)
