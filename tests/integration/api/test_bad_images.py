"""Images that no job can use are refused by every route in the same words; no response repeats an image."""

import base64
import dataclasses
import io
import logging
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from PIL import Image

from diffuserve.api.app import create_app
from diffuserve.api.config import ApiConfig
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.store import JobStore
from diffuserve.safety.processes.intake_pool import IntakePool
from diffuserve.storage.local import LocalArtifactStore
from support import image_files
from support.hand_worker import HAND_SPEC, HandWorker
from support.image_files import file_of, png
from support.painting import EDITOR, PAINTER

MAX_BYTES = 100_000
FILLER = replace(PAINTER, name="filler", min_input_images=1, needs_mask=True)
ROUTES = ("/v1/jobs", "/generate", "/v1/images/edits")
CAT = png()
BEGINNING = base64.b64encode(CAT)[:24].decode()
UNKNOWN_FILE = f"file-{'0' * 26}"


@pytest.fixture
def app(store: JobStore, artifacts: LocalArtifactStore, bus: MemoryEventBus, pool: IntakePool) -> FastAPI:
    config = ApiConfig(poll_seconds=0.2, max_input_file_bytes=MAX_BYTES)
    return create_app(store, artifacts, bus, config, images=pool)


@pytest.fixture
async def worker(http: httpx.AsyncClient) -> HandWorker:
    return await HandWorker.register(http, [PAINTER, EDITOR, FILLER, HAND_SPEC])


