"""Jobs name the images that they read: files, data URLs and https URLs."""

import asyncio
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import sqlalchemy as sa
from fastapi import FastAPI

from diffuserve.api.app import create_app
from diffuserve.api.config import ApiConfig
from diffuserve.api.files.fetch import ImageFetcher
from diffuserve.domain.requests.request_bounds import MAX_INPUT_IMAGES
from diffuserve.domain.tenant import Plan, Role
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.database import schema
from diffuserve.jobs.store import JobStore
from diffuserve.safety.processes.intake_pool import IntakePool
from diffuserve.storage.local import LocalArtifactStore
from support.certificates import certified
from support.hand_worker import HAND_SPEC, HandWorker
from support.image_files import BLUE, HTML, RED, image_in, png, turned_jpeg
from support.image_server import ImageServer, Page, serving_images
from support.waiting import HANG_SECONDS, eventually

SPEC = replace(HAND_SPEC, size_multiple=8, min_size=8, max_input_images=2, has_mask=True, has_strength=True)
TEXT_ONLY = replace(HAND_SPEC, name="text-only")
EDITOR = replace(HAND_SPEC, name="editor", max_input_images=MAX_INPUT_IMAGES, max_reference_pixels=256)
GUIDED = replace(
    SPEC,
    name="guided",
    max_frames=81,
    temporal_stride=4,
    has_control_image=True,
    has_last_frame=True,
    max_image_prompts=2,
    controlnets=("canny", "pose"),
    control_modes=(0, 0),
)
MAX_BYTES = 100_000
HTML_PAGE = Page(HTML, {"content-type": "text/html"})


@pytest.fixture(scope="module")
def pool() -> Iterator[IntakePool]:
    pool = IntakePool()
    yield pool
    asyncio.run(pool.close())


@pytest.fixture
async def images(app: FastAPI, tmp_path: Path) -> AsyncIterator[ImageServer]:
    """Serve images at `images.example`, which resolves to this machine, as `inside.example` does."""
    server_side, client_side = certified("images.example", tmp_path)

    async def resolve(host: str, _port: int) -> list[str]:
        return ["10.0.0.7"] if host == "inside.example" else ["127.0.0.1"]

    services = app.state.services
    async with serving_images(server_side) as server:
        config = replace(
            services.config,
            input_url_allowed_networks=("127.0.0.0/8",),
            input_url_allowed_ports=(str(server.port),),
        )
        fetcher = ImageFetcher(config, resolve=resolve, ssl_context=client_side)
        app.state.services = replace(services, image_fetcher=fetcher)
        server.pages["/a.png"] = Page(png())
        yield server
        await fetcher.close()


@pytest.fixture
def app(store: JobStore, artifacts: LocalArtifactStore, bus: MemoryEventBus, pool: IntakePool) -> FastAPI:
    config = ApiConfig(max_input_file_bytes=MAX_BYTES, input_url_seconds=0.5)
    return create_app(store, artifacts, bus, config, images=pool)


@pytest.fixture
async def worker(http: httpx.AsyncClient) -> HandWorker:
    return await HandWorker.register(http, [SPEC, TEXT_ONLY, GUIDED, EDITOR])


async def upload(http: httpx.AsyncClient, data: bytes, **options: Any) -> str:
    response = await http.post("/v1/files", files={"file": ("a.png", data)}, **options)
    return str(response.raise_for_status().json()["id"])


async def submit(http: httpx.AsyncClient, **values: Any) -> httpx.Response:
    body = {"model": values.pop("model", "hand"), "input": {"prompt": "a star", **values.pop("input")}}
    return await http.post("/v1/jobs", json=body, **values)


async def submitted(http: httpx.AsyncClient, **values: Any) -> dict[str, Any]:
    response = await submit(http, input=values)
    assert response.status_code == 202, response.text
    job: dict[str, Any] = response.json()
    return job


def data_url(data: bytes) -> str:
    return f"data:image/png;base64,{b64encode(data).decode()}"


