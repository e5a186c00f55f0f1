"""Jobs that read images, from the upload to the result, with real agents and engine processes."""

import asyncio
import hashlib
import io
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import numpy as np
import pytest
import sqlalchemy as sa
from PIL import Image, ImageDraw, ImageSequence

from diffuserve.agent.agent import WorkerAgent
from diffuserve.backoff import Backoff
from diffuserve.client import input_files
from diffuserve.domain.jobs.input_file import InputFile, NewFile, new_file_id
from diffuserve.domain.jobs.job import Job, JobStatus, Phase
from diffuserve.domain.tenant import Plan
from diffuserve.jobs.database import schema
from diffuserve.media.image_file import read_parameters
from diffuserve.protocol.config import ImageOptions
from diffuserve.storage.base import input_folder, input_key
from diffuserve.storage.bucket import BucketArtifactStore
from diffuserve.storage.local import LocalArtifactStore
from diffuserve.testing.fake_pipeline import color_of
from support.fake_family.install import install_fake_family, write_fake_model
from support.faulty_proxy import CutResponse, FaultyProxy, Respond
from support.hand_worker import HAND_SPEC, HandWorker
from support.plane import NULL_ENGINE, Plane, until
from support.s3 import S3Server, bucket_at
from support.waiting import HANG_SECONDS, eventually

Start = Callable[..., WorkerAgent]
BLUE = (40, 90, 200)
RED = (200, 60, 40)


class GatedStore(LocalArtifactStore):
    """A store that hands out no file until its gate is opened; it counts who asks."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.gate = asyncio.Event()
        self.num_readers = 0

    async def read(self, key: str, part: range | None = None) -> AsyncIterator[bytes]:
        if key.startswith(input_folder("")):  # and not a look whether the store is there
            self.num_readers += 1
            await self.gate.wait()
        async for chunk in super().read(key, part):
            yield chunk


@pytest.fixture
def artifacts(tmp_path: Path) -> GatedStore:
    return GatedStore(tmp_path / "artifacts")


def png(color: Any = BLUE, size: tuple[int, int] = (64, 48), mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size, color).save(buffer, "PNG")
    return buffer.getvalue()


async def stored_image(plane: Plane, content: bytes) -> InputFile:
    """Store an image as an upload does."""
    new = NewFile(
        id=new_file_id(),
        tenant_id="ada",
        filename="photo.png",
        size_bytes=len(content),
        width=64,
        height=48,
        sha256=hashlib.sha256(content).hexdigest(),
    )

    async def chunks() -> AsyncIterator[bytes]:
        yield content

    await plane.artifacts.put(input_key(new.id), chunks(), 1_000_000)
    return await plane.store.files.add(new, 3_600.0, Plan(name="pro"))


async def job_with(plane: Plane, file: InputFile) -> Job:
    """Submit a job that starts from an image."""
    image = file.as_input().to_dict()
    return await plane.submit(input={"prompt": "a star", "seed": 1, "image": image})


def private_files() -> set[Path]:
    """Return the files that agents of this machine keep."""
    return set(Path(os.environ["TMPDIR"]).glob("diffuserve-worker-*/*/*"))


@pytest.fixture(autouse=True)
def own_temporary_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Give the agents a folder with a short path, as a socket's may have 107 characters."""
    tmp_path_factory.getbasetemp()  # which is not to be made in a folder that this test removes
    with TemporaryDirectory() as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr("tempfile.tempdir", folder)
        yield


async def test_a_job_reads_its_images_and_leaves_nothing_behind(
    plane: Plane, start: Start, artifacts: GatedStore, tmp_path: Path
) -> None:
    agent = start("--files", "1")
    job = await job_with(plane, await stored_image(plane, png()))
    await eventually(lambda: artifacts.num_readers == 1)
    assert agent.held[job.id].phase is Phase.LOAD
    artifacts.gate.set()
    done = await until(plane, job, JobStatus.SUCCEEDED)
    await eventually(lambda: not agent.held)
    assert private_files() == set()
    assert done.result is not None
    assert done.result.input == job.input, "images are named, and neither pixels nor paths are told"
    assert done.attempt == 1


@pytest.mark.parametrize(
    ("lose", "code"),
    [
        (lambda plane, file: plane.artifacts.delete(input_folder(file.id)), "artifact_not_found"),
        (lambda plane, file: forget(plane, file), "file_not_found"),
    ],
)
async def test_a_job_whose_image_is_gone_fails_alone_and_at_once(
    plane: Plane, start: Start, artifacts: GatedStore, lose: Callable[..., Any], code: str
) -> None:
    artifacts.gate.set()
    file = await stored_image(plane, png())
    lost = await job_with(plane, file)
    kept = await job_with(plane, await stored_image(plane, png("red")))
    await lose(plane, file)
    start()
    failed = await until(plane, lost, JobStatus.FAILED)
    assert failed.error is not None
    assert (failed.error.code, failed.attempt) == (code, 1)
    await until(plane, kept, JobStatus.SUCCEEDED)


