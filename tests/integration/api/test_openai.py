"""The official `openai` package, unmodified, against a live server."""

import asyncio
import base64
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from diffuserve.domain.tenant import Role
from diffuserve.jobs.store import JobStore
from support.hand_worker import PNG, HandWorker
from support.waiting import HANG_SECONDS


@pytest.fixture
async def client(server: str) -> AsyncGenerator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{server}/v1", api_key="any", timeout=HANG_SECONDS) as client:
        yield client


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
        ({"prompt": "a", "size": "100x100"}, "size"),
        ({"prompt": "a", "size": "4096x4096"}, "size"),
        ({"prompt": "a", "size": "256x128"}, "size"),
        ({"prompt": "a", "size": "big"}, "size"),
        ({"prompt": "a", "n": 11}, "n"),
        ({"prompt": "a", "output_format": "gif"}, "output_format"),
        ({"prompt": "a", "background": "transparent"}, "background"),
        ({"prompt": "a", "extra_body": {"nonsense": 1}}, "nonsense"),
    ]
    for arguments, param in bad:
        with pytest.raises(openai.BadRequestError) as raised:
            await client.images.generate(**arguments)
        assert (raised.value.param, raised.value.type) == (param, "invalid_request_error"), arguments
        assert raised.value.code


async def test_an_unknown_model_is_not_found(client: AsyncOpenAI, worker: HandWorker) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        await client.images.generate(prompt="a", model="dall-e-3")
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
