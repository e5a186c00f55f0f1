"""Edits and variations of images with the official `openai` package, unmodified, against a live server."""

import asyncio
import base64
import io
import json
from collections.abc import AsyncGenerator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from fastapi import FastAPI
from openai import AsyncOpenAI, OpenAI
from PIL import Image

from diffuserve.api.app import create_app
from diffuserve.api.config import ApiConfig
from diffuserve.api.openai.request_bodies import VARIATION_PROMPT, VARIATION_STRENGTH
from diffuserve.domain.requests.request_bounds import MAX_INPUT_IMAGES
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.store import JobStore
from diffuserve.safety.processes.intake_pool import IntakePool
from diffuserve.storage.local import LocalArtifactStore
from support.hand_worker import PNG, HandWorker
from support.image_files import file_of, image_in, png
from support.painting import EDITOR, PAINTER
from support.waiting import HANG_SECONDS


@pytest.fixture
def app(store: JobStore, artifacts: LocalArtifactStore, bus: MemoryEventBus, pool: IntakePool) -> FastAPI:
    return create_app(store, artifacts, bus, ApiConfig(poll_seconds=0.2), images=pool)


@pytest.fixture
async def painter(http: httpx.AsyncClient) -> AsyncGenerator[HandWorker]:
    """Complete every job, in the background."""
    worker = await HandWorker.register(http, [PAINTER, EDITOR])
    working = asyncio.create_task(worker.work())
    yield worker
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working


async def last_input(http: httpx.AsyncClient) -> dict[str, Any]:
    listed = (await http.get("/v1/jobs")).json()["data"]
    values: dict[str, Any] = listed[0]["input"]
    return values


async def stored_image(http: httpx.AsyncClient, image: dict[str, Any]) -> Image.Image:
    return image_in((await http.get(f"/v1/files/{image['id']}/content")).content)