async def files_of(http: httpx.AsyncClient) -> list[dict[str, Any]]:
    files: list[dict[str, Any]] = (await http.get("/v1/files")).json()["data"]
    return files


async def test_a_job_names_uploaded_files(http: httpx.AsyncClient, worker: HandWorker) -> None:
    image, mask = await upload(http, png()), await upload(http, png(color=(9, 9, 9)))
    job = await submitted(http, image=image, mask=mask, strength=0.5)
    assert job["input"]["image"] == {"id": image, "width": 64, "height": 48, "mode": "RGB"}
    assert job["input"]["mask"] == {"id": mask, "width": 64, "height": 48, "mode": "L"}
    assert (job["input"]["width"], job["input"]["height"]) == (64, 48)
    assert (await http.delete(f"/v1/files/{image}")).json()["code"] == "file_in_use"
    (lease,) = await worker.claim()
    assert lease.input["image"]["id"] == image
    await worker.complete(lease)
    assert (await http.delete(f"/v1/files/{image}")).status_code == 200


async def test_several_images_stay_a_list(http: httpx.AsyncClient, worker: HandWorker) -> None:
    ids = [await upload(http, png(color=color)) for color in (RED, BLUE)]
    job = await submitted(http, image=ids)
    assert [image["id"] for image in job["input"]["image"]] == ids


async def test_images_of_every_field_are_found_kept_and_handed_out(
    http: httpx.AsyncClient, worker: HandWorker, images: ImageServer
) -> None:
    start, end = [await upload(http, png(color=color)) for color in ((9, 9, 9), BLUE)]
    control = images.url("/a.png")
    named = {
        "image": start,
        "control_image": control,
        "control_scale": 0.5,
        "last_image": data_url(png(color=(5, 5, 5))),
    }
    body = {"kind": "video.generate", "model": "guided", "input": {"prompt": "a star", **named}}
    job = (await http.post("/v1/jobs", json=body)).raise_for_status().json()
    ids = {field: job["input"][field]["id"] for field in ("image", "control_image", "last_image")}
    assert len(set(ids.values())) == 3
    assert job["input"]["control_scale"] == 0.5
    for file in ids.values():
        assert (await http.delete(f"/v1/files/{file}")).json()["code"] == "file_in_use"
    (lease,) = await worker.claim()
    assert {field: lease.input[field]["id"] for field in ids} == ids
    await worker.complete(lease)
    assert (await http.delete(f"/v1/files/{ids['control_image']}")).status_code == 200
    flat = {"prompt": "a star", "model": "guided", "image": start, "last_image": end}
    ending = (await http.post("/generate", json=flat)).raise_for_status().json()["job_id"]
    assert (await http.get(f"/v1/jobs/{ending}")).json()["kind"] == "video.generate", "as nothing else ends"
    alone = await submit(http, model="guided", input={"control_image": end})
    assert alone.json()["input"]["control_image"] == {"id": end, "width": 64, "height": 48, "mode": "RGB"}
    assert (alone.json()["input"]["height"], alone.json()["input"]["control_scale"]) == (48, 1.0)


