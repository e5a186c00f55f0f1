"""The official `openai` package, unmodified, against a live server."""

import asyncio
import base64
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from diffuserve.domain.tenant import Role
from diffuserve.jobs.store import JobStore
from support.hand_worker import HAND_SPEC, PNG, HandWorker
from support.waiting import HANG_SECONDS


async def jobs(http: httpx.AsyncClient) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = (await http.get("/v1/jobs")).json()["data"]
    return listed


async def test_models_are_listed(client: AsyncOpenAI, worker: HandWorker) -> None:
    [model] = (await client.models.list()).data
    assert (model.id, model.object, model.owned_by) == ("hand", "model", "diffuserve")
    assert model.model_extra is not None
    assert model.model_extra["defaults"]["num_inference_steps"] == 4
    assert model.model_extra["limits"]["max_size"] == 256


async def test_the_blocking_client_works_too(server: str, busy_worker: HandWorker) -> None:
    def generate() -> str:
        with OpenAI(base_url=f"{server}/v1", api_key="any") as client:
            assert [model.id for model in client.models.list()] == ["hand"]
            response = client.images.generate(prompt="a cat", model="hand")
            assert response.data is not None
            return response.data[0].b64_json or ""

    assert base64.b64decode(await asyncio.to_thread(generate)) == PNG


async def test_images_are_returned_as_base64(
    client: AsyncOpenAI, busy_worker: HandWorker, http: httpx.AsyncClient
) -> None:
    response = await client.images.generate(
        prompt="a cat", model="hand", n=2, size="128x64", output_format="webp", quality="high", user="u1"
    )
    assert response.data is not None
    assert [base64.b64decode(image.b64_json or "") for image in response.data] == [PNG, PNG]
    assert (response.size, response.output_format, response.background) == ("128x64", "webp", "opaque")
    assert response.usage is not None
    # 32 tokens of text; 128×64 pixels in tokens of 256, twice
    assert (response.usage.input_tokens, response.usage.output_tokens, response.usage.total_tokens) == (
        32,
        64,
        96,
    )
    [job] = await jobs(http)
    assert (job["input"]["width"], job["input"]["height"], job["input"]["num_images"]) == (128, 64, 2)
    assert job["metadata"] == {"user": "u1"}
    assert job["result"]["artifacts"][0]["content_type"] == "image/webp"


async def test_parameters_that_openai_lacks_are_taken_as_extra_body(
    client: AsyncOpenAI, worker: HandWorker, http: httpx.AsyncClient
) -> None:
    guided = replace(HAND_SPEC, name="guided", has_guidance=True, has_negative_prompt=True)
    guide = await HandWorker.register(http, [guided])
    extra = {"seed": 7, "num_inference_steps": 3, "guidance_scale": 2.5, "negative_prompt": "a dog"}
    request = asyncio.create_task(client.images.generate(prompt="a cat", model="guided", extra_body=extra))
    [lease] = await guide.claim(wait=10)
    await guide.complete(lease)
    response = await request
    assert response.data is not None
    assert lease.input.items() >= extra.items()


async def test_models_of_layers_have_a_transparent_background(
    client: AsyncOpenAI, worker: HandWorker, http: httpx.AsyncClient
) -> None:
    layered = await HandWorker.register(http, [replace(HAND_SPEC, name="layered", has_layers=True)])
    request = asyncio.create_task(
        client.images.generate(prompt="a cat", model="layered", n=3, background="transparent")
    )
    [lease] = await layered.claim(wait=10)
    await layered.complete(lease)
    assert (await request).background == "transparent"
    with pytest.raises(
        openai.BadRequestError, match="images of layered are transparent; give transparent or"
    ):
        await client.images.generate(prompt="a cat", model="layered", background="opaque")
    for asked in ("transparent", "auto"):
        with pytest.raises(openai.BadRequestError, match="keeps no transparency; give png or webp") as raised:
            await client.images.generate(
                prompt="a cat", model="layered", background=asked, output_format="jpeg"
            )
        assert raised.value.param == "output_format"
    with pytest.raises(openai.BadRequestError, match="images of hand are opaque; give opaque or auto, or"):
        await client.images.generate(prompt="a cat", model="hand", background="transparent")


async def test_a_model_is_retrieved_by_its_id(
    client: AsyncOpenAI, worker: HandWorker, http: httpx.AsyncClient
) -> None:
    hub_id = "black-forest-labs/FLUX.1-schnell"
    await HandWorker.register(http, [replace(HAND_SPEC, name=hub_id)])
    for name in ("hand", hub_id):
        model = await client.models.retrieve(name)
        assert (model.id, model.object, model.owned_by) == (name, "model", "diffuserve")
        listed = [listed for listed in (await client.models.list()).data if listed.id == name]
        assert listed == [model]
        assert (await http.get(f"/v1/models/{name}")).json()["id"] == name
    with pytest.raises(openai.NotFoundError, match="'nix' is not served; choose one of: ") as raised:
        await client.models.retrieve("nix")
    assert raised.value.code == "model_not_found"


async def test_a_server_without_models_says_so(client: AsyncOpenAI) -> None:
    assert (await client.models.list()).data == []
    with pytest.raises(openai.NotFoundError, match="no worker has offered a model yet"):
        await client.models.retrieve("hand")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("POST", "/v1/images/upscales", 404, "not_found"),
        ("GET", "/v1/images/edits", 405, "method_not_allowed"),
        ("GET", "/v1/images/some/thing", 404, "not_found"),
        ("GET", "/v1/images", 404, "not_found"),
        ("GET", "/v1/images/generations", 405, "method_not_allowed"),
        ("DELETE", "/v1/models/hand", 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
    ],
)
async def test_what_is_not_implemented_is_told_in_openais_envelope(
    http: httpx.AsyncClient, method: str, path: str, status: int, code: str
) -> None:
    response = await http.request(method, path)
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["type"]) == (status, code, "invalid_request_error")
    assert path in error["message"]
    if status == 405:
        assert response.headers["allow"] in error["message"]
    elif path.startswith("/v1/images"):
        assert "POST /v1/images/generations" in error["message"]


