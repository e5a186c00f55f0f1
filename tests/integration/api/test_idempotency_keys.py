"""The same key and body give the same job by each door, also when the connection was cut meanwhile."""

import asyncio
import base64
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI
from openai import AsyncOpenAI

from diffuserve.api.app import create_app
from diffuserve.api.config import ApiConfig
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.store import JobStore
from diffuserve.safety.processes.intake_pool import IntakePool
from diffuserve.storage.local import LocalArtifactStore
from support.clips import CLIPS
from support.hand_worker import HAND_SPEC, PNG, HandWorker
from support.image_files import png
from support.painting import PAINTER
from support.waiting import HANG_SECONDS

_KEY = {"idempotency-key": "order 4711"}
_IMAGES, _RUN = "/v1/images/generations", "/fal/run/fal-ai/hand"
_CAT, _DOG = {"prompt": "a cat"}, {"prompt": "a dog"}


@pytest.fixture
def app(store: JobStore, artifacts: LocalArtifactStore, bus: MemoryEventBus, pool: IntakePool) -> FastAPI:
    config = ApiConfig(poll_seconds=0.2, doors="fal", default_model="hand")
    return create_app(store, artifacts, bus, config, images=pool)


async def jobs(http: httpx.AsyncClient) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = (await http.get("/v1/jobs")).json()["data"]
    return listed


@pytest.mark.parametrize("path", ["/generate", "/v1/videos", "/fal/queue/fal-ai/hand", _RUN, _IMAGES])
async def test_a_key_stands_for_one_job(http: httpx.AsyncClient, busy_worker: HandWorker, path: str) -> None:
    await HandWorker.register(http, [CLIPS])
    for _ in range(2):
        (await http.post(path, json=_CAT, headers=_KEY)).raise_for_status()
    assert len(await jobs(http)) == 1
    invalid = 400 if path.startswith("/v1") else 422  # OpenAI's API has no 422
    refused = await http.post(path, json=_DOG, headers=_KEY)
    too_long = await http.post(path, json=_CAT, headers={"idempotency-key": "x" * 256})
    assert (refused.status_code, "used with another body" in refused.text) == (invalid, True)
    assert too_long.status_code == invalid
    assert len(await jobs(http)) == 1
    (await http.post(path, json=_CAT, headers={"idempotency-key": "another"})).raise_for_status()
    assert len(await jobs(http)) == 2


@pytest.mark.parametrize("path", ["/v1/images/edits", "/v1/images/variations", "/v1/videos"])
async def test_an_image_that_comes_along_belongs_to_the_body(http: httpx.AsyncClient, path: str) -> None:
    working = asyncio.create_task((await HandWorker.register(http, [PAINTER])).work())
    await HandWorker.register(http, [CLIPS])
    field, model = ("input_reference", "clips") if path == "/v1/videos" else ("image", "painter")

    async def sent(image: bytes) -> httpx.Response:
        files, data = {field: ("a.png", image)}, {"model": model, "prompt": "a cat"}
        return await http.post(path, files=files, data=data, headers=_KEY)

    for _ in range(2):
        (await sent(png(64, 64, (9, 9, 9)))).raise_for_status()
    assert (await sent(png(64, 64, (200, 9, 9)))).status_code == 400
    assert len(await jobs(http)) == 1
    working.cancel()


async def test_a_remix_with_a_key_is_made_once(http: httpx.AsyncClient) -> None:
    await HandWorker.register(http, [CLIPS])
    original, other = [(await http.post("/v1/videos", json=_CAT)).json()["id"] for _ in range(2)]
    for path in (f"/v1/videos/{original}/remix", f"/v1/videos/{original}/remix"):
        (await http.post(path, json=_DOG, headers=_KEY)).raise_for_status()
    assert len(await jobs(http)) == 3
    assert (await http.post(f"/v1/videos/{other}/remix", json=_DOG, headers=_KEY)).status_code == 400


@pytest.mark.parametrize("is_running", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [(_IMAGES, _CAT), (_IMAGES, _CAT | {"stream": True}), (_RUN, _CAT), (f"{_RUN}/stream", _CAT)],
)
async def test_a_retry_after_a_cut_connection_gets_the_image_of_the_same_job(
    server: str, http: httpx.AsyncClient, is_running: bool, path: str, body: dict[str, Any]
) -> None:
    worker = await HandWorker.register(http, [HAND_SPEC])
    async with httpx.AsyncClient(base_url=server, timeout=HANG_SECONDS) as client:
        first = asyncio.create_task(client.post(path, json=body, headers=_KEY))
        async with asyncio.timeout(HANG_SECONDS):
            while not await jobs(http):
                await asyncio.sleep(0.01)
        leases = await worker.claim() if is_running else []
        first.cancel()
    async with httpx.AsyncClient(base_url=server, timeout=HANG_SECONDS) as client:
        retry = asyncio.create_task(client.post(path, json=body, headers=_KEY))
        await asyncio.sleep(0.5)  # in which a canceled job would be seen as such
        for lease in leases or await worker.claim():
            await worker.complete(lease)
        response = (await retry).raise_for_status()
    [job] = await jobs(http)
    assert job["status"] == "succeeded"
    assert job["id"] in response.text


async def test_the_unmodified_client_keeps_its_key_when_it_tries_again(
    server: str, http: httpx.AsyncClient
) -> None:
    worker = await HandWorker.register(http, [HAND_SPEC])
    async with AsyncOpenAI(base_url=f"{server}/v1", api_key="any", timeout=0.5, max_retries=100) as client:
        asked = client.images.generate(prompt="a cat", extra_headers=_KEY)
        waiting = asyncio.create_task(asked)
        await asyncio.sleep(1.5)  # the client's patience is over at least once
        for lease in await worker.claim():
            await worker.complete(lease)
        response = await waiting
        assert base64.b64decode((response.data or [])[0].b64_json or "") == PNG
        assert len(await jobs(http)) == 1
        with pytest.raises(openai.BadRequestError, match="used with another body") as refused:
            await client.images.generate(prompt="a dog", extra_headers=_KEY)
        assert refused.value.code == "idempotency_mismatch"
