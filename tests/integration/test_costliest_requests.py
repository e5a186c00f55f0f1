"""Small jobs beside the costliest requests that a plan allows: they wait for turns, never for an end."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from diffuserve.agent.agent import WorkerAgent
from diffuserve.domain.jobs.job import Band, JobStatus, NewJob
from diffuserve.domain.requests.request_bounds import MAX_IMAGES, MAX_STEPS
from diffuserve.engine.config import EngineConfig
from diffuserve.jobs.store import JobStore
from diffuserve.protocol.config import ImageOptions
from support.fake_family.family import STEP_SECONDS
from support.fake_family.model import write_counted_model
from support.plane import Plane, until

NUM_JOBS = 20
TOKENS = 2 * 64  # of an image, with guidance


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return write_counted_model(tmp_path, monkeypatch)


def new_job(band: Band, num_steps: int, num_images: int = 1) -> NewJob:
    values = {"width": 64, "height": 64, "num_inference_steps": num_steps, "num_images": num_images}
    return NewJob(
        tenant_id=band.value,
        model="clouds",
        band=band,
        cost_seconds=STEP_SECONDS * num_steps * num_images,
        step_tokens=TOKENS * num_images,
        input={"prompt": "cloud", "seed": 1, **values},
    )


async def seconds_of(plane: Plane, band: Band) -> list[float]:
    """Return the seconds that small jobs of a band take, one after another, the longest last."""
    seconds = []
    for _ in range(NUM_JOBS):
        start = time.monotonic()
        await until(plane, await plane.store.jobs.submit(new_job(band, num_steps=4)), JobStatus.SUCCEEDED)
        seconds.append(time.monotonic() - start)
    return sorted(seconds)


def p95(seconds: list[float]) -> float:
    return seconds[int(0.95 * (len(seconds) - 1))]


async def is_running(store: JobStore, job_id: str) -> bool:
    return (await store.jobs.get(job_id)).status is JobStatus.RUNNING


@pytest.mark.slow
@pytest.mark.parametrize("band", [Band.INTERACTIVE, Band.STANDARD])
async def test_small_jobs_are_nearly_as_fast_beside_two_of_the_costliest_requests(
    plane: Plane, start: Callable[..., WorkerAgent], model: Path, band: Band
) -> None:
    start(
        engine_command=(),
        model=str(model),
        device="cpu",
        images=ImageOptions(image_filter="none"),
        engine=EngineConfig(token_budget=TOKENS, num_threads=1),
    )
    quiet = await seconds_of(plane, band)
    costliest = [
        await plane.store.jobs.submit(new_job(Band.STANDARD, MAX_STEPS, MAX_IMAGES)) for _ in range(2)
    ]
    for job in costliest:
        await until(plane, job, JobStatus.RUNNING)
    beside = await seconds_of(plane, band)
    assert all([await is_running(plane.store, job.id) for job in costliest]), "all the time"
    assert p95(beside) <= p95(quiet) + 2 * STEP_SECONDS + 1.0, (quiet, beside)