async def forget(plane: Plane, file: InputFile) -> None:
    """Delete a file's row, whoever needs it."""
    statement = sa.delete(schema.files).where(schema.files.c.id == file.id)
    await plane.store.database.write(lambda transaction: transaction.execute(statement))


async def test_a_job_that_fetches_its_image_can_be_canceled(
    plane: Plane, start: Start, artifacts: GatedStore
) -> None:
    agent = start(heartbeat_seconds=1_000.0)  # so no heartbeat tells it
    job = await job_with(plane, await stored_image(plane, png()))
    await eventually(lambda: artifacts.num_readers == 1)
    await plane.store.jobs.cancel(job.id)
    await until(plane, job, JobStatus.CANCELED)
    await eventually(lambda: not agent.held)
    assert private_files() == set()


async def test_a_killed_agent_loses_no_job_and_its_files_are_swept(
    plane: Plane, start: Start, artifacts: GatedStore
) -> None:
    command = [sys.executable, "-m", "diffuserve", "worker", "--server", plane.url]
    engine = " ".join(NULL_ENGINE)
    job = await job_with(plane, await stored_image(plane, png()))
    with subprocess.Popen([*command, "--engine-command", engine], stderr=subprocess.DEVNULL) as process:
        try:
            await eventually(lambda: artifacts.num_readers == 1)
        finally:
            process.kill()
    (left,) = Path(os.environ["TMPDIR"]).glob("diffuserve-worker-*")
    os.utime(left, (0, 0))
    await plane.expire(job)
    artifacts.gate.set()
    start()
    done = await until(plane, job, JobStatus.SUCCEEDED)
    assert done.attempt == 2
    assert not left.exists()


async def test_an_image_of_another_lease_is_not_served(plane: Plane, artifacts: GatedStore) -> None:
    artifacts.gate.set()
    file, other = await stored_image(plane, png()), await stored_image(plane, png("red"))
    job = await job_with(plane, file)
    async with httpx.AsyncClient(base_url=plane.url) as http:
        worker = await HandWorker.register(http, [replace(HAND_SPEC, name="null")])
        (lease,) = await worker.claim()
        path, token = f"/v1/leases/{job.id}/inputs", {"lease-token": str(lease.lease_token)}
        listed = (await http.get(path, headers=token)).json()["files"]
        assert [(entry["id"], entry["sha256"], entry["url"]) for entry in listed] == [
            (file.id, file.sha256, None)
        ]
        assert (await http.get(f"{path}/{file.id}", headers=token)).content == png()
        refusals = [
            await http.get(f"{path}/{other.id}", headers=token),
            await http.get(f"{path}/{file.id}", headers={"lease-token": "7"}),
            await http.get(path, headers={"lease-token": "7"}),
        ]
    assert [(found.status_code, found.json()["code"]) for found in refusals] == [
        (404, "file_not_found"),
        (409, "lease_lost"),
        (409, "lease_lost"),
    ]


