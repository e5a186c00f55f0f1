"""The processes that read uploaded images: what stalls or ends one, and what the filter in it finds."""

import asyncio
import multiprocessing
import os
import signal
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from diffuserve.api.app import create_app
from diffuserve.api.config import ApiConfig
from diffuserve.domain.errors import InvalidParams
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.store import JobStore
from diffuserve.safety.processes.intake_pool import IntakePool
from diffuserve.storage.local import LocalArtifactStore
from support.color_filter import ColorFilter, GreedyFilter
from support.hand_worker import HAND_SPEC, HandWorker
from support.image_files import BLUE, RED, file_of, image_in, png
from support.uploading import stored, upload, uploaded
from support.waiting import HANG_SECONDS, eventually


def readers() -> list[int]:
    children = multiprocessing.active_children()
    return [child.pid for child in children if child.name == "diffuserve-intake" and child.pid]


@pytest.fixture
async def own_pool() -> AsyncIterator[IntakePool]:
    pool = IntakePool()
    yield pool
    await pool.close()


@pytest.fixture
def filtered(
    store: JobStore, artifacts: LocalArtifactStore, bus: MemoryEventBus
) -> Callable[[IntakePool], httpx.AsyncClient]:
    def client(pool: IntakePool) -> httpx.AsyncClient:
        app = create_app(store, artifacts, bus, ApiConfig(), images=pool)
        return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://api.test")

    return client


async def test_a_file_that_stalls_or_ends_its_process_costs_that_process_alone(
    own_pool: IntakePool, filtered: Callable[[IntakePool], httpx.AsyncClient]
) -> None:
    others = set(readers())
    async with filtered(own_pool) as http:
        await uploaded(http, png())
        [reader] = set(readers()) - others
        os.kill(reader, signal.SIGSTOP)
        own_pool.read_seconds = 0.1
        stalled = await upload(http, png(color=BLUE))
        own_pool.read_seconds = HANG_SECONDS
        assert (stalled.status_code, stalled.json()["code"]) == (422, "invalid_params")
        assert "takes longer than 0.1 s" in stalled.json()["detail"]
        assert reader not in readers()
        await uploaded(http, png(color=BLUE))

        [reader] = set(readers()) - others
        os.kill(reader, signal.SIGSTOP)
        crashing = asyncio.create_task(upload(http, png(color=(1, 2, 3))))
        await eventually(lambda: own_pool.num_reading == 1)
        os.kill(reader, signal.SIGKILL)
        crashed = await crashing
        assert crashed.status_code == 422
        assert "ends the process that reads it" in crashed.json()["detail"]
        await uploaded(http, png(color=(1, 2, 3)))


async def test_a_process_that_died_while_it_was_idle_is_nobodys_fault(
    own_pool: IntakePool, filtered: Callable[[IntakePool], httpx.AsyncClient]
) -> None:
    others = set(readers())
    async with filtered(own_pool) as http:
        await uploaded(http, png())
        [reader] = set(readers()) - others
        os.kill(reader, signal.SIGKILL)
        await eventually(lambda: reader not in readers())
        await uploaded(http, png(color=BLUE))


async def test_the_image_filter_judges_uploads(
    filtered: Callable[[IntakePool], httpx.AsyncClient], store: JobStore, tmp_path: Path
) -> None:
    pool = IntakePool(ColorFilter)
    async with filtered(pool) as http:
        passed = await uploaded(http, png(color=(0, 255, 0)))
        assert passed["verdict"] == {"action": "allow", "findings": []}
        blocked = await upload(http, png(color=RED))
        assert (blocked.status_code, blocked.json()["code"], blocked.json()["category"]) == (
            422,
            "image_blocked",
            "red",
        )
        two_colors = Image.new("RGB", (64, 64), BLUE)
        two_colors.paste((0, 255, 0), (32, 0, 33, 64))
        blurred = await uploaded(http, file_of(two_colors))
        assert blurred["verdict"]["action"] == "blur"
        content = (await http.get(f"/v1/files/{blurred['id']}/content")).content
        assert image_in(content).getpixel((32, 5)) != (0, 255, 0)
    assert len(stored(tmp_path)) == 2
    entries = {(entry.stage, entry.category, entry.action) for entry in await store.audit.newest()}
    assert entries == {("input", "red", "block"), ("input", "blue", "blur")}
    await pool.close()


async def test_the_image_filter_judges_every_image_of_a_request(
    filtered: Callable[[IntakePool], httpx.AsyncClient],
) -> None:
    pool = IntakePool(ColorFilter)
    spec = replace(HAND_SPEC, max_input_images=2, max_reference_pixels=4096, has_control_image=True)
    red, green = (
        f"data:image/png;base64,{b64encode(png(color=color)).decode()}" for color in (RED, (0, 255, 0))
    )
    async with filtered(pool) as http:
        await HandWorker.register(http, [spec])
        named: list[dict[str, Any]] = [{"image": [green, red]}, {"image": green, "control_image": red}]
        for images in named:
            response = await http.post("/v1/jobs", json={"input": {"prompt": "a star", **images}})
            assert (response.status_code, response.json()["code"]) == (422, "image_blocked")
        assert (await http.get("/v1/jobs")).json()["data"] == []
    await pool.close()


async def test_memory_is_limited_in_the_process_that_reads_images(
    filtered: Callable[[IntakePool], httpx.AsyncClient],
) -> None:
    pool = IntakePool(GreedyFilter)
    async with filtered(pool) as http:
        refused = await upload(http, png())
    assert refused.status_code == 422
    assert "too much memory" in refused.json()["detail"]
    await pool.close()


async def test_without_a_filter_that_can_judge_images_are_refused(
    filtered: Callable[[IntakePool], httpx.AsyncClient],
) -> None:
    error = InvalidParams("image_filter", "nudenet", "nudenet is not installed")
    async with filtered(IntakePool(objection=str(error))) as http:
        refused = await upload(http, png())
    assert refused.status_code == 422
    assert "nudenet is not installed" in refused.json()["detail"]
