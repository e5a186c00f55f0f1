"""Clips with the official `openai` package, unmodified, against a live server."""

import asyncio
import base64
import re
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from diffuserve.domain.jobs.job import JobStatus
from diffuserve.jobs.config import StoreConfig
from support.clips import CLIPS, MP4, complete_clip, completing, drawn_clip
from support.hand_worker import HAND_SPEC, HandWorker
from support.image_files import png
from support.waiting import HANG_SECONDS

pytestmark = pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")
HOW_TO = Path(__file__).parents[3] / "docs/how-to/use-the-openai-client.md"
TALL: Any = "64x128"  # OpenAI's own models have other sizes
WIDE: Any = "64x48"
IMAGE = ("first.png", png(), "image/png")


@pytest.fixture
async def worker(http: httpx.AsyncClient) -> HandWorker:
    return await HandWorker.register(http, [HAND_SPEC, CLIPS])


@pytest.fixture
async def busy_worker(worker: HandWorker) -> AsyncGenerator[HandWorker]:
    async with completing(worker):
        yield worker


async def job_of(http: httpx.AsyncClient, video_id: str) -> dict[str, Any]:
    found: dict[str, Any] = (await http.get(f"/v1/jobs/{video_id.replace('video_', 'job_')}")).json()
    return found


async def test_a_clip_is_created_polled_and_fetched_by_the_blocking_client(
    server: str, busy_worker: HandWorker
) -> None:
    def generate() -> None:
        with OpenAI(base_url=f"{server}/v1", api_key="any", timeout=HANG_SECONDS) as client:
            video = client.videos.create_and_poll(
                prompt="a red ball falls", model="clips", seconds="4", size=TALL, poll_interval_ms=10
            )
            assert (video.status, video.progress, video.error) == ("completed", 100, None)
            assert (video.seconds, video.size, video.model) == ("4", "64x128", "clips")
            assert (video.object, video.prompt) == ("video", "a red ball falls")
            assert video.id.startswith("video_")
            assert video.created_at <= (video.completed_at or 0) < (video.expires_at or 0)
            assert client.videos.download_content(video.id).read() == MP4
            for variant in ("video", "thumbnail", "spritesheet"):
                content = client.videos.download_content(video.id, variant=variant)
                kind = "video/mp4" if variant == "video" else "image/webp"
                assert (content.read(), content.response.headers["content-type"]) == (MP4, kind)
            assert [listed.id for listed in client.videos.list()] == [video.id]
            deleted = client.videos.delete(video.id)
            assert (deleted.id, deleted.deleted, deleted.object) == (video.id, True, "video.deleted")
            with pytest.raises(openai.NotFoundError):
                client.videos.retrieve(video.id)

    await asyncio.to_thread(generate)


