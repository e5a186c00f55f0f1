"""Programs that were written for AUTOMATIC1111: the package `webuiapi`, unmodified, against a live server."""

import asyncio
import base64
import io
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import webuiapi
from fastapi import FastAPI
from PIL import Image

from diffuserve.api.app import create_app
from diffuserve.api.config import ApiConfig
from diffuserve.domain.tenant import Role
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.store import JobStore
from diffuserve.safety.processes.intake_pool import IntakePool
from diffuserve.storage.local import LocalArtifactStore
from support.hand_worker import HAND_SPEC, PNG, HandWorker
from support.image_files import png
from support.painting import PAINTER
from support.waiting import eventually

CONTROLLED = replace(PAINTER, name="controlled", controlnets=("canny",), control_modes=(0,), max_adapters=2)
SPECS = [PAINTER, replace(HAND_SPEC, has_previews=True), CONTROLLED]


@pytest.fixture
def app(store: JobStore, artifacts: LocalArtifactStore, bus: MemoryEventBus, pool: IntakePool) -> FastAPI:
    config = ApiConfig(poll_seconds=0.2, doors="a1111", default_model="painter")
    return create_app(store, artifacts, bus, config, images=pool)


@pytest.fixture
async def painter(http: httpx.AsyncClient) -> HandWorker:
    return await HandWorker.register(http, SPECS)


@pytest.fixture
async def busy(painter: HandWorker) -> AsyncGenerator[HandWorker]:
    """Complete every job, in the background."""
    working = asyncio.create_task(painter.work())
    yield painter
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working


@pytest.fixture
async def webui(server: str) -> webuiapi.WebUIApi:
    return await asyncio.to_thread(client_of, server)


def client_of(server: str, **values: Any) -> webuiapi.WebUIApi:
    return webuiapi.WebUIApi(host="127.0.0.1", port=urlsplit(server).port, **values)


async def calling(call: Callable[..., Any], *args: Any, **values: Any) -> Any:
    """Call the blocking client on a thread."""
    return await asyncio.to_thread(call, *args, **values)


async def inputs(http: httpx.AsyncClient) -> list[dict[str, Any]]:
    """Return what the jobs ask for, newest first."""
    return [job["input"] for job in (await http.get("/v1/jobs")).json()["data"]]


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


async def test_images_are_drawn_from_a_text(
    webui: webuiapi.WebUIApi, busy: HandWorker, http: httpx.AsyncClient
) -> None:
    result = await calling(
        webui.txt2img,
        prompt="a cat",
        negative_prompt="a dog",
        width=128,
        height=64,
        steps=4,
        cfg_scale=5,
        seed=7,
        batch_size=2,
        n_iter=2,
        sampler_name="DDIM",
        enable_hr=True,
        styles=["nice"],
    )
    assert [image.size for image in result.images] == [(1, 1)] * 4
    assert result.info["all_seeds"] == [7, 8, 9, 10]
    assert result.info["sd_model_name"] == "painter"
    assert result.info["infotexts"][1].splitlines() == [
        "a cat",
        "Negative prompt: a dog",
        "Steps: 4, Sampler: DDIM, CFG scale: 5.0, Seed: 8, Size: 128x64, Model: painter",
    ]
    assert set(result.info["diffuserve_ignored"]) == {"enable_hr", "styles"}
    asked = {"prompt": "a cat", "negative_prompt": "a dog", "guidance_scale": 5, "num_images": 4, "seed": 7}
    [given] = await inputs(http)
    assert given.items() >= (asked | {"sampler": "ddim", "eta": 1.0, "width": 128, "height": 64}).items()


async def test_what_a_model_cannot_do_is_left_out_and_named(
    webui: webuiapi.WebUIApi, busy: HandWorker
) -> None:
    busy.warnings = ("hand does not know 'cat'",)
    result = await calling(
        webui.txt2img,
        prompt="a cat",
        negative_prompt="a dog",
        width=64,
        height=64,
        override_settings={"sd_model_checkpoint": "hand [a1b2c3]", "CLIP_stop_at_last_layers": 2},
    )
    assert result.info["sd_model_name"] == "hand"
    assert result.info["seed"] >= 0
    assert set(result.info["diffuserve_ignored"]) == {
        "negative_prompt",
        "cfg_scale",
        "sampler_name",
        "override_settings.CLIP_stop_at_last_layers",
    }
    assert result.info["diffuserve_warnings"] == list(busy.warnings)