class TestBucketFaults:
    """Images in a bucket that fails at times."""

    @pytest.fixture
    def artifacts(self, proxy: FaultyProxy, bucket: str) -> BucketArtifactStore:
        return bucket_at(proxy.url, bucket, "results")

    async def test_a_bucket_that_fails_is_asked_again_within_the_attempt(
        self, plane: Plane, start: Start, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(input_files, "_BACKOFF", Backoff(0.01, 0.01))
        job = await job_with(plane, await stored_image(plane, noise_png()))
        faults = (Respond(500), CutResponse(), Respond(403), CutResponse())
        proxy.fail_next(*faults)
        start()
        done = await until(plane, job, JobStatus.SUCCEEDED)
        assert done.attempt == 1
        downloads = [path for method, path in proxy.requests if method == "GET" and "/inputs/" in path]
        assert len(downloads) == len(faults) + 1


def noise_png() -> bytes:
    """Return an image whose file is large enough to be cut in half."""
    buffer = io.BytesIO()
    Image.effect_noise((64, 48), 90).save(buffer, "PNG")
    return buffer.getvalue()


class TestPixels:
    """The fake family in an engine process of its own, whose pixels are known, and images in a bucket."""

    @pytest.fixture
    def artifacts(self, s3: S3Server, bucket: str) -> BucketArtifactStore:
        return s3.store(bucket, "results")

    async def test_the_engine_sees_the_uploaded_pixels(
        self, plane: Plane, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.syspath_prepend(str(install_fake_family(tmp_path / "site")))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        model = str(write_fake_model(tmp_path / "clouds"))
        agent = start(engine_command=(), model=model, device="cpu", images=ImageOptions(image_filter="none"))
        await eventually(partial(is_offered, plane))
        async with httpx.AsyncClient(base_url=plane.url, timeout=HANG_SECONDS) as http:
            image, mask = [await uploaded(http, content) for content in (png(), half_mask())]
            wanted = {"prompt": "a star", "image": image, "mask": mask, "strength": 0.5, "seed": 3}
            body = {"model": "clouds", "input": wanted | {"guidance_scale": 1.0}}
            job = (await http.post("/v1/jobs", json=body)).raise_for_status().json()
            done = (await http.get(job["urls"]["self"], params={"wait": 30})).json()
            assert done["status"] == "succeeded", done["error"]
            content = (await http.get(f"/v1/jobs/{job['id']}/result", follow_redirects=True)).content
        pixels = np.asarray(Image.open(io.BytesIO(content))).astype(float)
        drawn = (np.array(BLUE) + (color_of("a star").flatten().numpy() + 1) * 127.5) / 2
        assert np.abs(pixels[:, :32] - drawn).max() <= 1
        assert np.abs(pixels[:, 32:] - BLUE).max() <= 1
        named = {"id": image, "width": 64, "height": 48, "mode": "RGB"}
        assert done["input"]["image"] == done["result"]["input"]["image"] == named
        assert done["result"]["input"]["mask"] == {**named, "id": mask, "mode": "L"}
        (tmp_path / "result.png").write_bytes(content)
        assert read_parameters(tmp_path / "result.png")["image"] == named
        assert str(tmp_path).encode() not in content
        await eventually(lambda: not agent.held)
        assert private_files() == set()

    async def test_the_engine_sees_what_guides_a_clip_and_what_ends_it(
        self, plane: Plane, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.syspath_prepend(str(install_fake_family(tmp_path / "site")))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        model = str(write_fake_model(tmp_path / "clouds"))
        agent = start(engine_command=(), model=model, device="cpu", images=ImageOptions(image_filter="none"))
        await eventually(partial(is_offered, plane))
        async with httpx.AsyncClient(base_url=plane.url, timeout=HANG_SECONDS) as http:
            blue, red = [await uploaded(http, png(color)) for color in (BLUE, RED)]
            wanted = {"prompt": "a star", "image": blue, "strength": 1.0, "seed": 3, "guidance_scale": 1.0}
            wanted |= {"control_image": blue, "control_scale": 2, "last_image": red, "num_frames": 5}
            body = {"model": "clouds", "kind": "video.generate", "input": wanted, "output_format": "webp"}
            job = (await http.post("/v1/jobs", json=body)).raise_for_status().json()
            done = (await http.get(job["urls"]["self"], params={"wait": 30})).json()
            assert done["status"] == "succeeded", done["error"]
            content = (await http.get(f"/v1/jobs/{job['id']}/result", follow_redirects=True)).content
        with Image.open(io.BytesIO(content)) as clip:
            frames = [
                np.asarray(frame.convert("RGB")).astype(float) for frame in ImageSequence.Iterator(clip)
            ]
        assert np.abs(frames[0] - BLUE).max() <= 12, "as the control image says, but for the file's losses"
        assert np.abs(frames[-1] - RED).max() <= 12
        named = {"id": red, "width": 64, "height": 48, "mode": "RGB"}
        assert done["input"]["last_image"] == done["result"]["input"]["last_image"] == named
        await eventually(lambda: not agent.held)
        assert private_files() == set()


@pytest.mark.slow
async def test_an_uploaded_circle_is_recolored_by_the_bundled_model(
    plane: Plane, start: Start, artifacts: GatedStore
) -> None:
    artifacts.gate.set()
    start(engine_command=(), model="tiny-flux", device="cpu", images=ImageOptions(image_filter="none"))
    circle = Image.new("RGB", (128, 128), "white")
    ImageDraw.Draw(circle).ellipse((28, 28, 100, 100), fill=(224, 44, 52))
    buffer = io.BytesIO()
    circle.save(buffer, "PNG")
    await eventually(partial(is_offered, plane, "tiny-flux"))
    async with httpx.AsyncClient(base_url=plane.url, timeout=HANG_SECONDS) as http:
        image = await uploaded(http, buffer.getvalue())
        wanted = {"prompt": "a large blue circle on a white background", "seed": 3, "strength": 0.8}
        job = (await http.post("/v1/jobs", json={"input": wanted | {"image": image}})).json()
        await until(plane, await plane.store.jobs.get(job["id"]), JobStatus.SUCCEEDED)
        content = (await http.get(f"/v1/jobs/{job['id']}/result")).content
    drawn = np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).astype(int)
    red, _, blue = drawn[64, 64]
    assert blue > red + 80, "the circle is blue"
    assert drawn[4, 4].min() > 200, "and stands on white"


async def is_offered(plane: Plane, model: str = "clouds") -> bool:
    return model in await plane.store.operations.models()


async def uploaded(http: httpx.AsyncClient, content: bytes) -> str:
    response = await http.post("/v1/files", files={"file": ("photo.png", content)})
    return str(response.raise_for_status().json()["id"])


def half_mask() -> bytes:
    """Return a mask whose left half is white."""
    mask = Image.new("L", (64, 48))
    mask.paste(255, (0, 0, 32, 48))
    buffer = io.BytesIO()
    mask.save(buffer, "PNG")
    return buffer.getvalue()