async def test_image_prompts_are_one_or_several_and_counted_at_the_door(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    ids = [await upload(http, png(color=color)) for color in (RED, BLUE, (9, 9, 9))]
    job = (await submit(http, model="guided", input={"image_prompts": ids[:2]})).raise_for_status().json()
    assert [image["id"] for image in job["input"]["image_prompts"]] == ids[:2]
    assert (job["input"]["image_prompt_scale"], job["input"]["width"]) == (1.0, GUIDED.width)
    flat = {"prompt": "a star", "model": "guided", "image_prompts": ids[2], "image_prompt_scale": 0.5}
    alone = (await http.post("/generate", json=flat)).raise_for_status().json()["job_id"]
    (lease, second) = [*await worker.claim(), *await worker.claim()]
    assert {second.job_id: second.input["image_prompts"]["id"]} == {alone: ids[2]}
    await worker.complete(lease)
    for values in ({"image_prompts": ids}, {"image_prompt_scale": 0.5}):
        refused = await submit(http, model="guided", input=values)
        assert refused.status_code == 422, refused.text


async def test_images_of_controls_come_by_every_route_with_what_is_said_of_them(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    file = await upload(http, png())
    said: list[dict[str, Any]] = [
        {"name": "canny", "image": file, "weight": 0.5, "end": 0.25},
        {"name": "pose", "image": file},
    ]
    values: dict[str, Any] = {"prompt": "a star", "controls": said}
    jobs = await submit(http, model="guided", input=values)
    flat = await http.post("/generate", json={"model": "guided", **values})
    images = await http.post("/v1/images/generations", json={"model": "guided", **values, "n": 0})
    lines = {"items": [{"custom_id": "0", "input": values}], "model": "guided"}
    batch = await http.post("/v1/batches", json=lines)
    assert [response.status_code for response in (jobs, flat, batch)] == [202, 202, 202]
    assert "controls" not in images.text, "which has the field too, and refuses the number of images"
    for job in (await http.get("/v1/jobs")).json()["data"]:
        canny, pose = job["input"]["controls"]
        assert (canny["name"], canny["weight"], canny["end"]) == ("canny", 0.5, 0.25)
        assert canny["image"]["id"] == pose["image"]["id"] == file
        assert (pose["weight"], pose["start"], pose["end"]) == (1.0, 0.0, 1.0)
    assert (await http.delete(f"/v1/files/{file}")).json()["code"] == "file_in_use"
    (lease, *_) = await worker.claim()
    assert [use["name"] for use in lease.input["controls"]] == ["canny", "pose"]
    for change, reason in (
        ({"name": "cany"}, "known: canny, pose"),
        ({"weight": 3}, "less than or equal to 2"),
        ({"start": 0.5}, "must be before its end"),
        ({"scale": 1}, "scale"),
    ):
        refused = await submit(http, model="guided", input=values | {"controls": [said[0] | change]})
        assert (refused.status_code, reason in refused.text) == (422, True), refused.text


async def test_as_many_references_as_any_model_takes_come_by_every_route_and_one_more_does_not(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    ids = [await upload(http, png(16, 16, (number, 0, 0))) for number in range(MAX_INPUT_IMAGES)]
    options = {"model": "editor"}
    jobs = await submit(http, input={"image": ids}, **options)
    flat = await http.post("/generate", json={"prompt": "a star", "image": ids, **options})
    lines = {"items": [{"custom_id": "0", "input": {"prompt": "a star", "image": ids}}], **options}
    batch = await http.post("/v1/batches", json=lines)
    assert [response.status_code for response in (jobs, flat, batch)] == [202, 202, 202]
    listed = (await http.get("/v1/jobs")).json()["data"]
    assert [[image["id"] for image in job["input"]["image"]] for job in listed] == [ids] * 3
    for path, body in (
        ("/v1/jobs", {"input": {"prompt": "a star", "image": [*ids, ids[0]]}, **options}),
        ("/generate", {"prompt": "a star", "image": [*ids, ids[0]], **options}),
    ):
        refused = await http.post(path, json=body)
        assert (refused.status_code, "give 1 to 16" in refused.text) == (422, True)


async def test_a_model_that_takes_no_control_image_names_those_that_do(
    http: httpx.AsyncClient, worker: HandWorker, images: ImageServer
) -> None:
    refused = await submit(http, input={"control_image": images.url("/a.png")})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == "input.control_image"
    assert refused.json()["errors"][0]["message"].endswith("leave control_image out, or choose guided")
    assert images.received == []


async def test_a_data_url_becomes_a_file(http: httpx.AsyncClient, worker: HandWorker) -> None:
    jobs = [await submitted(http, image=data_url(turned_jpeg())) for _ in range(2)]
    [file] = await files_of(http)
    assert [job["input"]["image"] for job in jobs] == [
        {"id": file["id"], "width": 48, "height": 64, "mode": "RGB"}
    ] * 2
    await submitted(http, image=file["id"], mask=data_url(png(48, 64, (255, 255, 255))))
    mask = (await http.get(f"/v1/files/{(await files_of(http))[0]['id']}/content")).content
    assert (image_in(mask).mode, image_in(mask).size) == ("L", (48, 64))


async def test_an_image_is_fetched_by_its_url(
    http: httpx.AsyncClient, worker: HandWorker, images: ImageServer
) -> None:
    images.pages["/moved"] = Page(status=302, headers={"location": "/a.png"})
    jobs = [await submitted(http, image=images.url(path)) for path in ("/a.png", "/moved")]
    [file] = await files_of(http)
    assert {job["input"]["image"]["id"] for job in jobs} == {file["id"]}
    assert file["filename"] == "a.png"
    assert "authorization" not in images.received[0].headers


@pytest.mark.parametrize(
    ("url", "page", "status", "message"),
    [
        ("http://images.example:{port}/x", None, 422, "must be an https URL"),
        ("https://10.0.0.7:{port}/x", None, 422, "DIFFUSERVE_INPUT_URL_ALLOWED_NETWORKS"),
        ("https://inside.example:{port}/x", None, 422, "inside.example does not lead to a public address"),
        ("https://images.example:9/x", None, 422, "port 9 is not allowed"),
        ("https://user@images.example:{port}/x", None, 422, "user names"),
        ("https://images.example:{port}/x", Page(status=404), 422, "status 404"),
        ("https://images.example:{port}/x", HTML_PAGE, 422, "text/html"),
        ("https://images.example:{port}/x", Page(HTML), 422, "is no image"),
        ("https://images.example:{port}/x", Page(bytes(MAX_BYTES + 1)), 413, "more than 100,000 bytes"),
        ("https://images.example:{port}/x", Page(png(), is_whole=False), 422, "within 0.5 s"),
        ("https://images.example:{port}/x", Page(status=302, headers={"location": "/x"}), 422, "3 times"),
        (
            "https://images.example:{port}/x",
            Page(status=302, headers={"location": "http://images.example/a.png"}),
            422,
            "what it redirects to",
        ),
        (
            "https://images.example:{port}/x",
            Page(status=307, headers={"location": "https://169.254.169.254/latest"}),
            422,
            "not allowed",
        ),
        (
            "https://images.example:{port}/x",
            Page(status=301, headers={"location": "https://inside.example:{port}/"}),
            422,
            "not lead to a public address",
        ),
    ],
    ids=[
        *("http", "private", "name of private", "port", "user", "missing", "HTML", "HTML as image", "huge"),
        *("slow", "circle", "redirect to http", "redirect to metadata", "redirect to private"),
    ],
)
async def test_a_url_that_leads_to_no_image_is_refused(
    http: httpx.AsyncClient,
    worker: HandWorker,
    images: ImageServer,
    url: str,
    page: Page | None,
    status: int,
    message: str,
) -> None:
    if page is not None:
        moved = {name: text.replace("{port}", str(images.port)) for name, text in page.headers.items()}
        images.pages["/x"] = replace(page, headers=moved)
    response = await submit(http, input={"image": url.replace("{port}", str(images.port))})
    assert (response.status_code, message in response.json()["detail"]) == (status, True), response.text
    assert "image" in response.json()["detail"]
    if status == 422:
        assert [error["field"] for error in response.json()["errors"]] == ["input.image"]
    assert await files_of(http) == []
    assert (await http.get("/v1/jobs")).json()["data"] == []


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ("file-0194f2c1a2b34c5d6e7f8091a2", "is no file of yours"),
        ("photo.png", "names no image"),
        ("data:text/plain;base64,aGk=", "must be an image in base64"),
        ("data:image/png,hello", "must be an image in base64"),
        ("data:image/png;base64,????", "is not base64"),
        (data_url(b""), "is empty"),
        (data_url(HTML), "is no image"),
        (data_url(png()[:60]), "broken"),
    ],
    ids=["unknown", "path", "text", "no base64", "bad base64", "empty", "HTML", "truncated"],
)
async def test_a_name_that_leads_to_no_image_is_refused(
    http: httpx.AsyncClient, worker: HandWorker, image: str, message: str
) -> None:
    response = await submit(http, input={"image": image})
    [error] = response.json()["errors"]
    assert (response.status_code, error["field"]) == (422, "input.image")
    assert message in error["message"]
    assert len(response.text) < 1_000, "the image is not sent back"


async def test_files_of_others_and_expired_ones_are_unknown(
    http: httpx.AsyncClient, app: FastAPI, store: JobStore
) -> None:
    keys = [await store.keys.create(Role.TENANT, tenant_id=name) for name in ("ada", "bob")]
    keys.append(await store.keys.create(Role.WORKER))
    ada, bob, machine = ({"authorization": f"Bearer {secret}"} for _, secret in keys)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://api.test", headers=machine) as own:
        await HandWorker.register(own, [SPEC])
    file = await upload(http, png(), headers=ada)
    assert (await submit(http, input={"image": file}, headers=bob)).status_code == 422
    past = sa.update(schema.files).values(expires_at=time.time() - 1)
    await store.database.write(lambda transaction: transaction.execute(past))
    await store.housekeeping.forget_files()
    refused = await submit(http, input={"image": file}, headers=ada)
    assert (refused.status_code, "expired" in refused.json()["detail"]) == (422, True)


async def test_a_repeated_key_fetches_nothing(
    http: httpx.AsyncClient, worker: HandWorker, images: ImageServer
) -> None:
    named, headers = {"image": images.url("/a.png")}, {"idempotency-key": "once"}
    first = (await submit(http, input=named, headers=headers)).json()
    del images.pages["/a.png"]
    again = (await submit(http, input=named, headers=headers)).json()
    assert again["id"] == first["id"]
    other = await submit(http, input={"image": images.url("/b.png")}, headers=headers)
    assert other.json()["code"] == "idempotency_mismatch"
    assert len(images.received) == 1


@pytest.mark.parametrize(
    "store_config",
    [StoreConfig(plans={"one": Plan(name="one", max_queued=1)}, default_plan="one")],
    ids=["one job"],
)
async def test_what_can_be_refused_at_once_fetches_nothing(
    http: httpx.AsyncClient, worker: HandWorker, images: ImageServer
) -> None:
    url = images.url("/a.png")
    for values, message in (
        ({"model": "text-only", "input": {"image": url}}, "takes no image"),
        ({"input": {"image": [url] * 3}}, "at most 2"),
        ({"input": {"image": url, "strength": 0.01}}, "leaves none"),
        ({"input": {"image": url, "width": 12}}, "multiple of 8"),
        ({"input": {"image": url, "mask": "file-0194f2c1a2b34c5d6e7f8091a2"}}, "no file of yours"),
    ):
        response = await submit(http, **values)
        assert response.status_code == 422
        assert message in response.json()["detail"]
    assert (await submit(http, input={})).status_code == 202
    full = await submit(http, input={"image": url})
    assert full.json()["code"] == "queue_full"
    assert images.received == []


async def test_items_of_a_batch_name_images(http: httpx.AsyncClient, worker: HandWorker) -> None:
    file = await upload(http, png())
    named: list[dict[str, Any]] = [{"image": file}, {"image": data_url(png(color=BLUE)), "mask": file}, {}]
    items = [
        {"custom_id": str(number), "input": {"prompt": "a star", **images}}
        for number, images in enumerate(named)
    ]
    headers = {"content-type": "application/jsonl"}
    lines = b"\n".join(map(orjson.dumps, items))
    response = await http.post("/v1/batches", content=lines, headers=headers, params={"model": "hand"})
    assert response.status_code == 202, response.text
    jobs = {job["custom_id"]: job["input"] for job in (await http.get("/v1/jobs")).json()["data"]}
    assert jobs["0"]["image"]["id"] == jobs["1"]["mask"]["id"] == file
    assert (jobs["0"]["image"]["mode"], jobs["1"]["mask"]["mode"]) == ("RGB", "L")
    assert jobs["1"]["image"]["id"] in {found["id"] for found in await files_of(http)} - {file}
    assert (jobs["0"]["height"], "image" in jobs["2"]) == (48, False)
    assert (await http.delete(f"/v1/files/{file}")).status_code == 409


async def test_items_of_a_batch_share_what_guides_them(http: httpx.AsyncClient, worker: HandWorker) -> None:
    edges = data_url(png())
    items = [
        {"custom_id": str(number), "input": {"prompt": "a star", "control_image": edges}}
        for number in range(3)
    ]
    response = await http.post("/v1/batches", json={"items": items, "model": "guided"})
    assert response.status_code == 202, response.text
    jobs = [job["input"] for job in (await http.get("/v1/jobs")).json()["data"]]
    [file] = await files_of(http)
    assert [job["control_image"]["id"] for job in jobs] == [file["id"]] * 3
    assert [job["height"] for job in jobs] == [48] * 3, "they have its size"
    missing = {"custom_id": "0", "input": {"prompt": "a star", "control_image": "file-0"}}
    refused = await http.post("/v1/batches", json={"items": [missing], "model": "guided"})
    assert refused.json()["errors"][0]["field"] == "items.0.input.control_image"


@pytest.mark.parametrize(
    "store_config",
    [StoreConfig(plans={"slow": Plan(name="slow", requests_per_second=1)}, default_plan="slow")],
    ids=["an item a second"],
)
async def test_no_image_of_a_batch_is_decoded_before_earlier_items_are_paid(
    http: httpx.AsyncClient, worker: HandWorker
) -> None:
    items = [{"custom_id": str(number), "input": {"prompt": "a star"}} for number in range(100)]
    first = await http.post("/v1/batches", json={"model": "hand", "items": items})
    assert first.status_code == 202, first.text
    async with asyncio.timeout(HANG_SECONDS):  # its own request is paid after a second
        while True:
            items[0]["input"] = {"prompt": "a star", "image": data_url(png())}
            second = await http.post("/v1/batches", json={"model": "hand", "items": items[:1]})
            if "items of batches" in second.json()["detail"]:
                break
            await asyncio.sleep(0.1)
    assert second.json()["code"] == "rate_limited"
    assert await files_of(http) == []


async def test_a_tenant_waits_for_some_servers_at_a_time_and_leaves_room_for_others(
    app: FastAPI, images: ImageServer
) -> None:
    fetcher, slow = app.state.services.image_fetcher, images.url("/slow")
    images.pages["/slow"] = Page(png(), is_whole=False)

    async def fetch(tenant_id: str, url: str) -> bytes:
        async with fetcher.fetched(tenant_id, "image", url) as data:
            return bytes(data)

    waiting = [asyncio.create_task(fetch("hog", slow)) for _ in range(20)]
    await eventually(lambda: len(images.received) >= 4)
    assert await fetch("ada", images.url("/a.png")) == png()
    assert [request.path for request in images.received[:5]] == ["/slow"] * 4 + ["/a.png"]
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ("file-0194f2c1a2b34c5d6e7f8091a2", "is no file of yours"),
        ("https://images.example/a.png", "upload the image"),
        (data_url(HTML), "is no image"),
    ],
    ids=["unknown", "https", "HTML"],
)
async def test_an_item_whose_image_cannot_be_used_is_named(
    http: httpx.AsyncClient, worker: HandWorker, image: str, message: str
) -> None:
    items = [
        {"custom_id": "0", "input": {"prompt": "a star"}},
        {"custom_id": "1", "input": {"prompt": "a star", "image": image}},
    ]
    response = await http.post("/v1/batches", json={"model": "hand", "items": items})
    [error] = response.json()["errors"]
    assert (response.status_code, error["field"]) == (422, "items.1.input.image")
    assert message in error["message"]