async def test_an_image_is_filled_in_where_the_mask_is_white(
    webui: webuiapi.WebUIApi, busy: HandWorker, http: httpx.AsyncClient
) -> None:
    result = await calling(
        webui.img2img,
        images=[opened(png(64, 48))],
        mask_image=Image.new("L", (64, 48), 255),
        prompt="a cat",
        width=64,
        height=48,
        denoising_strength=0.5,
        sampler_name="Euler",
    )
    assert len(result.images) == 1
    assert result.info["denoising_strength"] == 0.5
    [given] = await inputs(http)
    assert (given["image"]["width"], given["mask"]["mode"], given["strength"]) == (64, "L", 0.5)


async def test_controls_and_adapters_are_read_where_these_clients_have_them(
    webui: webuiapi.WebUIApi, busy: HandWorker, http: httpx.AsyncClient
) -> None:
    assert await calling(webui.custom_get, "controlnet/model_list") == {"model_list": ["canny"]}
    unit = webuiapi.ControlNetUnit(
        image=opened(png(64, 48)), model="canny [aa]", weight=0.8, guidance_end=0.5
    )
    await calling(
        webui.txt2img,
        prompt="a cat <lora:fur:0.7>, fluffy",
        width=64,
        height=48,
        sampler_name="Euler",
        controlnet_units=[unit],
        alwayson_scripts={},  # else this client sends the unit with every later request too
        override_settings={"sd_model_checkpoint": "controlled"},
    )
    [given] = await inputs(http)
    assert given["prompt"] == "a cat , fluffy"
    assert given["adapters"] == [{"name": "fur", "weight": 0.7}]
    [use] = given["controls"]
    assert (use["name"], use["weight"], use["end"]) == ("canny", 0.8, 0.5)


async def test_what_there_is_is_listed(webui: webuiapi.WebUIApi, painter: HandWorker) -> None:
    assert await calling(webui.util_get_model_names) == ["controlled", "hand", "painter"]
    assert await calling(webui.util_get_sampler_names) == ["DDIM", "Euler"]
    assert "karras" in await calling(webui.util_get_scheduler_names)
    assert [each["name"] for each in await calling(webui.get_upscalers)] == ["None"]
    for empty in (webui.get_sd_vae, webui.get_prompt_styles, webui.get_hypernetworks, webui.get_loras):
        assert await calling(empty) == []
    assert await calling(webui.get_embeddings) == {"loaded": {}, "skipped": {}}
    assert await calling(webui.get_scripts) == {"txt2img": ["controlnet"], "img2img": ["controlnet"]}
    assert await calling(webui.get_cmd_flags) == {}
    assert await calling(webui.refresh_checkpoints) is None
    await calling(webui.util_wait_for_ready)
    with pytest.raises(RuntimeError, match="this server upscales no images"):
        await calling(webui.extra_single_image, opened(png(8, 8)))


async def test_a_chosen_model_draws_what_follows(
    webui: webuiapi.WebUIApi, busy: HandWorker, http: httpx.AsyncClient
) -> None:
    assert await calling(webui.util_get_current_model) == "painter"
    await calling(webui.util_set_model, "hand")
    assert await calling(webui.util_get_current_model) == "hand"
    # as Open WebUI's engine "automatic1111" sends it
    body = {"prompt": "a cat", "batch_size": 1, "width": 64, "height": 64, "steps": 2, "negative_prompt": ""}
    answer = await http.post("/sdapi/v1/txt2img", json=body, headers={"authorization": "Basic "})
    assert opened(base64.b64decode(answer.json()["images"][0])).size == (1, 1)
    assert json.loads(answer.json()["info"])["sd_model_name"] == "hand"
    refused = await http.post("/sdapi/v1/options", json={"sd_model_checkpoint": "nix"})
    assert (refused.status_code, refused.json()["error"]) == (404, "model_not_found")


BAD_VALUES: list[tuple[dict[str, Any], str]] = [
    ({"width": 7}, "width"),
    ({"steps": 1_000}, "steps=1000"),
    ({"sampler_name": "Bogus"}, "'Bogus': is no sampler of this server, which has: Euler, DDIM"),
    ({"prompt": "<lora:fur:much>"}, "prompt='<lora:fur:much>': is not <lora:NAME:WEIGHT>"),
    ({"batch_size": 99}, "batch_size"),
    ({"override_settings": {"sd_model_checkpoint": "nix"}}, "model 'nix' is not served"),
]
BAD_BODIES: list[tuple[dict[str, Any], str]] = [
    ({}, "init_images=None: needs an image"),
    ({"init_images": ["###"]}, "init_images"),
    ({"init_images": ["http://127.0.0.1/a.png"]}, "init_images"),
    ({"init_images": ["x"], "mask": "x", "inpainting_mask_invert": 1}, "send the mask inverted"),
    ({"steps": "many"}, "steps"),
]


