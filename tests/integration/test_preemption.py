"""Interactive jobs under a flood of long batch jobs: they start at once, and next to no work is lost."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from diffuserve.agent.agent import WorkerAgent
from diffuserve.domain.jobs.job import Band, Job, JobStatus, NewJob
from diffuserve.protocol.config import ImageOptions
from support.fake_family.model import num_steps, write_counted_model
from support.plane import Plane, until
from support.waiting import eventually

Start = Callable[..., WorkerAgent]
NUM_WORKERS, NUM_BATCH, NUM_INTERACTIVE = 2, 6, 10
BATCH_STEPS, INTERACTIVE_STEPS = 100, 4
MAX_WAIT_SECONDS, MAX_WAIT_STEPS = 1.0, 2
PROBE_SECONDS = 0.02
NUM_MESSAGES = 6  # look, command, put down, checkpoint, claim, and the lease in the store


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return write_counted_model(tmp_path, monkeypatch)


async def submit(plane: Plane, band: Band, seed: int, steps: int) -> Job:
    values = {"prompt": "cloud", "seed": seed, "width": 64, "height": 64, "num_inference_steps": steps}
    new = NewJob(tenant_id=band.value, model="clouds", band=band, cost_seconds=0.04 * steps, input=values)
    return await plane.store.jobs.submit(new)


async def step_seconds(model: Path) -> float:
    """Return the seconds that a step takes now, on average of the workers, all of which are at work."""
    before, start = num_steps(model), time.monotonic()
    await eventually(lambda: num_steps(model) >= before + 20 * NUM_WORKERS)
    return NUM_WORKERS * (time.monotonic() - start) / (num_steps(model) - before)


async def excess_wait(plane: Plane, seed: int) -> float:
    """Return the seconds that an interactive job waited before it was leased, less what the machine took.

    On a busy one everything comes later: by as much as the worst short sleep meanwhile, for each of the
    messages that make room.
    """
    job = await submit(plane, Band.INTERACTIVE, seed, INTERACTIVE_STEPS)
    stall = 0.0
    while (await plane.store.jobs.get(job.id)).started_at is None:
        start = time.monotonic()
        await asyncio.sleep(PROBE_SECONDS)
        stall = max(stall, time.monotonic() - start - PROBE_SECONDS)
    done = await until(plane, job, JobStatus.SUCCEEDED)
    assert done.started_at is not None
    return done.started_at - done.created_at - NUM_MESSAGES * stall


@pytest.mark.slow
async def test_interactive_jobs_start_at_once_and_batch_jobs_lose_next_to_nothing(
    plane: Plane, start: Start, model: Path
) -> None:
    for number in range(NUM_WORKERS):
        start(
            engine_command=(),
            model=str(model),
            device="cpu",
            images=ImageOptions(image_filter="none"),
            max_jobs=1,
            name=f"gpu-{number}",
        )
    flood = [await submit(plane, Band.BATCH, seed, BATCH_STEPS) for seed in range(NUM_BATCH)]
    for job in flood[:NUM_WORKERS]:
        await until(plane, job, JobStatus.RUNNING)
    one_step = await step_seconds(model)
    waits = []
    for seed in range(NUM_INTERACTIVE):
        waits.append(await excess_wait(plane, seed))
        await asyncio.sleep(5 * one_step)
    assert max(waits) <= MAX_WAIT_SECONDS + MAX_WAIT_STEPS * one_step, (waits, one_step)

    ended = [await until(plane, job, JobStatus.SUCCEEDED) for job in flood]
    logs = [[event.type for event in await plane.store.jobs.events_after(job.id)] for job in ended]
    num_preempted = sum(log.count("preempted") for log in logs)
    assert 0 < num_preempted <= NUM_INTERACTIVE
    assert all(log.count("preempted") <= plane.store.config.max_preemptions for log in logs)
    assert all("requeued" not in log for log in logs)
    useful = NUM_BATCH * BATCH_STEPS + NUM_INTERACTIVE * INTERACTIVE_STEPS
    assert useful >= 0.97 * num_steps(model)