def data_url(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


@dataclass(frozen=True)
class Bad:
    """A request that is refused: its images as files or names, its values, and what the refusal says.

    `num_stored` is the number of its images that are read and stored by then.
    """

    field: str
    remedy: str
    values: dict[str, Any] = dataclasses.field(default_factory=dict)
    image: Any = CAT
    mask: Any = None
    model: str = "painter"
    code: str = "invalid_params"
    status: int = 422
    num_stored: int = 0

    async def send(self, http: httpx.AsyncClient, route: str) -> httpx.Response | None:
        """Send the request; return `None` if this route cannot express it."""
        if route == "/v1/images/edits":
            return await self._send_form(http)
        values = {"prompt": "a cat", "image": named(self.image), "mask": named(self.mask)} | self.values
        if route == "/v1/jobs":
            return await http.post(route, json={"model": self.model, "input": values})
        return await http.post(route, json={"model": self.model} | values)

    async def _send_form(self, http: httpx.AsyncClient) -> httpx.Response | None:
        images = self.image if isinstance(self.image, list) else [self.image] * (self.image is not None)
        files = [("image", image) for image in images] + [("mask", self.mask)] * (self.mask is not None)
        if not files or not all(isinstance(data, bytes) for _, data in files):
            return None
        sent = [(name, ("a.png", io.BytesIO(data))) for name, data in files]
        texts = {"prompt": "a cat", "model": self.model} | {
            name: str(self.values[name]) for name in self.values
        }
        return await http.post("/v1/images/edits", files=sent, data=texts)


def named(image: Any) -> Any:
    if isinstance(image, list):
        return [named(each) for each in image]
    return data_url(image) if isinstance(image, bytes) else image


BAD = {
    "no image": Bad("image", "is no image; send PNG, JPEG, WEBP", image=image_files.HTML),
    "vector graphic": Bad("image", "is no image", image=image_files.SVG),
    "truncated": Bad("image", "is a broken image file", image=png()[:-30]),
    "empty": Bad("image", "is empty; send an image", image=b""),
    "bomb": Bad("image", "is too large; send at most", image=image_files.bomb(9_000)),
    "animated": Bad("image", "is animated; send a single image", image=image_files.animated_webp()),
    "too many bytes": Bad(
        "image", "more than 100,000 bytes", image=png() + bytes(MAX_BYTES), code="too_large", status=413
    ),
    "broken mask": Bad("mask", "is a broken image file", mask=png()[:-30], num_stored=1),
    "mask of text": Bad("mask", "is no image", mask=image_files.HTML, num_stored=1),
    "mask of another size": Bad("mask", "send a mask of the same size", mask=png(64, 64), num_stored=2),
    "no step": Bad("strength", "give at least 0.25", {"strength": 0.2}),
    "strength 0": Bad("strength", "without 0", {"strength": 0}),
    "strength 2": Bad("strength", "without 0", {"strength": 2}),
    "strength of references": Bad(
        "strength",
        "leave strength out",
        {"strength": 0.5},
        model="editor",
        code="model_not_capable",
    ),
    "sampler of others": Bad("sampler", "it has euler, ddim", {"sampler": "lcm"}, code="model_not_capable"),
    "sampler of nobody": Bad("sampler", "did you mean 'euler'?", {"sampler": "eular"}),
    "guidance": Bad(
        "guidance_scale",
        "leave it out",
        {"guidance_scale": 3.5},
        model="editor",
        code="model_not_capable",
    ),
    "negative prompt": Bad(
        "negative_prompt",
        "describe the",
        {"negative_prompt": "a dog"},
        model="editor",
        code="model_not_capable",
    ),
    "model without images": Bad(
        "image", "takes no image; leave it out", model="hand", code="model_not_capable"
    ),
    "too many for the model": Bad(
        "image",
        "at most 1; leave the others out",
        image=[png(), png()],
        code="model_not_capable",
    ),
    "too many for any model": Bad("image", "1 to 16", image=[png()] * 17),
    "mask where none is": Bad("mask", "leave mask out", mask=png(), model="editor", code="model_not_capable"),
    "no mask where one must be": Bad("mask", "give mask", model="filler"),
    "mask alone": Bad("mask", "give image", image=None, mask=png()),
    "strength alone": Bad("strength", "give image", {"strength": 0.5}, image=None),
    "no image where one must be": Bad("image", "give image", image=None, model="filler"),
    "number": Bad("image", "must be a string", image=7),
    "no images": Bad("image", "give 1 to 16", image=[]),
    "unknown file": Bad("image", "is no file of yours", image=UNKNOWN_FILE),
    "unknown mask": Bad("mask", "is no file of yours", mask=UNKNOWN_FILE),
    "path": Bad("image", "names no image", image="cat.png"),
    "http": Bad("image", "must be an https URL", image="http://a.test/cat.png"),
    "text": Bad("image", "must be an image in base64", image="data:text/html,<b>"),
    "no base64": Bad("image", "is not base64", image="data:image/png;base64,!!!"),
    "private address": Bad("image", "", image="https://127.0.0.1/cat.png"),
}


@pytest.mark.parametrize("num_stored", [0, 1, 2])
async def test_bad_input_is_refused_with_field_value_and_remedy_by_every_route(
    http: httpx.AsyncClient, worker: HandWorker, num_stored: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for name, bad in BAD.items():
        if bad.num_stored == num_stored:
            answered = [await check_refusal(name, bad, route, http) for route in ROUTES]
            assert any(answered), name
    assert (await http.get("/v1/jobs")).json()["data"] == []
    assert len((await http.get("/v1/files")).json()["data"]) == num_stored
    assert BEGINNING not in caplog.text


async def check_refusal(name: str, bad: Bad, route: str, http: httpx.AsyncClient) -> bool:
    """Check what a route says to a bad request; return `False` if it cannot be sent there."""
    response = await bad.send(http, route)
    if response is None:
        return False
    answer = response.json()
    status, error, message = bad.status, answer, answer.get("detail", "")
    if route == "/v1/images/edits":
        error = answer["error"]
        status, message = 400, error["message"]
    assert (response.status_code, error["code"]) == (status, bad.code), (name, route, answer)
    wanted = f"input.{bad.field}" if route == "/v1/jobs" else bad.field
    assert bad.remedy in message, (name, route)
    assert bad.field in message.partition(":")[0].partition("=")[0]
    assert len(message) < 500
    assert BEGINNING not in response.text
    if bad.status == 422:
        named = error["param"] if "param" in error else error["errors"][0]["field"]
        assert named == wanted, (name, route, answer)
    return True


async def test_nothing_is_fetched_for_a_request_that_is_refused_anyway(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    elsewhere = "https://127.0.0.1/cat.png"  # refused too, but later
    for values, wanted in (
        ({"sampler": "lcm"}, "input.sampler"),
        ({"width": 100}, "input.width"),
        ({"mask": UNKNOWN_FILE}, "input.mask"),
    ):
        given = {"prompt": "a cat", "image": elsewhere} | values
        refused = await http.post("/v1/jobs", json={"model": "painter", "input": given})
        assert [error["field"] for error in refused.json()["errors"]] == [wanted]
    webhook = {"url": "https://127.0.0.1/hook"}
    given = {"prompt": "a cat", "image": elsewhere}
    refused = await http.post("/v1/jobs", json={"model": "painter", "input": given, "webhook": webhook})
    assert [error["field"] for error in refused.json()["errors"]] == ["webhook.url"]


async def test_a_body_that_is_too_large_is_told_to_upload_its_images(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    values = {"prompt": "a cat", "image": data_url(bytes(2_000_000))}
    for route in ("/v1/jobs", "/generate", "/v1/images/edits"):
        refused = await http.post(route, json={"input": values})
        assert "POST /v1/files" in refused.text
        assert "too_large" in refused.text


async def test_a_job_tells_the_ids_and_sizes_of_its_images_everywhere(
    http: httpx.AsyncClient, worker: HandWorker, store: JobStore
) -> None:
    image, mask = png(64, 48), file_of(Image.new("L", (64, 48), 255))
    values = {"prompt": "a cat", "image": data_url(image), "mask": data_url(mask), "sampler": "ddim"}
    job = (await http.post("/v1/jobs", json={"model": "painter", "input": values})).json()
    given = job["input"]
    assert given["image"] == {"id": given["image"]["id"], "width": 64, "height": 48, "mode": "RGB"}
    assert (given["mask"]["mode"], given["sampler"], given["strength"]) == ("L", "ddim", 1.0)
    flat = (await http.post("/generate", json={"model": "painter"} | values | {"strength": 0.5})).json()
    again = (await http.get(f"/v1/jobs/{flat['job_id']}")).json()
    assert (again["input"]["image"], again["input"]["strength"]) == (given["image"], 0.5), "one file, not two"
    for lease in await worker.claim(num_jobs=2):
        assert lease.input["image"] == given["image"]
        await worker.complete(lease)
    told = [
        (await http.get(path)).text
        for path in (
            f"/v1/jobs/{job['id']}",
            f"/v1/jobs/{job['id']}/events",
            f"/jobs/{job['id']}",
            "/metrics",
        )
    ]
    assert all("base64" not in text for text in told)
    assert given["image"]["id"] in told[0]