async def test_bad_input_is_refused_in_the_form_that_clients_show(
    webui: webuiapi.WebUIApi, painter: HandWorker, http: httpx.AsyncClient
) -> None:
    for values, told in BAD_VALUES:
        with pytest.raises(RuntimeError) as raised:
            await calling(webui.txt2img, **{"prompt": "a cat", "width": 64, "height": 64} | values)
        answer = json.loads(raised.value.args[1])
        assert told in answer["detail"]
        assert answer["errors"] == answer["detail"]
    for body, told in BAD_BODIES:
        refused = await http.post("/sdapi/v1/img2img", json={"prompt": "a cat"} | body)
        assert (refused.status_code, told in refused.json()["detail"]) == (422, True), refused.json()


async def test_a_plugin_of_photoshop_finds_parameters_in_the_images(
    http: httpx.AsyncClient, busy: HandWorker
) -> None:
    """Its requests have the sampler in `sampler_index`, and ask `png-info` about each image."""
    body = {
        "prompt": "a cat, größer",
        "negative_prompt": "",
        "steps": 4,
        "sampler_index": "Euler",
        "width": 64,
        "height": 48,
        "denoising_strength": 0.7,
        "batch_size": 1,
        "cfg_scale": 5,
        "seed": "-1",
        "init_images": [base64.b64encode(png(64, 48)).decode()],
        "mask": "data:image/png;base64," + base64.b64encode(png(64, 48)).decode(),
        "inpainting_fill": 1,
        "mask_blur": 0,
        "inpaint_full_res": False,
        "inpaint_full_res_padding": 0,
        "inpainting_mask_invert": False,
        "uniqueDocumentId": "5",
    }
    answer = (await http.post("/sdapi/v1/img2img", json=body)).json()
    info = json.loads(answer["info"])
    assert info["diffuserve_ignored"] == []
    read = await http.post(
        "/sdapi/v1/png-info", json={"image": "data:image/png;base64," + answer["images"][0]}
    )
    assert read.json()["info"] == info["infotexts"][0]
    assert (
        opened(base64.b64decode(answer["images"][0])).info["parameters"].startswith("a cat, größer\nSteps: 4")
    )
    plain = await http.post("/sdapi/v1/png-info", json={"image": base64.b64encode(PNG).decode()})
    assert plain.json() == {"info": "", "items": {}, "parameters": {}}


async def test_a_body_must_be_json_which_no_page_sends_unasked(http: httpx.AsyncClient) -> None:
    answer = await http.post("/sdapi/v1/txt2img", content=b"{}", headers={"content-type": "text/plain"})
    assert (answer.status_code, answer.json()["error"]) == (415, "unsupported_media_type")


async def test_keys_are_sent_as_passwords_and_each_sees_its_own_progress(
    server: str, store: JobStore, http: httpx.AsyncClient
) -> None:
    ada, ben = [(await store.keys.create(Role.TENANT, tenant_id=name))[1] for name in ("ada", "ben")]
    _, worker_key = await store.keys.create(Role.WORKER)
    http.headers["authorization"] = f"Bearer {worker_key}"
    worker = await HandWorker.register(http, SPECS)
    hers = await calling(client_of, server, username="anything", password=ada)
    his = await calling(client_of, server, username=ben, password=ben)
    nobody = await calling(client_of, server, username="x", password=ada[:-1])
    assert (await calling(nobody.get_options))["error"] == "unauthorized"
    drawing = asyncio.create_task(
        calling(
            hers.txt2img,
            prompt="a cat",
            width=64,
            height=64,
            override_settings={"sd_model_checkpoint": "hand"},
        )
    )
    [lease] = await worker.claim(wait=10)

    async def is_previewed() -> bool:
        await worker.report(lease, 2, 4, PNG)
        return (await calling(hers.get_progress))["current_image"] is not None

    await eventually(is_previewed)
    progress = await calling(hers.get_progress)
    assert progress["progress"] == 0.5
    assert base64.b64decode(progress["current_image"]) == PNG
    assert progress["state"]["sampling_steps"] == 4
    assert (await calling(his.get_progress))["state"]["job_count"] == 0
    await calling(his.interrupt)
    assert (await calling(hers.get_progress))["state"]["job_count"] == 1
    await calling(hers.interrupt)
    await worker.release(lease)
    assert (await drawing).images == []


async def test_a_door_that_is_not_opened_is_not_there(make_app: Callable[[ApiConfig], FastAPI]) -> None:
    transport = httpx.ASGITransport(make_app(ApiConfig()))
    async with httpx.AsyncClient(transport=transport, base_url="http://api.test") as http:
        answer = await http.post("/sdapi/v1/txt2img", json={"prompt": "a cat"})
        assert answer.json()["code"] == "not_found"
