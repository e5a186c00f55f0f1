"""Images of models whose blocks pass through slots equal those of models that stay on the device."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from diffuserve.domain.errors import RequestFailed
from diffuserve.domain.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.models.flux.modulation import Modulation
from diffuserve.models.flux.pipeline import FluxPipeline
from diffuserve.models.layers.block_slots import BlockSlots, num_slots
from diffuserve.models.layers.copier import Copier, CudaCopier, SyncCopier
from diffuserve.models.wan.pipeline import WanPipeline
from diffuserve.testing.checkpoints import write_flux_checkpoint
from diffuserve.testing.pretend_cuda import pretend_cuda
from diffuserve.testing.wan_checkpoints import write_wan_checkpoint

FLUX = (
    GenerationParams(prompt="a red circle", width=64, height=64, seed=1, num_inference_steps=2),
    GenerationParams(prompt="a star", width=96, height=64, num_images=2, seed=2, num_inference_steps=3),
)
WAN = (GenerationParams(prompt="a ring", width=64, height=32, num_frames=5, seed=1, num_inference_steps=2),)
REQUESTS = {"flux": FLUX, "wan": WAN}


class LateCopier(SyncCopier):
    """Copies when it is waited for or later, in any order, and fills freed slots with NaN."""

    def __init__(self) -> None:
        self.random = random.Random(0)
        self.begun: list[tuple[Tensor, Tensor]] = []

    def begin(self, slot: Tensor, source: Tensor) -> None:
        self.begun = [each for each in self.begun if each[0] is not slot]
        self.begun.append((slot, source))

    def wait(self, slot: Tensor) -> None:
        self.random.shuffle(self.begun)
        arrived = [each for each in self.begun if each[0] is slot or self.random.random() < 0.5]
        self.begun = [each for each in self.begun if all(each is not other for other in arrived)]
        for into, source in arrived:
            super().begin(into, source)

    def free(self, slot: Tensor) -> None:
        slot.fill_(0xFF)


class WaitsForNothing(LateCopier):
    """A planted fault: work begins before its weights are there."""

    def wait(self, slot: Tensor) -> None:
        pass


class FreesTooEarly(LateCopier):
    """A planted fault: a slot is freed while its block is yet to compute."""

    def wait(self, slot: Tensor) -> None:
        super().wait(slot)
        self.free(slot)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {
        "flux": write_flux_checkpoint(root / "flux", kind="schnell"),
        "wan": write_wan_checkpoint(root / "wan", kind="t2v"),
    }


@pytest.fixture
def unpinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the CUDA copier read from common memory: torch pins none without a GPU, nor is it pretended."""
    monkeypatch.setattr(CudaCopier, "host_run", SyncCopier.host_run)


def offload(engine: Engine, copier: Copier, slots: int | None = None) -> list[BlockSlots]:
    """Have the blocks of every transformer pass through slots; FLUX's modulations, made apart, as well."""
    pipeline, rings = engine.pipeline, []

    def ring(blocks: Sequence[nn.Module], apart: Sequence[nn.Module] = ()) -> None:
        count = slots or num_slots(len(blocks))
        rings.append(BlockSlots(blocks, count, pipeline.device, copier, apart))

    if isinstance(pipeline, FluxPipeline):
        transformer = pipeline.transformer
        blocks = [*transformer.transformer_blocks, *transformer.single_transformer_blocks]
        modulations = [part for block in blocks for part in block.modules() if isinstance(part, Modulation)]
        ring(blocks, apart=modulations)
        ring(modulations)
    else:
        assert isinstance(pipeline, WanPipeline)
        for expert in pipeline.experts:
            ring(list(expert.blocks))
    return rings


def drawn(
    folder: Path,
    requests: Sequence[GenerationParams],
    make: Callable[[torch.device], Copier] | None = None,
    device: str = "cpu",
    slots: int | None = None,
) -> list[bytes]:
    config = EngineConfig(num_threads=1)  # one pass at a time
    with Engine.load(folder, device=device, dtype="float32", config=config) as engine:
        if make is not None:
            assert all(ring.device_bytes > 0 for ring in offload(engine, make(engine.pipeline.device), slots))
        results = engine.generate(list(requests))
    return [frame.tobytes() for result in results for frames in result.frames for frame in frames]


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("slots", [1, None])
def test_late_copies_give_the_same_images_bit_for_bit(
    folders: dict[str, Path], name: str, slots: int | None
) -> None:
    expected = drawn(folders[name], REQUESTS[name])
    assert drawn(folders[name], REQUESTS[name], lambda _device: LateCopier(), slots=slots) == expected


@pytest.mark.parametrize("fault", [WaitsForNothing, FreesTooEarly])
@pytest.mark.parametrize("name", REQUESTS)
def test_a_planted_fault_is_caught(
    folders: dict[str, Path], name: str, fault: Callable[[], LateCopier]
) -> None:
    expected = drawn(folders[name], REQUESTS[name])
    try:
        spoilt = drawn(folders[name], REQUESTS[name], lambda _device: fault())
    except RequestFailed:
        return  # the engine found the NaN first
    assert spoilt != expected


@pytest.mark.parametrize("name", REQUESTS)
def test_the_cuda_copier_waits_for_its_stream(unpinned: None, folders: dict[str, Path], name: str) -> None:
    with pretend_cuda():
        expected = drawn(folders[name], REQUESTS[name], device="cuda")
        assert drawn(folders[name], REQUESTS[name], CudaCopier, device="cuda") == expected


def test_a_cuda_copier_that_does_not_wait_is_caught(
    unpinned: None, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CudaCopier, "wait", lambda _copier, _slot: None)
    with pretend_cuda(), pytest.raises(RequestFailed, match="StreamRace"):
        drawn(folders["flux"], FLUX, CudaCopier, device="cuda")
