"""Every method that the official `openai` package has for images, videos and models, unmodified.

A method or a parameter that a newer package brings has no case here, and so a test fails.
"""

import asyncio
import inspect
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI
from openai import AsyncOpenAI
from openai.resources.images import AsyncImages
from openai.resources.models import AsyncModels
from openai.resources.videos import AsyncVideos

from diffuserve.api.app import ROUTES
from diffuserve.api.config import ApiConfig
from diffuserve.api.http.problems import OWN_ROOMS
from diffuserve.api.openai.request_bodies import EditFields, ImagesBody
from diffuserve.api.openai.tolerant_body import OWN_TO_OPENAI
from diffuserve.domain.models.tiers import TierPolicy
from support.clips import CLIPS, complete_clip, drawn_clip
from support.hand_worker import HAND_SPEC, HandWorker
from support.image_files import image_in, png

pytestmark = pytest.mark.filterwarnings(
    "ignore:The Sora API:DeprecationWarning", "ignore:deprecated:DeprecationWarning"
)
IMAGE = ("cat.png", png(), "image/png")
CLIP = drawn_clip()
PAINTER = replace(HAND_SPEC, max_input_images=1, has_strength=True, has_mask=True)
LEARNED = replace(HAND_SPEC, name="learned", learned_min_size=32, learned_max_size=96)


@pytest.fixture
def app(make_app: Callable[[ApiConfig], FastAPI]) -> FastAPI:
    aliases = {"gpt-image-2": "hand", "sora-2": "clips"}
    return make_app(ApiConfig(poll_seconds=0.2, model_aliases=aliases))


@pytest.fixture
async def worker(http: httpx.AsyncClient) -> AsyncGenerator[HandWorker]:
    """Complete every job in the background: of clips with files that can be played."""
    worker = await HandWorker.register(http, [PAINTER, CLIPS, LEARNED])

    async def work() -> None:
        while True:
            for lease in await worker.claim(num_jobs=8, wait=5.0):
                with suppress(httpx.HTTPStatusError):  # it may be deleted meanwhile
                    if lease.kind == "video.generate":
                        await complete_clip(worker, lease, CLIP)
                    else:
                        await worker.complete(lease)

    working = asyncio.create_task(work())
    yield worker
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working


async def _clip(client: AsyncOpenAI) -> str:
    return (await client.videos.create_and_poll(prompt="a ball", model="sora-2", poll_interval_ms=10)).id


def named(video_id: str) -> dict[str, Any]:
    """Return the arguments that name a clip: the parameter itself takes files alone."""
    return {"video": openai.omit, "extra_body": {"video": {"id": video_id}}}


async def _last_job(http: httpx.AsyncClient) -> dict[str, Any]:
    job: dict[str, Any] = (await http.get("/v1/jobs")).json()["data"][0]
    return job


async def generate(client: AsyncOpenAI) -> None:
    response = await client.images.generate(
        prompt="a cat",
        model="gpt-image-2",
        n=2,
        size="1024x1024",
        quality="high",
        output_format="jpeg",
        output_compression=40,
        style="vivid",
        safety_identifier="ada",
        user="bob",
        extra_body={"seed": 7, "complexity": "low", "sed": 8},
    )
    raw = response.model_extra or {}
    assert raw["diffuserve_ignored"] == ["style", "complexity", "sed"]
    assert raw["diffuserve_warnings"] == [
        "sed was ignored; did you mean seed?",
        "size 1024x1024 was replaced by 128x128, the nearest that hand draws well",
    ]
    assert (response.size, response.quality, response.output_format) == ("128x128", "high", "jpeg")
    assert raw["safety_identifier"] == "ada" if "safety_identifier" in raw else True
    assert [(image.model_extra or {})["diffuserve_seed"] for image in response.data or []] == [7, 8]
    assert raw["diffuserve_job_id"].startswith("job_")


async def edit(client: AsyncOpenAI) -> None:
    response = await client.images.edit(
        image=IMAGE,
        prompt="a dog",
        model="hand",
        markup=IMAGE,
        extra_query={"api-version": "1"},
    )
    assert (response.model_extra or {})["diffuserve_ignored"] == ["markup"]


async def create_variation(client: AsyncOpenAI) -> None:
    assert (await client.images.create_variation(image=IMAGE, model="hand", user="ada")).data


async def list_models(client: AsyncOpenAI) -> None:
    models = {model.id: model.model_extra or {} for model in (await client.models.list()).data}
    assert models["hand"]["aliases"] == ["gpt-image-2"]
    assert models["hand"]["qualities"] == {"low": 2, "medium": 4, "high": 6, "xhigh": 8, "max": 12}


