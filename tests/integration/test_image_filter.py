"""The second stage from end to end: a control plane, an agent, and a real engine process.

A threshold of 0 flags every image, so that the tests need no unsafe one.
"""

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from diffuserve.agent.agent import WorkerAgent
from diffuserve.domain.jobs.job import Job, JobStatus
from diffuserve.domain.safety import SafetyStage
from diffuserve.events.base import job_topic
from diffuserve.media.image_file import read_parameters
from diffuserve.protocol.config import ImageOptions
from support.plane import Plane, until
from support.waiting import eventually

Start = Callable[..., WorkerAgent]
REAL: dict[str, Any] = {"engine_command": (), "model": "tiny-flux", "device": "cpu"}
PROMPT = "a large red circle"
STAR = {"prompt": PROMPT, "seed": 7, "num_inference_steps": 4}


def rules(action: str) -> dict[str, Any]:
    return {"nsfw": {"threshold": 0.0, "action": action}}


async def draw(plane: Plane, status: JobStatus) -> tuple[Job, list[str]]:
    """A job and the kinds of its news, once it has ended."""
    job = await plane.submit(model="tiny-flux", input=STAR, num_previews=2)
    with plane.bus.subscribe(job_topic(job.id)) as news:
        job = await until(plane, job, status)
        message_types = []
        while (message := await news.get(0.1)) is not None:
            message_types.append(str(message["type"]))
    return job, message_types


def stored(plane: Plane) -> list[Path]:
    return [path for path in (plane.folder / "artifacts").rglob("*") if path.is_file()]


async def test_a_blocked_image_gets_no_file_and_no_url(plane: Plane, start: Start) -> None:
    """INV-7."""
    agent = start(**REAL, images=ImageOptions(image_rules=rules("block")))
    job, message_types = await draw(plane, JobStatus.FAILED)
    assert job.error is not None
    assert (job.error.code, job.error.retryable) == ("output_blocked", False)
    assert "'nsfw'" in job.error.message
    assert PROMPT not in job.error.message
    assert [verdict["action"] for verdict in job.error.safety["image"]["verdicts"]] == ["block"]
    [entry] = await plane.store.audit.newest()
    assert (entry.stage, entry.category, entry.job_id) == (SafetyStage.IMAGE, "nsfw", job.id)
    assert entry.filter.startswith("opennsfw ")
    assert job.attempt == 1, "another try would end the same"
    assert job.result is None
    assert stored(plane) == []
    assert "preview" not in message_types
    async with httpx.AsyncClient(base_url=plane.url) as http:
        assert (await http.get(f"/v1/jobs/{job.id}")).json()["result"] is None
        assert (await http.get(f"/v1/jobs/{job.id}/artifacts/0.png")).status_code >= 400
        await check_nothing_is_shown(http, job.id)
    verdict = {"stage": "image", "category": "nsfw", "action": "block"}
    assert agent.metrics.registry.get_sample_value("diffusion_safety_verdicts_total", verdict) == 1
    seen = agent.metrics.registry.get_sample_value
    assert seen("diffusion_safety_filter_seconds_count", {"stage": "preview"}) == 2


async def check_nothing_is_shown(http: httpx.AsyncClient, job_id: str) -> None:
    """Assert that nothing a page asks for has an image: the list, the result, the events, the archive."""
    [listed] = (await http.get("/v1/jobs")).json()["data"]
    assert listed["result"] is None
    assert (await http.get(f"/v1/jobs/{job_id}/result")).status_code >= 400
    events = (await http.get(f"/v1/jobs/{job_id}/events")).text
    assert "failed" in events
    assert "preview" not in events.replace("num_previews", "")
    archive = await http.get("/v1/jobs/archive", params={"id": job_id})
    with zipfile.ZipFile(io.BytesIO(archive.content)) as packed:
        assert packed.namelist() == ["manifest.json"]


async def test_only_the_blurred_image_is_published(plane: Plane, start: Start) -> None:
    start(**REAL, images=ImageOptions(image_rules=rules("blur")))
    job, message_types = await draw(plane, JobStatus.SUCCEEDED)
    assert job.result is not None
    assert job.result.warnings == ("image 0 was blurred by the image filter (category 'nsfw')",)
    assert job.result.safety["image"]["filter"]["name"] == "opennsfw"
    assert [verdict["action"] for verdict in job.result.safety["image"]["verdicts"]] == ["blur"]
    assert message_types.count("preview") == 2
    for path in stored(plane):
        with Image.open(path) as image:
            levels = np.asarray(image.convert("RGB"), dtype=float)
        assert np.abs(np.diff(levels, axis=1)).max() < 60, f"{path.name} has an edge that could be seen"


async def test_harmless_images_pass_the_default_filter_and_are_recorded(plane: Plane, start: Start) -> None:
    start(**REAL)
    job, message_types = await draw(plane, JobStatus.SUCCEEDED)
    assert job.result is not None
    assert job.result.warnings == ()
    assert job.result.safety["image"]["filter"]["thresholds"] == {"nsfw": 0.8}
    assert job.result.safety["image"]["verdicts"] == [{"action": "allow", "findings": []}]
    assert message_types.count("preview") == 2
    metadata = [read_parameters(path) for path in sorted(stored(plane))]
    assert [(carried["prompt"], carried["seed"], len(carried["model_hash"])) for carried in metadata] == [
        (PROMPT, 7, 64),
        (PROMPT, 7, 64),
    ]

    async def is_reported() -> bool:
        (worker,) = await plane.store.operations.workers()
        return worker.report.image_filter is not None and worker.report.image_filter.name == "opennsfw"

    await eventually(is_reported)


async def test_a_worker_without_a_filter_logs_a_warning(
    plane: Plane, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    start(**REAL, images=ImageOptions(image_filter="none", file_metadata=False))
    job, _ = await draw(plane, JobStatus.SUCCEEDED)
    assert "NO IMAGE FILTER" in caplog.text
    assert job.result is not None
    assert job.result.safety == {}
    (worker,) = await plane.store.operations.workers()
    assert worker.report.image_filter is None
    assert [read_parameters(path) for path in stored(plane)] == [{}, {}]


async def test_a_worker_ends_if_its_filter_cannot_be_loaded(
    plane: Plane, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    agent = start(**REAL, images=ImageOptions(image_filter="transformers:/nowhere"))
    await eventually(agent.over.done)  # type: ignore[attr-defined]
    assert agent.over.result() == 2  # type: ignore[attr-defined]
    assert "image_filter='transformers:/nowhere'" in caplog.text
    job = await plane.submit(model="tiny-flux", input=STAR)
    assert await plane.status(job) is JobStatus.QUEUED, "never unfiltered"