async def test_the_examples_of_the_how_to_run(
    server: str, http: httpx.AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await HandWorker.register(http, [replace(CLIPS, name="tiny-video")])
    (tmp_path / "circle.png").write_bytes(png())
    monkeypatch.chdir(tmp_path)
    page = HOW_TO.read_text().partition("## Videos")[2].partition("## Connections")[0]
    blocks = re.findall(r"```python no-run\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 4
    clip = drawn_clip()

    def run() -> None:
        with OpenAI(base_url=f"{server}/v1", api_key="any", timeout=HANG_SECONDS) as client:
            names: dict[str, Any] = {"client": client}
            for block in blocks:
                exec(block, names)

    async with completing(worker, clip):
        await asyncio.to_thread(run)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name.startswith("ball")}
    fetched = {"ball.mp4": "video", "ball.webp": "poster", "ball-frames.webp": "sprites"}
    assert files == {name: clip[role] for name, role in fetched.items()}


async def test_the_states_of_a_clip_are_openais(
    client: AsyncOpenAI, worker: HandWorker, http: httpx.AsyncClient
) -> None:
    created = await client.videos.create(prompt="a red ball falls")
    assert (created.status, created.progress) == ("queued", 0)
    assert (created.seconds, created.size, created.model) == ("1", "64x64", "clips"), "the model's own"
    assert (created.completed_at, created.expires_at, created.error) == (None, None, None)
    [lease] = await worker.claim()
    await worker.report(lease, 2, 4)
    running = await client.videos.retrieve(created.id)
    assert (running.status, running.progress) == ("in_progress", 45)
    await complete_clip(worker, lease)
    done = await client.videos.retrieve(created.id)
    assert (done.status, done.progress) == ("completed", 100)
    kept = StoreConfig().retention_seconds[JobStatus.SUCCEEDED]
    assert (done.expires_at or 0) - (done.completed_at or 0) == pytest.approx(kept, abs=1)
    assert await client.videos.retrieve(created.id.replace("video_", "job_")) == done


async def test_extra_fields_of_a_clip_are_taken(
    client: AsyncOpenAI, worker: HandWorker, http: httpx.AsyncClient
) -> None:
    extra = {"seed": 7, "num_inference_steps": 3, "fps": 8, "output_format": "webm"}
    video = await client.videos.create(prompt="a ball", model="clips", seconds="2", extra_body=extra)  # type: ignore[arg-type]
    [lease] = await worker.claim()
    wanted = {"seed": 7, "num_inference_steps": 3, "fps": 8, "num_frames": 17}
    assert lease.input.items() >= wanted.items()
    assert lease.output_format == "webm"
    assert video.seconds == "2"


@pytest.mark.parametrize("way", ["file", "file_id", "image_url"])
async def test_a_clip_begins_with_an_image(
    client: AsyncOpenAI, worker: HandWorker, http: httpx.AsyncClient, way: str
) -> None:
    file = (await http.post("/v1/files", files={"file": IMAGE})).json()
    data_url = f"data:image/png;base64,{base64.b64encode(png()).decode()}"
    references: dict[str, dict[str, Any]] = {  # the client's own parameter takes files alone
        "file": {"input_reference": IMAGE},
        "file_id": {"extra_body": {"input_reference": {"file_id": file["id"]}}},
        "image_url": {"extra_body": {"input_reference": {"image_url": data_url}}},
    }
    video = await client.videos.create(prompt="it falls", model="clips", **references[way])
    job = await job_of(http, video.id)
    assert job["input"]["image"]["id"] == file["id"], "the same image is one file"
    assert (job["kind"], job["input"]["num_frames"]) == ("video.generate", 17)


async def test_a_clip_is_created_with_json(http: httpx.AsyncClient, worker: HandWorker) -> None:
    file = (await http.post("/v1/files", files={"file": IMAGE})).json()
    body = {
        "prompt": "it falls",
        "model": "clips",
        "seconds": 2,
        "size": "128x64",
        "input_reference": {"file_id": file["id"]},
        "seed": 5,
    }
    response = await http.post("/v1/videos", json=body)
    assert response.status_code == 200, response.text
    video = response.json()
    assert (video["seconds"], video["size"], video["remixed_from_video_id"]) == ("2", "128x64", None)
    assert (await job_of(http, video["id"]))["input"]["image"]["id"] == file["id"]


async def test_clips_are_listed_in_pages_and_images_are_not(
    client: AsyncOpenAI, worker: HandWorker, http: httpx.AsyncClient
) -> None:
    created = []
    for number in range(5):
        created.append((await client.videos.create(prompt=f"ball {number}", model="clips")).id)
        await http.post("/v1/jobs", json={"model": "hand", "input": {"prompt": "a cat"}})
        await asyncio.sleep(0.002)  # ids sort by milliseconds
    native = {"kind": "video.generate", "model": "clips", "input": {"prompt": "a ball"}}
    created.append((await http.post("/v1/jobs", json=native)).json()["id"].replace("job_", "video_"))
    assert [video.id async for video in client.videos.list(limit=2)] == created[::-1]
    assert [video.id async for video in client.videos.list(limit=4, order="asc")] == created
    page = await client.videos.list(after=created[2], limit=1)
    assert ([video.id for video in page.data], page.has_more) == ([created[1]], True)
    assert (await client.videos.list(after=created[0])).data == []


async def test_a_remix_has_another_prompt_and_all_else_of_its_original(
    client: AsyncOpenAI, worker: HandWorker, http: httpx.AsyncClient
) -> None:
    end = (await http.post("/v1/files", files={"file": ("end.png", png(color=(9, 9, 9)))})).json()
    extra = {"num_inference_steps": 3, "output_format": "gif", "last_image": end["id"]}
    original = await client.videos.create(
        prompt="a red ball falls",
        model="clips",
        seconds="4",
        size=WIDE,
        input_reference=IMAGE,
        extra_body=extra,
    )
    remix = await client.videos.remix(original.id, prompt="a blue ball falls")
    assert (remix.remixed_from_video_id, remix.prompt) == (original.id, "a blue ball falls")
    assert (remix.seconds, remix.size, remix.status) == ("4", "64x48", "queued")
    first, second = await job_of(http, original.id), await job_of(http, remix.id)
    assert second["input"] == first["input"] | {"prompt": "a blue ball falls"}
    assert second["input"]["last_image"]["id"] == end["id"]
    assert second["input"]["seed"] == first["input"]["seed"]
    [_, lease] = await worker.claim(num_jobs=2)
    assert lease.output_format == "gif"
    again = await client.videos.remix(remix.id, prompt="a green ball falls")
    assert again.remixed_from_video_id == remix.id


async def test_a_remix_needs_the_image_of_its_original(
    client: AsyncOpenAI, busy_worker: HandWorker, http: httpx.AsyncClient
) -> None:
    original = await client.videos.create_and_poll(
        prompt="it falls", model="clips", input_reference=IMAGE, poll_interval_ms=10
    )
    [file] = (await http.get("/v1/files")).json()["data"]
    await http.delete(f"/v1/files/{file['id']}")
    with pytest.raises(openai.BadRequestError, match="upload it again") as raised:
        await client.videos.remix(original.id, prompt="it rises")
    assert raised.value.param == "input_reference"


async def test_a_failed_clip_says_why(client: AsyncOpenAI, worker: HandWorker) -> None:
    created = await client.videos.create(prompt="a ball", model="clips")
    [lease] = await worker.claim()
    await worker.fail(lease, "out_of_memory")
    video = await client.videos.poll(created.id, poll_interval_ms=10)
    assert (video.status, video.completed_at) == ("failed", None)
    assert video.error is not None
    assert (video.error.code, video.error.message) == ("out_of_memory", "the engine says out_of_memory")
    with pytest.raises(openai.NotFoundError, match="failed and has no content"):
        await client.videos.download_content(created.id)


async def test_a_canceled_clip_is_a_failed_one(
    client: AsyncOpenAI, worker: HandWorker, http: httpx.AsyncClient
) -> None:
    created = await client.videos.create(prompt="a ball", model="clips")
    await http.post(f"/v1/jobs/{created.id.replace('video_', 'job_')}/cancel")
    video = await client.videos.retrieve(created.id)
    assert video.status == "failed"
    assert video.error is not None
    assert video.error.code == "canceled"


async def test_deleting_a_running_clip_cancels_it(
    client: AsyncOpenAI, worker: HandWorker, http: httpx.AsyncClient
) -> None:
    created = await client.videos.create(prompt="a ball", model="clips")
    [lease] = await worker.claim()
    assert (await client.videos.delete(created.id)).deleted
    commands = await worker.heartbeat(lease)
    assert commands["cancel"] == [lease.job_id]
    assert [video.id async for video in client.videos.list()] == []
    with pytest.raises(openai.NotFoundError):
        await client.videos.delete(created.id)


async def test_content_before_it_is_done_is_a_conflict_that_is_not_retried(
    client: AsyncOpenAI, worker: HandWorker
) -> None:
    created = await client.videos.create(prompt="a ball", model="clips")
    with pytest.raises(openai.ConflictError, match="is queued; wait until it is completed") as raised:
        await client.videos.download_content(created.id)
    assert raised.value.code == "not_finished"
    assert raised.value.response.headers["x-should-retry"] == "false"


async def test_a_clip_may_lack_a_variant(client: AsyncOpenAI, worker: HandWorker) -> None:
    created = await client.videos.create(prompt="a ball", model="clips")
    [lease] = await worker.claim()
    stored = (await worker.upload(lease, "0.mp4", MP4)).json()
    shape = {"content_type": "video/mp4", "width": 64, "height": 64, "index": 0, "role": "video"}
    await worker.finish(lease, [stored | shape])
    assert (await client.videos.download_content(created.id)).content == MP4
    with pytest.raises(openai.NotFoundError, match="has no spritesheet"):
        await client.videos.download_content(created.id, variant="spritesheet")


async def test_content_is_sent_in_parts(
    client: AsyncOpenAI, busy_worker: HandWorker, http: httpx.AsyncClient
) -> None:
    video = await client.videos.create_and_poll(prompt="a ball", model="clips", poll_interval_ms=10)
    response = await http.get(f"/v1/videos/{video.id}/content", headers={"range": "bytes=4-7"})
    assert (response.status_code, response.content) == (206, MP4[4:8])
    behind = await http.get(f"/v1/videos/{video.id}/content", headers={"range": "bytes=9999-"})
    assert (behind.status_code, behind.json()["error"]["code"]) == (416, "range_not_satisfiable")
