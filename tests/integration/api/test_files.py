"""Clients upload images, which are read in another process, judged, stored, listed and deleted."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import orjson
import pytest
from fastapi import FastAPI
from openai import AsyncOpenAI, NotFoundError
from PIL import Image

from diffuserve.api.app import create_app
from diffuserve.api.config import ApiConfig
from diffuserve.domain.tenant import Plan, Role
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.store import JobStore
from diffuserve.safety.processes.intake_pool import IntakePool
from diffuserve.storage.local import LocalArtifactStore
from support import image_files
from support.hand_worker import HAND_SPEC, HandWorker
from support.image_files import BLUE, RED, file_of, image_in, png
from support.uploading import stored, upload, uploaded
from support.waiting import HANG_SECONDS

MAX_BYTES = 200_000


@pytest.fixture(scope="module")
def pool() -> Iterator[IntakePool]:
    pool = IntakePool()
    yield pool
    asyncio.run(pool.close())


@pytest.fixture
def config() -> ApiConfig:
    return ApiConfig(max_input_file_bytes=MAX_BYTES, max_lines_bytes=MAX_BYTES)


@pytest.fixture
def app(
    store: JobStore, artifacts: LocalArtifactStore, bus: MemoryEventBus, config: ApiConfig, pool: IntakePool
) -> FastAPI:
    return create_app(store, artifacts, bus, config, images=pool)


async def test_an_upload_is_stored_as_pixels_alone(http: httpx.AsyncClient, tmp_path: Path) -> None:
    file = await uploaded(http, image_files.turned_jpeg(), "C:\\photos\\me.jpg")
    assert (file["filename"], file["content_type"]) == ("me.jpg", "image/png")
    assert (file["width"], file["height"], file["verdict"]) == (48, 64, None)
    content = (await http.get(f"/v1/files/{file['id']}/content")).content
    image = image_in(content)
    assert (image.size, image.mode, image.info, len(image.getexif())) == ((48, 64), "RGB", {}, 0)
    assert image.getpixel((4, 4))[0] > 240 > 20 > image.getpixel((44, 4))[0]  # type: ignore[index]
    assert (file["bytes"], file["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
    assert (await http.get(f"/v1/files/{file['id']}")).json() == file
    assert [path.read_bytes() for path in stored(tmp_path)] == [content]


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (file_of(Image.new("CMYK", (64, 48)), "JPEG"), (64, 48)),
        (image_files.sixteen_bit_png(), (64, 48)),
        (file_of(Image.new("RGBA", (64, 48), (0, 0, 0, 0)), "WEBP"), (64, 48)),
        (file_of(Image.new("P", (64, 48))), (64, 48)),
    ],
    ids=["CMYK", "16 bits", "transparent", "palette"],
)
async def test_every_kind_of_image_becomes_the_same_kind(
    http: httpx.AsyncClient, data: bytes, size: tuple[int, int]
) -> None:
    file = await uploaded(http, data)
    image = image_in((await http.get(f"/v1/files/{file['id']}/content")).content)
    assert (image.mode, image.size, (file["width"], file["height"])) == ("RGB", size, size)


@pytest.mark.parametrize(
    ("data", "status", "message"),
    [
        (b"", 422, "is empty"),
        (image_files.HTML, 422, "is no image"),
        (image_files.SVG, 422, "is no image"),
        (b"GIF89a" + bytes(200), 422, "is no image"),
        (png()[:60], 422, "broken image file"),
        (image_files.animated_webp(), 422, "animated"),
        (image_files.bomb(), 422, "too large"),
        (png() + bytes(MAX_BYTES + 1 - len(png())), 413, "more than 200,000 bytes"),
    ],
    ids=["empty", "HTML", "SVG", "GIF", "truncated", "animated", "bomb", "one byte too many"],
)
async def test_what_is_no_image_is_refused(
    http: httpx.AsyncClient, tmp_path: Path, data: bytes, status: int, message: str
) -> None:
    response = await upload(http, data, "odd.png")
    assert response.status_code == status, response.text
    problem = response.json()
    assert message in problem["detail"]
    assert "file" in problem["detail"]
    assert stored(tmp_path) == []
    assert (await http.get("/v1/files")).json()["data"] == []


async def test_a_file_of_the_largest_size_is_stored(http: httpx.AsyncClient) -> None:
    padded = png() + bytes(MAX_BYTES - len(png()))  # decoders read no further than the image's end
    assert (await uploaded(http, padded))["width"] == 64


async def test_the_same_image_is_one_file_of_its_tenant(
    http: httpx.AsyncClient, tmp_path: Path, store: JobStore
) -> None:
    first = await uploaded(http, png())
    expires_at = (await store.files.get(first["id"])).expires_at
    again = await uploaded(
        http, file_of(Image.new("RGB", (64, 48), RED), "WEBP", lossless=True), "other.webp"
    )
    assert again["id"] == first["id"]
    assert (await store.files.get(first["id"])).expires_at > expires_at
    other = await uploaded(http, png(color=BLUE))
    listed = (await http.get("/v1/files")).json()["data"]
    assert [file["id"] for file in listed] == [other["id"], first["id"]]
    assert len(stored(tmp_path)) == 2


async def test_files_are_listed_page_by_page(http: httpx.AsyncClient) -> None:
    ids = [(await uploaded(http, png(color=(0, 0, number))))["id"] for number in range(3)]
    page = (await http.get("/v1/files", params={"limit": 2})).json()
    assert ([file["id"] for file in page["data"]], page["has_more"]) == (ids[:0:-1], True)
    rest = (await http.get("/v1/files", params={"limit": 2, "after": page["next"]})).json()
    assert ([file["id"] for file in rest["data"]], rest["has_more"]) == (ids[:1], False)


async def test_an_image_may_be_sent_as_it_is(http: httpx.AsyncClient) -> None:
    headers = {"content-type": "image/png"}
    response = await http.post("/v1/files", content=png(), headers=headers, params={"filename": "a.png"})
    assert (response.status_code, response.json()["filename"]) == (201, "a.png")
    too_large = await http.post("/v1/files", content=bytes(MAX_BYTES + 1), headers=headers)
    assert (too_large.status_code, too_large.json()["code"]) == (413, "too_large")


async def test_openais_client_uploads_lists_and_deletes(server: str) -> None:
    async with AsyncOpenAI(base_url=f"{server}/v1", api_key="none", max_retries=0) as client:
        files = [
            await client.files.create(file=("photo.png", png(64, height)), purpose="vision")
            for height in (48, 49, 50)
        ]
        file = files[0]
        assert (file.filename, file.id[:5], file.purpose) == ("photo.png", "file-", "vision")
        type(file).model_validate(file.model_dump(), strict=True)
        assert image_in((await client.files.content(file.id)).content).size == (64, 48)
        assert (await client.files.retrieve(file.id)).id == file.id
        listed = [listed.id async for listed in client.files.list(limit=2)]
        assert listed == [file.id for file in reversed(files)]
        deleted = await client.files.delete(file.id)
        assert (deleted.id, deleted.deleted, deleted.object) == (file.id, True, "file")
        with pytest.raises(NotFoundError) as raised:
            await client.files.retrieve(file.id)
        assert raised.value.code == "file_not_found"


FORM = {"content-type": "multipart/form-data; boundary=b"}
HEAD = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a.png"\r\n\r\n'


@pytest.mark.parametrize(
    ("content", "headers", "status", "message"),
    [
        (b"{}", {"content-type": "application/json"}, 415, "multipart/form-data"),
        (b"x", {"content-type": "multipart/form-data"}, 415, "multipart/form-data"),
        (HEAD + png(), FORM, 400, "last boundary"),
        (b"no form at all", FORM, 400, "malformed"),
        (HEAD.replace(b'"file"', b'"image"') + png() + b"\r\n--b--\r\n", FORM, 422, "field `file`"),
        ((HEAD + b"x\r\n") * 2 + b"--b--\r\n", FORM, 422, "field `file`"),
        (
            b'--b\r\ncontent-disposition: form-data; name="file"\r\n\r\nx\r\n--b--\r\n',
            FORM,
            422,
            "field `file`",
        ),
        ((HEAD + b"x\r\n") * 65 + b"--b--\r\n", FORM, 413, "more than 64 parts"),
        (
            b'--b\r\ncontent-disposition: form-data; name="a"\r\n\r\n' + bytes(70_000) + b"\r\n--b--\r\n",
            FORM,
            413,
            "65,536 bytes",
        ),
    ],
    ids=["JSON", "no boundary", "cut off", "no form", "field", "two", "text", "parts", "long text"],
)
async def test_other_forms_are_refused(
    http: httpx.AsyncClient, content: bytes, headers: dict[str, str], status: int, message: str
) -> None:
    response = await http.post("/v1/files", content=content, headers=headers)
    assert response.status_code == status, response.text
    assert message in response.json()["detail"]


async def test_a_huge_body_is_discarded(server: str) -> None:
    async def huge() -> AsyncIterator[bytes]:
        yield HEAD
        for _ in range(320):
            yield bytes(65_536)

    async with httpx.AsyncClient(timeout=HANG_SECONDS) as http:
        response = await http.post(f"{server}/v1/files", content=huge(), headers=FORM)
    assert response.status_code == 413
    assert "send a smaller file" in response.json()["detail"]


@pytest.mark.parametrize("config", [ApiConfig(upload_grace_seconds=0.2)], ids=["impatient"])
async def test_a_body_that_drips_is_cut_off(server: str) -> None:
    host, port = server.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = b"POST /v1/files HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: image/png\r\n"
    writer.write(head + b"content-length: 999\r\n\r\n")
    async with asyncio.timeout(HANG_SECONDS):
        response = await reader.read()
    writer.close()
    assert response.startswith(b"HTTP/1.1 408 ")
    assert orjson.loads(response.partition(b"\r\n\r\n")[2])["code"] == "upload_too_slow"


async def test_files_of_another_tenant_do_not_exist(store: JobStore, http: httpx.AsyncClient) -> None:
    keys = [await store.keys.create(Role.TENANT, tenant_id=name) for name in ("ada", "bob")]
    ada, bob = ({"authorization": f"Bearer {secret}"} for _, secret in keys)
    file = (await upload(http, png(), headers=ada)).json()
    for request in (
        http.get(f"/v1/files/{file['id']}", headers=bob),
        http.get(f"/v1/files/{file['id']}/content", headers=bob),
        http.delete(f"/v1/files/{file['id']}", headers=bob),
        http.get("/v1/files/no such", headers=ada),
        http.delete("/v1/files/file-0", headers=ada),
    ):
        response = await request
        assert (response.status_code, response.json()["code"]) == (404, "file_not_found")
    assert (await http.get("/v1/files", headers=bob)).json()["data"] == []
    assert (await upload(http, png(), headers=bob)).json()["id"] != file["id"]
    assert (await http.delete(f"/v1/files/{file['id']}", headers=ada)).status_code == 200
    assert (await http.get(f"/v1/files/{file['id']}", headers=ada)).status_code == 404


@pytest.mark.parametrize(
    "store_config",
    [
        StoreConfig(
            plans={"free": Plan(name="free", max_files=2, max_files_bytes=1_000)},
            default_plan="free",
        )
    ],
    ids=["small plan"],
)
async def test_a_plan_limits_files(http: httpx.AsyncClient, tmp_path: Path) -> None:
    for color in (RED, BLUE):
        await uploaded(http, png(color=color))
    await uploaded(http, png())
    full = await upload(http, png(color=(0, 255, 0)))
    assert (full.status_code, full.json()["code"]) == (429, "files_full")
    assert "delete some" in full.json()["detail"]
    noise = file_of(Image.effect_noise((64, 64), 90))
    too_large = await upload(http, noise)
    assert (too_large.status_code, too_large.json()["code"]) == (413, "too_large")
    assert len(stored(tmp_path)) == 2, "nothing is left of what was refused"


@pytest.mark.parametrize(
    "store_config",
    [
        StoreConfig(
            plans={"small": Plan(name="small", input_pixels_per_minute=1.5 * 64 * 48)}, default_plan="small"
        )
    ],
    ids=["one image and a half a minute"],
)
@pytest.mark.parametrize("first", [png(), image_files.HTML], ids=["images", "what is no image"])
async def test_a_plan_limits_the_pixels_that_are_read(http: httpx.AsyncClient, first: bytes) -> None:
    await upload(http, first)
    await upload(http, png(color=BLUE))
    refused = await upload(http, png(color=(0, 255, 0)))
    assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
    assert int(refused.headers["retry-after"]) >= 1
    assert "pixels of images per minute" in refused.json()["detail"]


async def test_an_image_has_the_usual_pixels_at_most_unless_a_model_draws_larger_ones(
    http: httpx.AsyncClient,
) -> None:
    large = png(4_352, 4_096)
    refused = await upload(http, large)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_params")
    assert "at most 16,777,216 pixels" in refused.json()["detail"]
    await HandWorker.register(http, [replace(HAND_SPEC, max_size=8_192, max_pixels=20_000_000)])
    await asyncio.sleep(1.1)  # for which the catalog believes that there is no model
    assert (await uploaded(http, large))["width"] == 4_352


async def test_uploads_are_counted(http: httpx.AsyncClient, app: FastAPI) -> None:
    await uploaded(http, png())
    await upload(http, image_files.HTML)
    metrics = app.state.services.metrics.text().decode()
    assert 'diffusion_input_files_total{outcome="stored"} 1.0' in metrics
    assert 'diffusion_input_files_total{outcome="invalid_params"} 1.0' in metrics
    assert f"diffusion_input_file_bytes_total {float(len(png()) + len(image_files.HTML))}" in metrics
    assert "diffusion_input_file_seconds_count 1.0" in metrics