def hole(width: int = 64, height: int = 48) -> bytes:
    """Return an opaque image whose left half is transparent."""
    image = Image.new("RGBA", (width, height), (9, 9, 9, 255))
    image.paste((9, 9, 9, 0), (0, 0, width // 2, height))
    return file_of(image)


def whitened(width: int = 64, height: int = 48) -> bytes:
    """Return a black image whose left half is white."""
    image = Image.new("L", (width, height), 0)
    image.paste(255, (0, 0, width // 2, height))
    return file_of(image)


async def test_an_image_is_edited(client: AsyncOpenAI, painter: HandWorker, http: httpx.AsyncClient) -> None:
    extra = {
        "strength": 0.5,
        "seed": 7,
        "num_inference_steps": 8,
        "guidance_scale": 2.5,
        "negative_prompt": "a dog",
        "sampler": "ddim",
    }
    response = await client.images.edit(
        image=png(64, 48),
        prompt="a cat",
        model="painter",
        n=2,
        quality="high",
        user="u1",
        input_fidelity="high",
        extra_body=extra,
    )
    assert response.data is not None
    assert [base64.b64decode(image.b64_json or "") for image in response.data] == [PNG, PNG]
    assert response.size == "64x48"
    assert response.usage is not None
    assert response.usage.input_tokens_details.image_tokens == 64 * 48 // 256
    given = await last_input(http)
    assert given.items() >= (extra | {"width": 64, "height": 48, "num_images": 2}).items()
    assert given["image"] == {"id": given["image"]["id"], "width": 64, "height": 48, "mode": "RGB"}
    assert (await stored_image(http, given["image"])).size == (64, 48)


@pytest.mark.parametrize("mask", [hole(), whitened()], ids=["transparent", "white"])
async def test_the_mask_is_white_where_openai_has_it_transparent(
    client: AsyncOpenAI, painter: HandWorker, http: httpx.AsyncClient, mask: bytes
) -> None:
    await client.images.edit(image=png(64, 48), mask=mask, prompt="a cat", model="painter", size="auto")
    given = await last_input(http)
    assert (given["mask"]["mode"], given["strength"]) == ("L", PAINTER.mask_strength)
    stored = await stored_image(http, given["mask"])
    assert (stored.getpixel((0, 0)), stored.getpixel((63, 0))) == (255, 0)


async def test_several_images_are_references_and_the_size_is_free(
    client: AsyncOpenAI, painter: HandWorker, http: httpx.AsyncClient
) -> None:
    files = [("one.png", png(64, 48)), ("two.webp", file_of(Image.new("RGB", (32, 32)), "WEBP"))]
    response = await client.images.edit(
        image=files, prompt="join them", model="editor", size="128x64", response_format="url"
    )
    assert response.data is not None
    assert response.data[0].url is not None
    given = await last_input(http)
    assert [(image["width"], image["height"]) for image in given["image"]] == [(64, 48), (32, 32)]
    assert (given["width"], given["height"]) == (128, 64)
    names = [file["filename"] for file in (await http.get("/v1/files")).json()["data"]]
    assert sorted(names) == ["one.png", "two.webp"]


async def test_as_many_references_as_any_model_takes_come_in_a_form_and_one_more_does_not(
    client: AsyncOpenAI, painter: HandWorker, http: httpx.AsyncClient
) -> None:
    files = [(f"{number}.png", png(16, 16, (number, 0, 0))) for number in range(MAX_INPUT_IMAGES)]
    await client.images.edit(image=files, prompt="join them", model="editor")
    given = await last_input(http)
    names = [(await http.get(f"/v1/files/{image['id']}")).json()["filename"] for image in given["image"]]
    assert names == [name for name, _ in files]
    with pytest.raises(openai.BadRequestError, match="17 times"):
        await client.images.edit(image=[*files, ("17.png", png())], prompt="join them", model="editor")


async def test_an_image_that_guides_is_named_beside_what_is_edited_or_alone(
    client: AsyncOpenAI, painter: HandWorker, http: httpx.AsyncClient
) -> None:
    edges = await client.files.create(file=("edges.png", png(64, 32)), purpose="vision")
    extra = {"control_image": edges.id, "control_scale": 0.5}
    await client.images.generate(prompt="a cat", model="painter", extra_body=extra)
    alone = await last_input(http)
    assert (alone["control_image"]["id"], alone["control_scale"]) == (edges.id, 0.5)
    assert "image" not in alone
    await client.images.edit(image=png(48, 64), prompt="a cat", model="painter", extra_body=extra)
    beside = await last_input(http)
    assert (beside["control_image"]["id"], beside["image"]["height"]) == (edges.id, 64)
    unknown = {"control_image": "edges.png"}
    with pytest.raises(openai.BadRequestError, match="names no image") as refused:
        await client.images.edit(image=png(), prompt="a cat", model="painter", extra_body=unknown)
    assert refused.value.param == "control_image"


async def test_the_blocking_client_sends_an_open_file(
    server: str, painter: HandWorker, tmp_path: Path
) -> None:
    (tmp_path / "cat.png").write_bytes(png())

    def edit() -> str:
        with (
            OpenAI(base_url=f"{server}/v1", api_key="any") as client,
            (tmp_path / "cat.png").open("rb") as file,
        ):
            response = client.images.edit(image=file, prompt="a dog", model="painter")
            assert response.data is not None
            return response.data[0].b64_json or ""

    assert base64.b64decode(await asyncio.to_thread(edit)) == PNG


@pytest.mark.parametrize("partial_images", [0, 2])
async def test_an_edit_is_streamed(client: AsyncOpenAI, painter: HandWorker, partial_images: int) -> None:
    stream = await client.images.edit(
        image=png(), prompt="a cat", model="painter", stream=True, partial_images=partial_images
    )
    events = [event async for event in stream]
    partial = ["image_edit.partial_image"] * partial_images
    assert [event.type for event in events] == [*partial, "image_edit.completed"]
    for event in events:
        type(event).model_validate(event.model_dump())
        assert base64.b64decode(event.b64_json) == PNG


async def test_nulls_that_a_form_sends_as_empty_texts_are_defaults(
    client: AsyncOpenAI, painter: HandWorker, http: httpx.AsyncClient
) -> None:
    empty: Any = None
    await client.images.edit(
        image=png(), prompt="a cat", model="painter", n=empty, size=empty, extra_body={"negative_prompt": ""}
    )
    given = await last_input(http)
    assert (given["num_images"], given["negative_prompt"]) == (1, "")


async def test_images_may_be_named_in_json(
    client: AsyncOpenAI, painter: HandWorker, http: httpx.AsyncClient
) -> None:
    file = (await http.post("/v1/files", files={"file": ("a.png", png(48, 64))})).json()
    data_url = f"data:image/png;base64,{base64.b64encode(whitened(48, 64)).decode()}"
    body = {
        "model": "painter",
        "prompt": "a cat",
        "images": [{"file_id": file["id"]}],
        "mask": {"image_url": data_url},
        "strength": 0.75,
    }
    response = await http.post("/v1/images/edits", json=body)
    assert response.status_code == 200, response.text
    given = await last_input(http)
    assert (given["image"]["id"], given["mask"]["mode"], given["strength"]) == (file["id"], "L", 0.75)
    assert "base64" not in json.dumps((await http.get("/v1/jobs")).json())


@pytest.mark.filterwarnings("ignore:deprecated")
@pytest.mark.parametrize(
    ("model", "strength"), [("painter", VARIATION_STRENGTH), ("editor", None)], ids=["painter", "editor"]
)
async def test_a_variation_has_a_prompt_that_says_nothing(
    client: AsyncOpenAI, painter: HandWorker, http: httpx.AsyncClient, model: str, strength: float | None
) -> None:
    response = await client.images.create_variation(image=png(64, 64), model=model, n=2)
    assert response.data is not None
    assert len(response.data) == 2
    given = await last_input(http)
    assert (given["prompt"], given.get("strength"), given["num_images"]) == (VARIATION_PROMPT, strength, 2)


@pytest.mark.filterwarnings("ignore:deprecated")
async def test_a_variation_takes_a_better_prompt(
    client: AsyncOpenAI, painter: HandWorker, http: httpx.AsyncClient
) -> None:
    extra = {"prompt": "a cat", "strength": 0.3, "seed": 5}
    await client.images.create_variation(image=png(), model="painter", extra_body=extra)
    assert (await last_input(http)).items() >= extra.items()


async def test_an_edit_whose_client_disconnects_is_canceled(server: str, http: httpx.AsyncClient) -> None:
    await HandWorker.register(http, [PAINTER])
    async with httpx.AsyncClient(base_url=server, timeout=HANG_SECONDS) as client:
        request = asyncio.create_task(
            client.post("/v1/images/edits", files={"image": ("a.png", png())}, data={"prompt": "a cat"})
        )
        async with asyncio.timeout(HANG_SECONDS):
            while not (await http.get("/v1/jobs")).json()["data"]:
                await asyncio.sleep(0.01)
        request.cancel()
    async with asyncio.timeout(HANG_SECONDS):
        while (await http.get("/v1/jobs")).json()["data"][0]["status"] != "canceled":
            await asyncio.sleep(0.01)


async def test_a_bad_edit_is_a_bad_request_that_names_its_parameter(
    client: AsyncOpenAI, painter: HandWorker, http: httpx.AsyncClient
) -> None:
    bad: list[tuple[dict[str, Any], str]] = [
        ({"prompt": ""}, "prompt"),
        ({"n": 11}, "n"),
        ({"size": "big"}, "size"),
        ({"extra_body": {"strength": 0}}, "strength"),
        ({"extra_body": {"strength": "half"}}, "strength"),
        ({"extra_body": {"guidance_scale": -1}}, "guidance_scale"),
        ({"extra_body": {"strength": 0.2}}, "strength"),
        ({"extra_body": {"sampler": "lcm"}}, "sampler"),
        ({"extra_body": {"seed": "one"}}, "seed"),
        ({"image": [png(), png()]}, "image"),
        ({"image": b""}, "image"),
        ({"image": b"no image"}, "image"),
        ({"mask": png(64, 64)}, "mask"),
        ({"mask": b"no image"}, "mask"),
        ({"mask": file_of(Image.new("RGBA", (64, 48), (9, 9, 9, 255)))}, "mask"),
        ({"model": "editor", "mask": hole()}, "mask"),
        ({"model": "editor", "image": [png()] * (MAX_INPUT_IMAGES + 1)}, "image"),
        ({"background": "transparent"}, "background"),
    ]
    for values, param in bad:
        arguments = {"image": png(), "prompt": "a cat", "model": "painter"} | values
        with pytest.raises(openai.BadRequestError) as raised:
            await client.images.edit(**arguments)
        assert (raised.value.param, raised.value.type) == (param, "invalid_request_error"), values
        assert raised.value.code
        assert len(str(raised.value)) < 600
    assert (await http.get("/v1/jobs")).json()["data"] == []


@pytest.mark.parametrize("path", ["/v1/images/edits", "/v1/images/variations"])
async def test_a_body_of_another_kind_is_refused(
    http: httpx.AsyncClient, painter: HandWorker, path: str
) -> None:
    response = await http.post(path, content=b"prompt=a", headers={"content-type": "text/plain"})
    assert (response.status_code, response.json()["error"]["code"]) == (415, "unsupported_media_type")
    assert "multipart/form-data" in response.json()["error"]["message"]
    for files in ({"other": ("a.png", png())}, [("mask", ("a.png", png()))]):
        response = await http.post(path, files=files, data={"prompt": "a cat"})
        assert response.status_code == 400
    named = await http.post(path, files={"x": ("", b"")}, data={"prompt": "a", "image": "file-1"})
    assert named.json()["error"]["param"] == "image"


async def test_a_form_is_limited_as_a_whole(
    store: JobStore, artifacts: LocalArtifactStore, bus: MemoryEventBus, pool: IntakePool
) -> None:
    config = ApiConfig(max_input_file_bytes=5_000)
    app = create_app(store, artifacts, bus, config, images=pool)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api.test") as http:
        await HandWorker.register(http, [PAINTER])
        too_large = io.BytesIO(png() + bytes(100_000))
        response = await http.post(
            "/v1/images/edits", files={"image": ("a.png", too_large)}, data={"prompt": "a cat"}
        )
        assert (response.status_code, response.json()["error"]["code"]) == (400, "too_large")
        response = await http.post(
            "/v1/images/edits", files={"image": ("a.png", png() + bytes(6_000))}, data={"prompt": "a cat"}
        )
        assert (response.status_code, response.json()["error"]["code"]) == (400, "too_large")
        assert (await http.get("/v1/files")).json()["data"] == []