async def retrieve_model(client: AsyncOpenAI) -> None:
    assert (await client.models.retrieve("sora-2")).id == "clips"


async def delete_model(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.APIStatusError) as raised:
        await client.models.delete("hand")
    assert raised.value.status_code == 405
    assert "it takes" in str(raised.value)


async def create(client: AsyncOpenAI) -> None:
    video = await client.videos.create(prompt="a ball", model="sora-2", size="1280x720", seconds="4")
    said = video.model_extra or {}
    assert (video.status, video.size) == ("queued", "160x96")
    assert "size 1280x720 was replaced by 160x96" in said["diffuserve_warnings"][0]
    assert said["diffuserve_ignored"] == []


async def create_and_poll(client: AsyncOpenAI) -> None:
    assert await _clip(client)


async def poll(client: AsyncOpenAI) -> None:
    assert (await client.videos.poll(await _clip(client))).status == "completed"


async def retrieve(client: AsyncOpenAI) -> None:
    assert (await client.videos.retrieve(await _clip(client))).object == "video"


async def list_videos(client: AsyncOpenAI) -> None:
    clip = await _clip(client)
    assert clip in [video.id async for video in client.videos.list()]


async def delete(client: AsyncOpenAI) -> None:
    assert (await client.videos.delete(await _clip(client))).deleted


async def download_content(client: AsyncOpenAI) -> None:
    content = await client.videos.download_content(await _clip(client))
    assert content.read() == CLIP["video"]


async def remix(client: AsyncOpenAI) -> None:
    clip = await _clip(client)
    assert (await client.videos.remix(clip, prompt="a cube")).remixed_from_video_id == clip


async def edit_video(client: AsyncOpenAI) -> None:
    clip = await _clip(client)
    edited = await client.videos.edit(prompt="a cube", video=("a.mp4", CLIP["video"]))
    assert edited.remixed_from_video_id == clip
    assert "frames are not read" in (edited.model_extra or {})["diffuserve_warnings"][0]
    with pytest.raises(openai.BadRequestError, match="give the id of a clip that was") as raised:
        await client.videos.edit(prompt="a cube", video=("a.mp4", b"a foreign clip"))
    assert raised.value.param == "video"
    with pytest.raises(openai.NotFoundError, match="no video"):
        await client.videos.edit(prompt="a cube", **named("video_0"))


async def extend(client: AsyncOpenAI) -> None:
    clip = await _clip(client)
    longer = await client.videos.extend(prompt="it rolls on", seconds="4", **named(clip))
    assert (longer.seconds, longer.remixed_from_video_id) == ("4", clip)
    assert "extension alone" in (longer.model_extra or {})["diffuserve_warnings"][0]


async def create_character(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="know no characters"):
        await client.videos.create_character(name="Ada", video=("a.mp4", CLIP["video"]))


async def get_character(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="know no characters"):
        await client.videos.get_character("char_1")


Case = Callable[[AsyncOpenAI], Awaitable[None]]
CASES: Mapping[type, Mapping[str, Case]] = {
    AsyncImages: {case.__name__: case for case in (generate, edit, create_variation)},
    AsyncModels: {"list": list_models, "retrieve": retrieve_model, "delete": delete_model},
    AsyncVideos: {
        **{case.__name__: case for case in (create, create_and_poll, poll, retrieve, delete)},
        **{case.__name__: case for case in (download_content, remix, extend)},
        **{case.__name__: case for case in (create_character, get_character)},
        "edit": edit_video,
        "list": list_videos,
    },
}


@pytest.mark.parametrize("resource", CASES)
def test_every_method_of_the_package_has_a_case(resource: type) -> None:
    methods = {name for name, _ in inspect.getmembers(resource, inspect.isfunction) if name[0] != "_"}
    assert methods == set(CASES[resource])


@pytest.mark.parametrize("resource", CASES)
async def test_each_method_works(client: AsyncOpenAI, worker: HandWorker, resource: type) -> None:
    for case in CASES[resource].values():
        await case(client)


@pytest.mark.parametrize(("method", "body"), [("generate", ImagesBody), ("edit", EditFields)])
def test_every_parameter_of_the_package_is_known_to_be_honored_or_ignored(method: str, body: type) -> None:
    parameters = set(inspect.signature(getattr(AsyncImages, method)).parameters)
    own = {"self", "image", "mask", "extra_headers", "extra_query", "extra_body", "timeout"}
    assert parameters - own - set(body.model_fields) <= OWN_TO_OPENAI  # type: ignore[attr-defined]


