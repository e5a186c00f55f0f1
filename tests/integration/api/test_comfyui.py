"""Programs that were written for ComfyUI, as its own examples of scripts work: graph, WebSocket, history."""

import asyncio
import base64
import copy
import json
import struct
import urllib.parse
import urllib.request
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from PIL import Image
from websockets.asyncio.client import ClientConnection, connect

from diffuserve.api.app import create_app
from diffuserve.api.config import ApiConfig
from diffuserve.domain.tenant import Role
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.store import JobStore
from diffuserve.safety.processes.intake_pool import IntakePool
from diffuserve.storage.local import LocalArtifactStore
from support.hand_worker import PNG, HandWorker
from support.image_files import file_of, png
from support.painting import PAINTER

CHECKPOINT = "v1-5-pruned-emaonly.ckpt"
SPEC = replace(
    PAINTER, name=CHECKPOINT, has_previews=True, max_adapters=2, controlnets=("canny",), control_modes=(0,)
)


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


GRAPH: Mapping[str, Any] = {
    "3": node(
        "KSampler",
        cfg=8,
        denoise=1,
        latent_image=["5", 0],
        model=["4", 0],
        negative=["7", 0],
        positive=["6", 0],
        sampler_name="euler",
        scheduler="normal",
        seed=2**63 + 5,
        steps=4,
    ),
    "4": node("CheckpointLoaderSimple", ckpt_name=CHECKPOINT),
    "5": node("EmptyLatentImage", batch_size=2, height=64, width=128),
    "6": node("CLIPTextEncode", clip=["4", 1], text="a cat"),
    "7": node("CLIPTextEncode", clip=["4", 1], text="a dog"),
    "8": node("VAEDecode", samples=["3", 0], vae=["4", 2]),
    "9": node("SaveImage", filename_prefix="ComfyUI", images=["8", 0]),
}
"""ComfyUI's graph that draws from a text."""


def changed(graph: Mapping[str, Any] = GRAPH, /, **nodes: Any) -> dict[str, Any]:
    """Return the graph with other nodes, or with other inputs of its nodes: `n6={"text": "a fox"}`."""
    copied: dict[str, Any] = copy.deepcopy(dict(graph))
    for name, values in nodes.items():
        node_id = name.removeprefix("n")
        if "class_type" in values:
            copied[node_id] = values
        else:
            copied[node_id]["inputs"] |= values
    return copied


@pytest.fixture
def app(store: JobStore, artifacts: LocalArtifactStore, bus: MemoryEventBus, pool: IntakePool) -> FastAPI:
    return create_app(store, artifacts, bus, ApiConfig(poll_seconds=0.2, doors="comfyui"), images=pool)


@pytest.fixture
async def painter(http: httpx.AsyncClient) -> HandWorker:
    return await HandWorker.register(http, [SPEC])


@pytest.fixture
async def busy(painter: HandWorker) -> AsyncGenerator[HandWorker]:
    """Complete every job, in the background."""
    working = asyncio.create_task(painter.work())
    yield painter
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working


@asynccontextmanager
async def socket(server: str, client_id: str, **values: Any) -> AsyncGenerator[ClientConnection]:
    url = f"{server.replace('http', 'ws', 1)}/ws?clientId={client_id}"
    async with connect(url, proxy=None, **values) as ws:
        assert json.loads(await ws.recv())["type"] == "status"
        yield ws


