"""The nodes for ComfyUI, loaded from their folder as ComfyUI does it, against a live server.

ComfyUI itself is not there: a stand-in of its progress bar and its interruption notes what the nodes do.
"""

import asyncio
import importlib.util
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import pytest
import torch
from fastapi import FastAPI

from diffuserve.api.app import create_app
from diffuserve.api.config import ApiConfig
from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.events.memory import MemoryEventBus
from diffuserve.integrations.comfyui.node_folder import write_nodes
from diffuserve.jobs.store import JobStore
from diffuserve.safety.processes.intake_pool import IntakePool
from diffuserve.storage.local import LocalArtifactStore
from support.clips import CLIPS, complete_clip, drawn_clip
from support.hand_worker import PNG, HandWorker
from support.painting import PAINTER

NODES = ("diffuserve_submit", "diffuserve_image", "diffuserve_video")
SPEC: ModelSpec = replace(PAINTER, has_previews=True)


@pytest.fixture
def app(store: JobStore, artifacts: LocalArtifactStore, bus: MemoryEventBus, pool: IntakePool) -> FastAPI:
    return create_app(store, artifacts, bus, ApiConfig(poll_seconds=0.2), images=pool)


class StandIn:
    """What the nodes use of ComfyUI: a bar, which notes what it shows, and a button that interrupts."""

    def __init__(self) -> None:
        self.shown: list[tuple[int, Any]] = []
        self.is_interrupted = False

    def modules(self) -> dict[str, ModuleType]:
        comfy, utils, management = map(ModuleType, ("comfy", "comfy.utils", "comfy.model_management"))
        vars(utils)["ProgressBar"] = self._bar
        vars(management)["throw_exception_if_processing_interrupted"] = self._check
        return {module.__name__: module for module in (comfy, utils, management)}

    def _bar(self, total: int) -> SimpleNamespace:
        def update(value: int, total: int | None = None, preview: Any = None) -> None:
            self.shown.append((value, preview))

        assert total == 100
        return SimpleNamespace(update_absolute=update)

    def _check(self) -> None:
        if self.is_interrupted:
            raise InterruptedError("processing interrupted")


@pytest.fixture
def comfy(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    for name, module in stand_in.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    return stand_in


@pytest.fixture
def nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str, comfy: StandIn
) -> Iterator[dict[str, Any]]:
    monkeypatch.setenv("DIFFUSERVE_SERVER", server)
    folder = write_nodes(tmp_path / "custom_nodes", "diffuserve")
    spec = importlib.util.spec_from_file_location("diffuserve_pack", folder / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["diffuserve_pack"] = module
    spec.loader.exec_module(module)
    yield dict(module.NODE_CLASS_MAPPINGS)
    for name in [name for name in sys.modules if name.startswith("diffuserve_pack")]:
        del sys.modules[name]


async def run(nodes: dict[str, Any], name: str, **inputs: Any) -> Any:
    """Call a node as ComfyUI does: by its FUNCTION, with inputs that it declares, and no optional ones."""
    kind = nodes[name]
    declared = kind.INPUT_TYPES()
    assert inputs.keys() <= declared["required"].keys() | declared["optional"].keys()
    assert declared["required"].keys() <= inputs.keys()
    return await asyncio.to_thread(getattr(kind(), kind.FUNCTION), **inputs)


@pytest.fixture
async def painter(http: httpx.AsyncClient) -> AsyncGenerator[HandWorker]:
    worker = await HandWorker.register(http, [SPEC])
    working = asyncio.create_task(worker.work())
    yield worker
    working.cancel()
    with suppress(asyncio.CancelledError):
        await working


async def test_images_are_drawn_and_submitted_ones_are_fetched(
    nodes: dict[str, Any], painter: HandWorker, http: httpx.AsyncClient, comfy: StandIn
) -> None:
    assert tuple(nodes) == NODES
    (images,) = await run(
        nodes,
        "diffuserve_image",
        prompt="a cat",
        seed=7,
        num_images=2,
        width=64,
        height=48,
        steps=3,
        guidance=2.0,
        negative_prompt="a dog",
        image=torch.rand(1, 48, 64, 3),
        mask=torch.ones(1, 48, 64),
        strength=0.5,
    )
    assert images.shape == (2, 1, 1, 3)
    given = (await http.get("/v1/jobs")).json()["data"][0]["input"]
    asked = {"num_inference_steps": 3, "guidance_scale": 2, "negative_prompt": "a dog", "strength": 0.5}
    assert given.items() >= (asked | {"seed": 7, "width": 64, "num_images": 2}).items()
    assert (given["image"]["width"], given["mask"]["mode"]) == (64, "L")
    assert [value for value, _ in comfy.shown] == sorted(value for value, _ in comfy.shown)
    (job_id,) = await run(nodes, "diffuserve_submit", prompt="a fox", seed=1, kind="image")
    (fetched,) = await run(nodes, "diffuserve_image", prompt="", seed=0, job_id=job_id)
    assert fetched.shape == (1, 1, 1, 3)


async def test_progress_and_previews_are_in_the_bar_and_an_interruption_cancels(
    nodes: dict[str, Any], http: httpx.AsyncClient, comfy: StandIn
) -> None:
    worker = await HandWorker.register(http, [SPEC])
    drawing = asyncio.create_task(run(nodes, "diffuserve_image", prompt="a cat", seed=7))
    [lease] = await worker.claim(wait=10)
    while not any(preview for _, preview in comfy.shown):
        await worker.report(lease, 2, 4, PNG)
        await asyncio.sleep(0.05)
    assert max(value for value, _ in comfy.shown) == 50
    assert next(preview for _, preview in comfy.shown if preview)[1].size == (1, 1)
    comfy.is_interrupted = True
    with pytest.raises(InterruptedError):
        await drawing
    assert (await http.get(f"/v1/jobs/{lease.job_id}")).json()["status"] == "canceling"
    await worker.release(lease)


async def test_a_clip_comes_as_its_frames(nodes: dict[str, Any], http: httpx.AsyncClient) -> None:
    worker = await HandWorker.register(http, [CLIPS])
    drawing = asyncio.create_task(run(nodes, "diffuserve_video", prompt="a cat", seed=7))
    [lease] = await worker.claim(wait=10)
    await complete_clip(worker, lease, drawn_clip())
    frames, fps = await drawing
    assert (frames.shape[1:], frames.shape[0] > 1, fps) == ((64, 64, 3), True, lease.input["fps"])


async def test_what_the_server_refuses_is_told(
    nodes: dict[str, Any], painter: HandWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RuntimeError, match="width=7: "):
        await run(nodes, "diffuserve_image", prompt="a cat", seed=7, width=7)
    with pytest.raises(RuntimeError, match="'nix' is not served"):
        await run(nodes, "diffuserve_submit", prompt="a cat", seed=7, kind="image", model="nix")
    monkeypatch.setenv("DIFFUSERVE_SERVER", "http://127.0.0.1:9")
    with pytest.raises(RuntimeError, match=r"no diffuserve server answers at .* set DIFFUSERVE_SERVER"):
        await run(nodes, "diffuserve_image", prompt="a cat", seed=7)


def test_a_folder_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    write_nodes(tmp_path, "diffuserve")
    with pytest.raises(InvalidParams, match="is there already"):
        write_nodes(tmp_path, "diffuserve")