async def test_images_are_returned_as_urls_that_need_no_key(
    client: AsyncOpenAI, busy_worker: HandWorker
) -> None:
    response = await client.images.generate(prompt="a cat", response_format="url", size="auto")
    assert response.data is not None
    async with httpx.AsyncClient() as anonymous:
        image = await anonymous.get(response.data[0].url or "")
    assert (image.status_code, image.content) == (200, PNG)


@pytest.mark.parametrize("partial_images", [0, 2])
async def test_a_stream_has_partial_images_and_then_the_finished_image(
    client: AsyncOpenAI, busy_worker: HandWorker, partial_images: int
) -> None:
    stream = await client.images.generate(prompt="a cat", stream=True, partial_images=partial_images)
    events = [event async for event in stream]
    assert [event.type for event in events] == ["image_generation.partial_image"] * partial_images + [
        "image_generation.completed"
    ]
    for index, event in enumerate(events):
        type(event).model_validate(event.model_dump())
        assert base64.b64decode(event.b64_json) == PNG
        assert event.size == "64x64"
        if event.type == "image_generation.partial_image":
            assert event.partial_image_index == index
        else:
            assert event.usage.total_tokens == 32 + 16


async def test_a_stream_of_many_images_completes_each(client: AsyncOpenAI, busy_worker: HandWorker) -> None:
    stream = await client.images.generate(prompt="a cat", stream=True, n=3)
    assert [event.type async for event in stream] == ["image_generation.completed"] * 3


async def test_bad_input_is_a_bad_request_that_names_its_parameter(
    client: AsyncOpenAI, worker: HandWorker
) -> None:
    bad: list[tuple[dict[str, Any], str]] = [
        ({"prompt": ""}, "prompt"),
        ({"prompt": "a", "size": "big"}, "size"),
        ({"prompt": "a", "n": 11}, "n"),
        ({"prompt": "a", "output_format": "gif"}, "output_format"),
        ({"prompt": "a", "output_format": "svg"}, "output_format"),
        ({"prompt": "a", "quality": "bogus"}, "quality"),
        ({"prompt": "a", "background": "transparent"}, "background"),
        ({"prompt": "a", "extra_body": {"num_inference_steps": 101}}, "num_inference_steps"),
        ({"prompt": "a", "extra_body": {"guidance_scale": 3.5}}, "guidance_scale"),
        ({"prompt": "a", "extra_body": {"seed": -1}}, "seed"),
    ]
    for arguments, param in bad:
        with pytest.raises(openai.BadRequestError) as raised:
            await client.images.generate(**arguments)
        assert (raised.value.param, raised.value.type) == (param, "invalid_request_error"), arguments
        assert raised.value.code


async def test_an_unknown_model_is_not_found(client: AsyncOpenAI, worker: HandWorker) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        await client.images.generate(prompt="a", model="nix")
    assert raised.value.code == "model_not_found"


async def test_a_missing_key_is_an_authentication_error(
    client: AsyncOpenAI, store: JobStore, http: httpx.AsyncClient, worker: HandWorker
) -> None:
    _, secret = await store.keys.create(Role.TENANT, tenant_id="ada")
    async with asyncio.timeout(HANG_SECONDS):
        while (await http.get("/v1/models")).status_code != 401:  # until the server has noticed its first key
            await asyncio.sleep(0.02)
    with pytest.raises(openai.AuthenticationError) as raised:
        await client.models.list()
    assert raised.value.code == "unauthorized"
    with pytest.raises(openai.AuthenticationError):
        await client.images.generate(prompt="a cat")
    assert len((await client.with_options(api_key=secret).models.list()).data) == 1


async def test_a_failed_job_is_an_error_that_the_client_does_not_retry(
    client: AsyncOpenAI, worker: HandWorker, http: httpx.AsyncClient
) -> None:
    request = asyncio.create_task(client.images.generate(prompt="a cat"))
    [lease] = await worker.claim(wait=10)
    await worker.fail(lease, "out_of_memory")
    with pytest.raises(openai.InternalServerError) as failed:
        await request
    assert failed.value.code == "out_of_memory"
    assert len(await jobs(http)) == 1


async def test_a_stream_whose_job_failed_ends_with_an_error(client: AsyncOpenAI, worker: HandWorker) -> None:
    stream = await client.images.generate(prompt="a cat", stream=True)
    [lease] = await worker.claim(wait=10)
    await worker.fail(lease, "out_of_memory")
    with pytest.raises(openai.APIError, match="out_of_memory"):
        [event async for event in stream]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("is_running", [False, True])
async def test_a_disconnected_client_cancels_its_job(
    server: str, worker: HandWorker, http: httpx.AsyncClient, stream: bool, is_running: bool
) -> None:
    async with httpx.AsyncClient(base_url=server, timeout=HANG_SECONDS) as client:
        body = {"prompt": "a cat", "stream": stream}
        request = asyncio.create_task(client.post("/v1/images/generations", json=body))
        async with asyncio.timeout(HANG_SECONDS):
            while not await jobs(http):
                await asyncio.sleep(0.01)
        if is_running:
            await worker.claim()
        request.cancel()
    wanted = "canceling" if is_running else "canceled"
    async with asyncio.timeout(HANG_SECONDS):
        while (await jobs(http))[0]["status"] != wanted:
            await asyncio.sleep(0.01)