def send(server: str, graph: Mapping[str, Any], client_id: str = "") -> dict[str, Any]:
    """Send a prompt as ComfyUI's scripts do: `urllib` calls its JSON a form."""
    data = json.dumps({"prompt": graph, "client_id": client_id}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{server}/prompt", data=data)) as answer:
        told: dict[str, Any] = json.load(answer)
        return told


async def until_done(ws: ClientConnection, prompt_id: str) -> list[Any]:
    """Return the messages of a prompt up to the one that ends it; pictures are bytes."""
    messages: list[Any] = []
    while True:
        received = await ws.recv()
        messages.append(json.loads(received) if isinstance(received, str) else received)
        last = messages[-1]
        if isinstance(last, dict) and last["type"] == "executing" and last["data"]["node"] is None:
            assert last["data"]["prompt_id"] == prompt_id
            return messages


async def newest_input(http: httpx.AsyncClient) -> dict[str, Any]:
    values: dict[str, Any] = (await http.get("/v1/jobs")).json()["data"][0]["input"]
    return values


async def drawn(http: httpx.AsyncClient, graph: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the job of a graph asks for."""
    answer = await http.post("/prompt", json={"prompt": graph})
    assert answer.status_code == 200, answer.text
    return await newest_input(http)


async def refused(http: httpx.AsyncClient, graph: Mapping[str, Any]) -> dict[str, Any]:
    answer = await http.post("/prompt", json={"prompt": graph})
    assert answer.status_code == 400, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def test_a_script_sends_a_graph_follows_it_and_fetches_its_images(
    server: str, busy: HandWorker, http: httpx.AsyncClient
) -> None:
    async with socket(server, "me") as ws:
        prompt_id = (await asyncio.to_thread(send, server, GRAPH, "me"))["prompt_id"]
        messages = await until_done(ws, prompt_id)
    kinds = [message["type"] for message in messages if isinstance(message, dict)]
    assert len(kinds) == len(messages), "previews come to clients that ask for them"
    assert kinds[:3] == ["execution_start", "execution_cached", "executing"]
    assert kinds[-3:] == ["executed", "execution_success", "executing"]
    history = (await http.get(f"/history/{prompt_id}")).json()[prompt_id]
    assert history["status"] == {"status_str": "success", "completed": True, "messages": []}
    images = history["outputs"]["9"]["images"]
    assert len(images) == 2
    for image in images:
        url = f"{server}/view?{urllib.parse.urlencode(image)}"
        fetched = await http.get(url.removeprefix(server))
        assert (fetched.content, fetched.headers["content-type"]) == (PNG, "image/png")
    given = await newest_input(http)
    asked = {"prompt": "a cat", "negative_prompt": "a dog", "guidance_scale": 8, "num_inference_steps": 4}
    asked |= {"width": 128, "height": 64, "num_images": 2, "seed": 5, "sampler": "euler"}
    assert given.items() >= asked.items()
    assert list((await http.get("/api/history?max_items=5")).json()) == [prompt_id]


async def test_previews_and_images_come_over_the_socket(
    server: str, painter: HandWorker, http: httpx.AsyncClient
) -> None:
    graph = changed(n9=node("SaveImageWebsocket", images=["8", 0]), n5={"batch_size": 1})
    async with socket(server, "me") as ws:
        body = {"prompt": graph, "client_id": "me", "extra_data": {"preview_method": "auto"}}
        prompt_id = (await http.post("/prompt", json=body)).json()["prompt_id"]
        [lease] = await painter.claim(wait=10)
        assert lease.num_previews == 3
        messages: list[Any] = []
        while not any(isinstance(message, bytes) for message in messages):
            await painter.report(lease, 2, 4, PNG)
            with suppress(TimeoutError):
                async with asyncio.timeout(0.3):
                    messages.append(await ws.recv())
        await painter.complete(lease)
        messages += await until_done(ws, prompt_id)
    pictures = [message for message in messages if isinstance(message, bytes)]
    assert len(pictures) >= 2
    assert {picture[:8] for picture in pictures} == {struct.pack(">II", 1, 2)}
    assert {picture[8:] for picture in pictures} == {PNG}


async def test_an_image_is_filled_in_where_it_is_transparent(
    http: httpx.AsyncClient, painter: HandWorker
) -> None:
    image = Image.new("RGBA", (64, 48), (9, 9, 9, 255))
    image.paste((9, 9, 9, 0), (0, 0, 32, 48))
    form = {"image": ("hole.png", file_of(image), "image/png")}
    uploaded = (await http.post("/upload/image", files=form, data={"overwrite": "true"})).json()
    assert uploaded["type"] == "input"
    graph = changed(
        n10=node("LoadImage", image=uploaded["name"]),
        n5=node("VAEEncodeForInpaint", pixels=["10", 0], vae=["4", 2], mask=["10", 1], grow_mask_by=6),
        n3={"denoise": 0.75},
    )
    given = await drawn(http, graph)
    assert (given["image"]["width"], given["mask"]["mode"], given["strength"]) == (64, "L", 0.75)
    shown = await http.get("/view", params={"filename": uploaded["name"], "type": "input"})
    assert shown.headers["content-type"] == "image/png"
    listed = (await http.get("/object_info/LoadImage")).json()["LoadImage"]["input"]["required"]["image"][0]
    assert len(listed) == 2
    opaque = {"image": ("photo.png", png(64, 48), "image/png")}
    name = (await http.post("/api/upload/image", files=opaque)).json()["name"]
    told = await refused(http, changed(graph, n10={"image": name}))
    assert "has no transparency to fill in" in told["node_errors"]["10"]["errors"][0]["details"]


async def test_adapters_and_controls_are_read_from_their_nodes(
    http: httpx.AsyncClient, painter: HandWorker
) -> None:
    form = {"image": ("edges.png", png(64, 48), "image/png")}
    name = (await http.post("/upload/image", files=form)).json()["name"]
    applied = node(
        "ControlNetApplyAdvanced",
        positive=["6", 0],
        negative=["7", 0],
        control_net=["11", 0],
        image=["10", 0],
        strength=0.8,
        start_percent=0.0,
        end_percent=0.5,
    )
    graph = changed(
        n10=node("LoadImage", image=name),
        n11=node("ControlNetLoader", control_net_name="canny"),
        n12=applied,
        n13=node("LoraLoader", model=["4", 0], clip=["4", 1], lora_name="fur", strength_model=0.7),
        n14=node("PrimitiveInt", value=6),
        n3={"positive": ["12", 0], "negative": ["12", 1], "model": ["13", 0], "steps": ["14", 0]},
        n5={"width": 64},
    )
    given = await drawn(http, graph)
    assert given["adapters"] == [{"name": "fur", "weight": 0.7}]
    [use] = given["controls"]
    assert (use["name"], use["weight"], use["end"]) == ("canny", 0.8, 0.5)
    assert (given["negative_prompt"], given["num_inference_steps"]) == ("a dog", 6)


REFUSED: list[tuple[dict[str, Any], str, str, str]] = [
    ({"n4": {"ckpt_name": "nix"}}, "4", "value_not_in_list", "model 'nix' is not served; choose one of"),
    ({"n3": {"steps": 1_000}}, "3", "custom_validation_failed", "steps: must be in 1…100"),
    ({"n3": {"cfg": "high"}}, "3", "custom_validation_failed", "cfg: must be a number"),
    ({"n3": {"sampler_name": "heun"}}, "3", "value_not_in_list", "'heun' not in ['euler', 'ddim']"),
    ({"n3": {"scheduler": "karras"}}, "3", "value_not_in_list", "no karras schedule"),
    ({"n3": {"latent_image": ["3", 0]}}, "3", "custom_validation_failed", "latent_image must come from"),
    ({"n3": {"model": 7}}, "3", "required_input_missing", "model is no link"),
    ({"n5": {"width": 7}}, "5", "custom_validation_failed", "width"),
    ({"n6": {"text": ""}}, "6", "custom_validation_failed", "text: must not be empty"),
    ({"n6": node("IPAdapter", x=1)}, "6", "missing_node_type", "IPAdapter is not done here, only "),
    ({"n9": {"images": ["3", 0]}}, "9", "custom_validation_failed", "images must come from VAEDecode"),
]


async def test_what_cannot_be_done_is_told_beside_its_node(
    http: httpx.AsyncClient, painter: HandWorker
) -> None:
    for nodes, node_id, kind, told in REFUSED:
        answer = await refused(http, changed(**nodes))
        assert answer["error"]["type"] == "prompt_outputs_failed_validation"
        [error] = answer["node_errors"][node_id]["errors"]
        assert (error["type"], told in error["details"]) == (kind, True), error


async def test_circles_and_what_is_no_graph_are_refused(http: httpx.AsyncClient, painter: HandWorker) -> None:
    lora = node("LoraLoaderModelOnly", lora_name="fur", strength_model=1.0, model=["13", 0])
    told = await refused(http, changed(n13=lora, n3={"model": ["13", 0]}))
    assert told["node_errors"]["13"]["errors"][0]["type"] == "dependency_cycle"
    assert (await refused(http, {}))["error"]["type"] == "prompt_no_outputs"
    assert (await refused(http, {"\0": GRAPH["9"]}))["error"]["type"] == "invalid_prompt"
    strange = json.dumps({"prompt": GRAPH, "client_id": 7}).encode()
    for body in (b"[]", b"{", b'{"prompt": 5}', strange):
        answer = await http.post("/prompt", content=body)
        assert (answer.status_code, answer.json()["error"]["type"]) == (422, "invalid_params")


async def test_prompts_are_listed_and_canceled(http: httpx.AsyncClient, painter: HandWorker) -> None:
    first, second = [(await http.post("/prompt", json={"prompt": GRAPH})).json() for _ in range(2)]
    assert (first["number"], second["number"]) == (1, 2)
    [lease] = await painter.claim()
    queue = (await http.get("/queue")).json()
    assert [entry[1] for entry in queue["queue_running"]] == [lease.job_id]
    assert len(queue["queue_pending"]) == 1
    await http.post("/queue", json={"clear": True})
    await http.post("/interrupt")
    await painter.release(lease)
    assert (await http.get("/prompt")).json() == {"exec_info": {"queue_remaining": 0}}
    history = (await http.get("/history")).json()
    assert {entry["status"]["status_str"] for entry in history.values()} == {"error"}


async def test_what_there_is_is_listed(http: httpx.AsyncClient, painter: HandWorker) -> None:
    info = (await http.get("/object_info")).json()
    assert info["CheckpointLoaderSimple"]["input"]["required"]["ckpt_name"] == [[CHECKPOINT]]
    assert info["KSampler"]["input"]["required"]["sampler_name"] == [["euler", "ddim"]]
    assert info["SaveImage"]["output_node"]
    assert (await http.get("/models/checkpoints")).json() == [CHECKPOINT]
    assert (await http.get("/object_info/Nix")).json() == {}
    assert (await http.get("/system_stats")).json()["devices"] == []
    assert (await http.get("/embeddings")).json() == []


async def test_one_tenant_sees_nothing_of_another(
    server: str, store: JobStore, http: httpx.AsyncClient
) -> None:
    ada, ben = [(await store.keys.create(Role.TENANT, tenant_id=name))[1] for name in ("ada", "ben")]
    _, worker_key = await store.keys.create(Role.WORKER)
    http.headers["authorization"] = f"Bearer {worker_key}"
    worker = await HandWorker.register(http, [SPEC])
    hers, his = ({"authorization": f"Bearer {key}"} for key in (ada, ben))
    async with socket(server, "same", additional_headers=his) as ws:
        body = {"prompt": GRAPH, "client_id": "same"}
        prompt_id = (await http.post("/prompt", json=body, headers=hers)).json()["prompt_id"]
        [lease] = await worker.claim(wait=10)
        assert (await http.get("/queue", headers=his)).json() == {"queue_running": [], "queue_pending": []}
        await http.post("/interrupt", headers=his)
        await worker.complete(lease)
        shown = (await http.get(f"/history/{prompt_id}", headers=hers)).json()
        image = shown[prompt_id]["outputs"]["9"]["images"][0]
        assert (await http.get(f"/history/{prompt_id}", headers=his)).json() == {}
        assert (await http.get("/view", params=image, headers=his)).status_code == 404
        assert (await http.get("/view", params=image, headers=hers)).content == PNG
        own = (await http.post("/prompt", json=body, headers=his)).json()["prompt_id"]
        [lease] = await worker.claim(wait=10)
        await worker.complete(lease)
        messages = [message for message in await until_done(ws, own) if isinstance(message, dict)]
    assert {message["data"].get("prompt_id", own) for message in messages} == {own}
    basic = base64.b64encode(f"any:{ada}".encode()).decode()
    known = await http.get("/queue", headers={"authorization": f"Basic {basic}"})
    assert known.status_code == 200
    page = {"authorization": f"Basic {basic}", "sec-fetch-site": "cross-site"}
    assert (await http.post("/prompt", json=body, headers=page)).status_code == 401
    told = await http.get("/queue", headers={"authorization": "Bearer wrong"})
    assert (told.status_code, told.json()["error"]["type"]) == (401, "unauthorized")


async def test_a_door_that_is_not_opened_is_not_there(make_app: Callable[[ApiConfig], FastAPI]) -> None:
    transport = httpx.ASGITransport(make_app(ApiConfig()))
    async with httpx.AsyncClient(transport=transport, base_url="http://api.test") as http:
        assert (await http.post("/prompt", json={"prompt": GRAPH})).json()["code"] == "not_found"
