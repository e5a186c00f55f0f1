"""Clips that are watched while they are drawn, part by part."""

import asyncio
import io
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import av
import httpx
import numpy as np
import pytest
from fastapi import FastAPI

from diffuserve.domain.tenant import Role
from diffuserve.domain.workers.worker import Lease
from diffuserve.jobs.store import JobStore
from support.clips import CLIPS, MP4, complete_clip
from support.hand_worker import HandWorker
from support.waiting import HANG_SECONDS, eventually

CLIP = {"kind": "video.generate", "model": "clips", "input": {"prompt": "a ball"}}


@pytest.fixture
async def worker(http: httpx.AsyncClient) -> HandWorker:
    return await HandWorker.register(http, [CLIPS])


@pytest.fixture(scope="module")
def parts() -> list[bytes]:
    """Return a clip of 12 frames as three parts, as a worker stores them."""
    file = io.BytesIO()
    options = {"movflags": "frag_keyframe+empty_moov+default_base_moof"}
    with av.open(file, "w", format="mp4", options=options) as container:
        stream = container.add_stream("libx264", rate=8, options={"g": "4", "tune": "zerolatency"})
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        for number in range(12):
            pixels = np.full((64, 64, 3), number * 20, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    content = file.getvalue()
    cuts = [place - 4 for place in range(len(content)) if content.startswith(b"moof", place)]
    return [content[start:stop] for start, stop in zip([0, *cuts[1:]], [*cuts[1:], None], strict=True)]


def num_frames(content: bytes) -> int:
    """Return how many frames can be played of what has arrived."""
    with av.open(io.BytesIO(content), "r") as container:
        return len(list(container.decode(video=0)))


class Viewer:
    """Reads a response as it arrives."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.content = b""
        self._chunks = response.aiter_raw()

    async def read(self, num_bytes: int) -> bytes:
        """Return all of what has come so far, at least so many bytes."""
        async with asyncio.timeout(HANG_SECONDS):
            while len(self.content) < num_bytes:
                self.content += await anext(self._chunks)
        return self.content

    async def rest(self) -> bytes:
        """Return everything, once the response has ended."""
        async with asyncio.timeout(HANG_SECONDS):
            async for chunk in self._chunks:
                self.content += chunk
        return self.content


@asynccontextmanager
async def watching(server: str, job_id: str) -> AsyncIterator[Viewer]:
    async with (
        httpx.AsyncClient(base_url=server, timeout=HANG_SECONDS) as client,
        client.stream("GET", f"/v1/jobs/{job_id}/live") as response,
    ):
        assert (response.status_code, response.headers["content-type"]) == (200, "video/mp4")
        assert response.headers["cache-control"] == "no-store"
        yield Viewer(response)


async def running(http: httpx.AsyncClient, worker: HandWorker) -> Lease:
    """Start a live job, and return its lease."""
    job = (await http.post("/v1/jobs", json=CLIP | {"live": True})).raise_for_status().json()
    assert job["urls"]["live"] == f"http://api.test/v1/jobs/{job['id']}/live"
    (lease,) = await worker.claim()
    return lease


async def upload(worker: HandWorker, lease: Lease, parts: Sequence[bytes], first: int = 0) -> None:
    for number, part in enumerate(parts, start=first):
        (await worker.upload_part(lease, number, part)).raise_for_status()


async def test_the_first_seconds_are_played_before_the_rest_is_drawn(
    server: str, http: httpx.AsyncClient, worker: HandWorker, parts: list[bytes]
) -> None:
    lease = await running(http, worker)
    async with watching(server, lease.job_id) as viewer:
        await upload(worker, lease, parts[:1])
        first = await viewer.read(len(parts[0]))
        assert (await http.get(f"/v1/jobs/{lease.job_id}")).json()["status"] == "running"
        assert (first, num_frames(first)) == (parts[0], 4)
        await upload(worker, lease, parts[1:], first=1)
        assert await viewer.read(sum(map(len, parts))) == b"".join(parts)
        await complete_clip(worker, lease)
        assert num_frames(await viewer.rest()) == 12


async def test_who_comes_later_sees_the_clip_from_its_beginning(
    server: str, http: httpx.AsyncClient, worker: HandWorker, parts: list[bytes]
) -> None:
    lease = await running(http, worker)
    await upload(worker, lease, parts[:2])
    for _ in range(2):
        async with watching(server, lease.job_id) as viewer:
            assert num_frames(await viewer.read(len(parts[0] + parts[1]))) == 8


async def test_a_queued_clip_can_be_waited_for(
    server: str, http: httpx.AsyncClient, worker: HandWorker, parts: list[bytes]
) -> None:
    job = (await http.post("/v1/jobs", json=CLIP | {"live": True})).json()
    async with watching(server, job["id"]) as viewer:
        (lease,) = await worker.claim()
        await upload(worker, lease, parts)
        await complete_clip(worker, lease)
        assert await viewer.rest() == b"".join(parts)


async def test_a_finished_clip_is_the_whole_file(http: httpx.AsyncClient, worker: HandWorker) -> None:
    lease = await running(http, worker)
    await complete_clip(worker, lease)
    url = f"/v1/jobs/{lease.job_id}/live"
    whole = await http.get(url)
    assert (whole.status_code, whole.content) == (200, MP4)
    assert whole.headers["content-type"] == "video/mp4"
    part = await http.get(url, headers={"range": "bytes=4-7"})
    assert (part.status_code, part.content) == (206, MP4[4:8])


@pytest.mark.parametrize("end", ["fail", "cancel", "delete", "taken_back"])
async def test_it_ends_with_a_job_that_ends_otherwise(
    server: str, http: httpx.AsyncClient, worker: HandWorker, parts: list[bytes], end: str
) -> None:
    lease = await running(http, worker)
    await upload(worker, lease, parts[:1])
    async with watching(server, lease.job_id) as viewer:
        await viewer.read(len(parts[0]))
        match end:
            case "fail":
                await worker.fail(lease)
            case "taken_back":
                await worker.drop_parts(lease)
                await worker.fail(lease, "output_blocked")
            case "cancel":
                await http.post(f"/v1/jobs/{lease.job_id}/cancel")
                (await worker.release(lease)).raise_for_status()
            case "delete":
                await http.delete(f"/v1/jobs/{lease.job_id}")
                (await worker.release(lease)).raise_for_status()
        assert await viewer.rest() == parts[0]
    after = await http.get(f"/v1/jobs/{lease.job_id}/live")
    assert after.status_code == 404


async def test_parts_that_were_taken_back_are_not_shown_any_more(
    server: str, http: httpx.AsyncClient, worker: HandWorker, parts: list[bytes]
) -> None:
    lease = await running(http, worker)
    await upload(worker, lease, parts)
    await worker.drop_parts(lease)
    async with watching(server, lease.job_id) as viewer:
        await worker.fail(lease, "output_blocked")
        assert await viewer.rest() == b""


async def test_another_attempt_ends_what_was_begun_and_is_shown_to_others(
    server: str, http: httpx.AsyncClient, worker: HandWorker, parts: list[bytes]
) -> None:
    lease = await running(http, worker)
    async with watching(server, lease.job_id) as late, watching(server, lease.job_id) as early:
        await upload(worker, lease, parts[:1])
        await early.read(len(parts[0]))
        await late.read(len(parts[0]))
        await worker.release(lease)
        async with watching(server, lease.job_id) as new:
            (second,) = await worker.claim(wait=10)
            await upload(worker, second, parts)
            assert await new.read(sum(map(len, parts))) == b"".join(parts)
            assert await early.rest() == parts[0]


async def test_a_job_that_is_not_live_says_so(http: httpx.AsyncClient, worker: HandWorker) -> None:
    job = (await http.post("/v1/jobs", json=CLIP)).json()
    assert job["urls"]["live"] is None
    response = await http.get(f"/v1/jobs/{job['id']}/live")
    assert (response.status_code, response.json()["code"]) == (409, "conflict")
    assert '"live": true' in response.json()["detail"]
    for job_id in ("job_0", "nix"):
        assert (await http.get(f"/v1/jobs/{job_id}/live")).status_code == 404


async def test_it_takes_a_slot_of_its_tenant_as_long_as_it_is_open(
    server: str, app: FastAPI, http: httpx.AsyncClient, worker: HandWorker, parts: list[bytes]
) -> None:
    lease = await running(http, worker)
    waits = app.state.services.waits
    async with watching(server, lease.job_id) as viewer:
        await upload(worker, lease, parts[:1])
        await viewer.read(len(parts[0]))
        assert waits.total == 1
        await worker.fail(lease)
        await viewer.rest()

    async def is_free() -> bool:
        return bool(waits.total == 0)

    await eventually(is_free)


async def test_headers_alone_and_other_tenants(
    http: httpx.AsyncClient, worker: HandWorker, store: JobStore
) -> None:
    lease = await running(http, worker)
    head = await http.head(f"/v1/jobs/{lease.job_id}/live")
    assert (head.status_code, head.headers["content-type"]) == (200, "video/mp4")
    _, secret = await store.keys.create(Role.TENANT, tenant_id="ada")
    async with asyncio.timeout(HANG_SECONDS):
        while (await http.get("/v1/models")).status_code != 401:
            await asyncio.sleep(0.02)
    hers = {"authorization": f"Bearer {secret}"}
    assert (await http.get(f"/v1/jobs/{lease.job_id}/live", headers=hers)).status_code == 404
    assert (await http.get(f"/v1/jobs/{lease.job_id}/live")).status_code == 401
