"""Clips that are refused, with the official `openai` package, unmodified, against a live server."""

import asyncio
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from diffuserve.domain.tenant import Role
from diffuserve.jobs.store import JobStore
from support.clips import CLIPS
from support.hand_worker import HAND_SPEC, HandWorker
from support.image_files import png
from support.waiting import HANG_SECONDS

pytestmark = pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")
IMAGE = ("first.png", png(), "image/png")


@pytest.fixture
async def worker(http: httpx.AsyncClient) -> HandWorker:
    return await HandWorker.register(http, [HAND_SPEC, CLIPS])


async def test_a_wrong_key_and_a_foreign_clip_are_refused(
    client: AsyncOpenAI, worker: HandWorker, store: JobStore, http: httpx.AsyncClient
) -> None:
    _, ada = await store.keys.create(Role.TENANT, tenant_id="ada")
    _, bob = await store.keys.create(Role.TENANT, tenant_id="bob")
    async with asyncio.timeout(HANG_SECONDS):
        while (await http.get("/v1/models")).status_code != 401:  # until the server has noticed its first key
            await asyncio.sleep(0.02)
    with pytest.raises(openai.AuthenticationError) as refused:
        await client.videos.create(prompt="a ball")
    assert refused.value.code == "unauthorized"
    hers = await client.with_options(api_key=ada).videos.create(prompt="a ball", model="clips")
    his = client.with_options(api_key=bob).videos
    assert [video.id async for video in his.list()] == []
    for call in (
        his.retrieve(hers.id),
        his.download_content(hers.id),
        his.delete(hers.id),
        his.remix(hers.id, prompt="mine"),
    ):
        with pytest.raises(openai.NotFoundError, match=f"no video '{hers.id}'") as raised:
            await call
        assert raised.value.code == "job_not_found"


async def test_what_is_no_clip_is_not_found(
    client: AsyncOpenAI, worker: HandWorker, http: httpx.AsyncClient
) -> None:
    image = (await http.post("/v1/jobs", json={"model": "hand", "input": {"prompt": "a cat"}})).json()["id"]
    for video_id in ("video_0", image, image.replace("job_", "video_"), "nix", "video_%00"):
        with pytest.raises(openai.NotFoundError):
            await client.videos.retrieve(video_id)
    with pytest.raises(openai.NotFoundError, match="no video 'nix'"):
        await client.videos.list(after="nix")


async def test_a_bad_clip_is_a_bad_request_that_names_its_parameter(
    client: AsyncOpenAI, worker: HandWorker, http: httpx.AsyncClient
) -> None:
    bad: list[tuple[dict[str, Any], str, str]] = [
        ({"prompt": ""}, "prompt", "must not be empty"),
        ({"seconds": "four"}, "seconds", 'such as "4"'),
        ({"seconds": "0"}, "seconds", "above 0"),
        ({"seconds": "12"}, "seconds", "at most 81 frames, 5.06 at 16 a second"),
        ({"size": "big"}, "size", "WIDTHxHEIGHT"),
        ({"model": "hand"}, "model", "clips are made by clips"),
        ({"input_reference": ("a.png", b"no image", "image/png")}, "input_reference", ""),
        ({"input_reference": ("a.png", b"", "image/png")}, "input_reference", "empty"),
        ({"extra_body": {"input_reference": {"file_id": "file-0"}}}, "input_reference", "names no image"),
        ({"extra_body": {"input_reference": {"image_url": "ftp://x"}}}, "input_reference", "https: URL"),
        (
            {"extra_body": {"input_reference": {"file_id": "a", "image_url": "b"}}},
            "input_reference",
            "either",
        ),
        ({"extra_body": {"fps": 0}}, "fps", "must be in 1…120"),
        ({"extra_body": {"fps": 121}}, "fps", "120"),
        ({"extra_body": {"seed": -1}}, "seed", ""),
        ({"extra_body": {"num_inference_steps": 101}}, "num_inference_steps", ""),
        ({"extra_body": {"guidance_scale": 3.5}}, "guidance_scale", "has no guidance"),
        ({"extra_body": {"negative_prompt": "a dog"}}, "negative_prompt", "no negative prompt"),
        ({"extra_body": {"output_format": "png"}}, "output_format", "mp4"),
        ({"extra_body": {"output_format": "avi"}}, "output_format", "mp4"),
    ]
    for values, param, told in bad:
        arguments = {"prompt": "a ball", "model": "clips"} | values
        with pytest.raises(openai.BadRequestError) as raised:
            await client.videos.create(**arguments)
        assert (raised.value.param, raised.value.type) == (param, "invalid_request_error"), values
        assert told in str(raised.value), (values, str(raised.value))
        assert raised.value.code
        assert len(str(raised.value)) < 600
    assert (await http.get("/v1/jobs")).json()["data"] == []


async def test_an_unknown_model_is_not_found(client: AsyncOpenAI, worker: HandWorker) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        await client.videos.create(prompt="a ball", model="nix")
    assert raised.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("method", "path", "status", "param"),
    [
        ("GET", "/v1/videos?limit=0", 400, "limit"),
        ("GET", "/v1/videos?limit=101", 400, "limit"),
        ("GET", "/v1/videos?order=up", 400, "order"),
        ("GET", "/v1/videos/video_0/content?variant=audio", 400, "variant"),
        ("POST", "/v1/videos/video_0/remix", 415, None),
        ("PUT", "/v1/videos", 405, None),
        ("POST", "/v1/videos/extensions", 415, None),
        ("GET", "/v1/videos/characters/char_1", 404, None),
    ],
)
async def test_what_is_not_possible_is_told_in_openais_envelope(
    http: httpx.AsyncClient, method: str, path: str, status: int, param: str | None
) -> None:
    response = await http.request(method, path)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["type"]) == (status, param, "invalid_request_error")


async def test_a_body_of_another_kind_is_refused(http: httpx.AsyncClient, worker: HandWorker) -> None:
    response = await http.post("/v1/videos", content=b"prompt=a", headers={"content-type": "text/plain"})
    assert (response.status_code, response.json()["error"]["code"]) == (415, "unsupported_media_type")
    forms: list[dict[str, Any]] = [
        {"files": {"prompt": IMAGE}},
        {"files": [("input_reference", IMAGE)] * 2, "data": {"prompt": "a"}},
        {"files": {"input_reference": IMAGE}, "data": {"prompt": "a", "input_reference[file_id]": "file-1"}},
        {"files": {"x": ("", b"")}, "data": {"prompt": "a", "input_reference": "file-1"}},
    ]
    for form in forms:
        response = await http.post("/v1/videos", **form)
        assert response.status_code == 400, form
        assert response.json()["error"]["param"] in ("prompt", "input_reference")


async def test_a_server_with_one_model_of_clips_needs_no_name(
    client: AsyncOpenAI, worker: HandWorker, http: httpx.AsyncClient
) -> None:
    assert (await client.videos.create(prompt="a ball")).model == "clips"
    await HandWorker.register(http, [replace(CLIPS, name="more")])
    async with asyncio.timeout(HANG_SECONDS):
        while len((await http.get("/v1/models")).json()["data"]) < 3:
            await asyncio.sleep(0.02)
    with pytest.raises(openai.BadRequestError, match="choose one of") as raised:
        await client.videos.create(prompt="a ball")
    assert raised.value.param == "model"