async def test_headers_name_the_job_its_seed_and_what_was_done_otherwise(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    body = {"prompt": "a cat", "model": "learned", "size": "256x128", "seed": 7, "style": "\r\nx: y"}
    response = await http.post("/v1/images/generations", json=body)
    assert response.json()["size"] == "96x48"
    assert response.headers["x-diffuserve-job-id"] == response.json()["diffuserve_job_id"]
    assert response.headers["x-diffuserve-seed"] == "7"
    assert json.loads(response.headers["x-diffuserve-ignored"]) == ["style"]
    assert "replaced by 96x48" in json.loads(response.headers["x-diffuserve-warnings"])[0]


async def test_quality_and_compression_reach_the_job(
    client: AsyncOpenAI, http: httpx.AsyncClient, worker: HandWorker
) -> None:
    await client.images.generate(
        prompt="a cat", model="hand", quality="low", output_format="webp", output_compression=30
    )
    given = (await _last_job(http))["input"]
    assert (given["num_inference_steps"], given["output_quality"]) == (2, 30)
    response = await client.images.generate(
        prompt="a cat",
        model="hand",
        quality="low",
        output_compression=30,
        extra_body={"num_inference_steps": 3},
    )
    given = (await _last_job(http))["input"]
    assert (given["num_inference_steps"], given.get("output_quality")) == (3, None)
    assert (response.model_extra or {})["diffuserve_ignored"] == ["output_compression", "quality"]


async def test_a_gif_is_the_clip_of_a_model_that_makes_some(
    client: AsyncOpenAI, http: httpx.AsyncClient, worker: HandWorker
) -> None:
    more: dict[str, Any] = {
        "output_format": "gif",
        "extra_body": {"frame_count": 8, "frame_duration_ms": 100},
    }
    response = await client.images.generate(prompt="a ball", model="clips", **more)
    assert response.output_format == "gif"
    assert (response.data or [])[0].b64_json
    job = await _last_job(http)
    assert (job["kind"], job["input"]["num_frames"], job["input"]["fps"]) == ("video.generate", 9, 10)
    with pytest.raises(openai.BadRequestError, match="clips are made by clips") as raised:
        await client.images.generate(prompt="a ball", model="hand", **more)
    assert raised.value.param == "output_format"


async def test_an_extension_begins_with_the_last_frame(
    client: AsyncOpenAI, http: httpx.AsyncClient, worker: HandWorker
) -> None:
    await client.videos.extend(prompt="on", seconds="4", **named(await _clip(client)))
    given = (await _last_job(http))["input"]
    stored = (await http.get(f"/v1/files/{given['image']['id']}/content")).content
    frame = image_in(stored).convert("L")
    bright = [x for x in range(frame.width) if frame.getpixel((x, 20)) > 200]  # type: ignore[operator]
    assert min(bright) > frame.width // 2, "the square has moved to the right"


@pytest.mark.parametrize("path", ["chat/completions", "responses", "embeddings", "nix", "webhook_endpoints"])
async def test_what_this_server_lacks_of_openai_is_told_in_its_envelope(
    http: httpx.AsyncClient, path: str
) -> None:
    response = await http.post(f"/v1/{path}", json={})
    assert response.status_code == 404
    error = response.json()["error"]
    assert (error["code"], error["type"]) == ("not_found", "invalid_request_error")
    assert f"/v1/{path} is not implemented" in error["message"]


def test_each_path_is_openais_or_this_servers_own() -> None:
    paths = {route.path for routes in ROUTES for route in routes.router.routes}
    rooms = {path.split("/")[2] for path in paths if path.startswith("/v1/")}
    assert rooms - {"images", "videos", "models"} == OWN_ROOMS


async def test_sizes_are_refused_if_the_operator_says_so(
    make_app: Callable[[ApiConfig], FastAPI], http: httpx.AsyncClient, worker: HandWorker
) -> None:
    strict = make_app(ApiConfig(openai_sizes=TierPolicy.REFUSE))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(strict), base_url="http://api.test") as http:
        body = {"prompt": "a cat", "model": "learned", "size": "1024x1024"}
        error = (await http.post("/v1/images/generations", json=body)).json()["error"]
        assert error["param"] == "size"
        assert "the nearest size is 96x96" in error["message"]
        error = (await http.post("/v1/videos", json=body | {"model": "clips"})).json()["error"]
        assert "the nearest size is 128x128" in error["message"]
