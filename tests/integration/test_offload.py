"""Images of models whose weights stay on the host equal those of models that stay on the device."""

import random
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from diffuserve.domain.errors import InvalidModel, InvalidParams, RequestFailed
from diffuserve.domain.models.offload import Offload
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.media.input_image import input_image
from diffuserve.models.families.flux.pipeline import FluxPipeline
from diffuserve.models.offload import components as offload
from diffuserve.models.offload.copier import Copier, CudaCopier, SyncCopier
from diffuserve.models.pipelines import offloaded
from diffuserve.models.pipelines.base import Pipeline
from diffuserve.testing.checkpoints import write_flux_checkpoint
from diffuserve.testing.flux2_checkpoints import write_flux2_checkpoint
from diffuserve.testing.qwen_image_checkpoints import write_qwen_image_checkpoint
from diffuserve.testing.unet_checkpoints import write_unet_checkpoint
from diffuserve.testing.wan_checkpoints import write_wan_checkpoint
from diffuserve.testing.z_image_checkpoints import write_z_image_checkpoint
from support.pretend_cuda import PretendTensor, pretend_cuda

FLUX = (
    GenerationParams(prompt="a red circle", width=64, height=64, seed=1, num_inference_steps=2),
    GenerationParams(prompt="a star", width=96, height=64, num_images=2, seed=2, num_inference_steps=3),
)
WAN = (GenerationParams(prompt="a ring", width=64, height=32, num_frames=5, seed=1, num_inference_steps=2),)
Z_IMAGE = tuple(
    replace(request, guidance_scale=scale) for request, scale in zip(FLUX, (0.0, 3.0), strict=True)
)
FLUX2 = tuple(replace(request, max_sequence_length=64) for request in FLUX)
REQUESTS = {"flux": FLUX, "flux2": FLUX2, "qwen image": FLUX, "unet": FLUX, "wan": WAN, "z-image": Z_IMAGE}
_COPY_SECONDS = 0.01  # of a copy that is slow
OFFLOADS = tuple(mode for mode in Offload if mode is not Offload.NONE)


class LateCopier(SyncCopier):
    """Copies when it is waited for or later, in any order; until then, and when freed, slots hold NaN."""

    def __init__(self) -> None:
        self.random = random.Random(0)
        self.begun: list[tuple[Tensor, Tensor]] = []

    def begin(self, slot: Tensor, source: Tensor) -> None:
        slot.fill_(0xFF)
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


@dataclass(frozen=True)
class Models:
    """Small models of each family, and what they draw with all weights on the CPU."""

    folders: dict[str, Path]
    expected: dict[str, list[bytes]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    root = tmp_path_factory.mktemp("models")
    folders = {
        "flux": write_flux_checkpoint(root / "flux", kind="schnell"),
        "flux2": write_flux2_checkpoint(root / "flux2"),
        "qwen image": write_qwen_image_checkpoint(root / "qwen-image"),
        "unet": write_unet_checkpoint(root / "unet", kind="xl"),
        "wan": write_wan_checkpoint(root / "wan", kind="a14b"),
        "z-image": write_z_image_checkpoint(root / "z-image"),
    }
    return Models(folders, {name: drawn(folders[name], REQUESTS[name]) for name in folders})


@pytest.fixture
def unpinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the CUDA copier read from common memory: torch pins none without a GPU, nor is it pretended."""
    monkeypatch.setattr(CudaCopier, "host_run", SyncCopier.host_run)


def drawn(
    folder: Path,
    requests: Sequence[GenerationParams],
    mode: Offload = Offload.NONE,
    device: str = "cpu",
    config: EngineConfig | None = None,
) -> list[bytes]:
    config = config or EngineConfig(num_threads=1)
    with Engine.load(folder, device=device, dtype="float32", config=config, offload=mode) as engine:
        assert engine.pipeline.residency.mode is mode
        results = engine.generate(list(requests))
    return [frame.tobytes() for result in results for frames in result.frames for frame in frames]


def copy_by(monkeypatch: pytest.MonkeyPatch, make: Callable[[], Copier]) -> None:
    monkeypatch.setattr(offloaded, "copier_for", lambda _device: make())


@pytest.mark.parametrize("mode", OFFLOADS)
@pytest.mark.parametrize("name", REQUESTS)
def test_late_copies_give_the_same_images_bit_for_bit(
    models: Models, name: str, mode: Offload, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_by(monkeypatch, LateCopier)
    assert drawn(models.folders[name], REQUESTS[name], mode) == models.expected[name]


def test_one_slot_for_all_layers_gives_the_same_images(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_by(monkeypatch, LateCopier)
    monkeypatch.setattr(offload, "num_slots", lambda _layers: 1)
    assert drawn(models.folders["flux"], FLUX, Offload.LAYERS) == models.expected["flux"]


@pytest.mark.parametrize("fault", [WaitsForNothing, FreesTooEarly])
@pytest.mark.parametrize("mode", OFFLOADS)
def test_a_planted_fault_is_caught(
    models: Models, mode: Offload, fault: Callable[[], LateCopier], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_by(monkeypatch, fault)
    try:
        spoilt = drawn(models.folders["flux"], FLUX, mode)
    except RequestFailed:
        return  # the engine found the NaN first
    assert spoilt != models.expected["flux"]


@pytest.mark.parametrize("mode", OFFLOADS)
def test_threads_take_turns_while_others_decode(
    models: Models, mode: Offload, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [
        GenerationParams(prompt="a star", width=64, height=64, seed=n, num_inference_steps=1 + n)
        for n in range(4)
    ]
    config = EngineConfig(num_threads=2, deterministic=True)
    expected = drawn(models.folders["flux"], requests, config=config)
    copy_by(monkeypatch, LateCopier)
    assert drawn(models.folders["flux"], requests, mode, config=config) == expected


@pytest.mark.parametrize(
    "name",
    ["flux", pytest.param("unet", marks=pytest.mark.slow), pytest.param("wan", marks=pytest.mark.slow)],
)
def test_the_cuda_copier_waits_for_its_stream(unpinned: None, models: Models, name: str) -> None:
    with pretend_cuda():
        expected = drawn(models.folders[name], REQUESTS[name][:1], device="cuda")
        for mode in OFFLOADS:
            assert drawn(models.folders[name], REQUESTS[name][:1], mode, device="cuda") == expected


@pytest.mark.parametrize("mode", OFFLOADS)
def test_a_cuda_copier_that_does_not_wait_is_caught(
    unpinned: None, models: Models, mode: Offload, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CudaCopier, "wait", lambda _copier, _slot: None)
    with pretend_cuda(), pytest.raises(RequestFailed, match="StreamRace"):
        drawn(models.folders["flux"], FLUX, mode, device="cuda")


def test_a_cuda_copier_that_overwrites_what_is_read_is_caught(
    unpinned: None, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget(copier: CudaCopier, slot: Tensor) -> None:
        copier._freed[id(slot)] = torch.cuda.Event()

    monkeypatch.setattr(CudaCopier, "used", forget)
    with pretend_cuda(), pytest.raises(RequestFailed, match="may still read"):
        drawn(models.folders["flux"], FLUX, Offload.LAYERS, device="cuda")


def test_only_what_is_used_is_on_the_device(unpinned: None) -> None:
    found, said = {}, {}
    with pretend_cuda():
        for mode in Offload:
            with Engine.load("tiny-flux", device="cuda", offload=mode) as engine:
                found[mode], said[mode] = on_device(engine.pipeline), engine.pipeline.residency.device_bytes
                told = engine.describe()
                assert told.get("offload", "none") == mode
                assert told.get("weights_on_device_bytes", said[mode]) == said[mode]
                assert told["token_budget"] == engine.token_budget
                engine.generate(GenerationParams(prompt="a star", width=64, height=64, num_inference_steps=1))
                assert on_device(engine.pipeline) == found[mode], "weights take no more memory later"
    assert found[Offload.LAYERS] < found[Offload.MODEL] < found[Offload.TEXT] < found[Offload.NONE]
    assert all(said[mode] == found[mode] for mode in OFFLOADS)


def on_device(pipeline: Pipeline) -> int:
    """Return the bytes of the pretended device that the weights of a pipeline are in."""
    modules = [component.module for component in pipeline.components()]
    tensors = [tensor.data for module in modules for tensor in module.parameters()]
    storages = [t.cpu_tensor.untyped_storage() for t in tensors if isinstance(t, PretendTensor)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.slow)])
def test_quantized_layers_pass_through_slots(unpinned: None, device: str) -> None:
    request = GenerationParams(prompt="a star", width=64, height=64, seed=1, num_inference_steps=1)
    images = []
    with pretend_cuda() if device == "cuda" else nullcontext():
        for mode in (Offload.NONE, Offload.LAYERS):
            with Engine.load("tiny-flux", device=device, quantization="fp8", offload=mode) as engine:
                images.append(engine.generate(request).images[0].tobytes())
    assert images[0] == images[1]


def test_weights_in_an_order_of_their_cpu_are_not_offloaded() -> None:
    with pytest.raises(InvalidModel, match="int8 have an order of their CPU's own"):
        Engine.load("tiny-flux", device="cpu", quantization="int8", offload="layers")


def test_images_that_requests_bring_are_encoded_by_weights_of_the_host(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor = write_qwen_image_checkpoint(tmp_path / "editor", kind="edit-plus")
    (editor / "diffuserve.json").write_text('{"max_reference_pixels": 4096}')
    folders = {
        "qwen image": editor,
        "unet": models.folders["unet"],
        "wan": write_wan_checkpoint(tmp_path / "wan", kind="i2v"),
    }
    copy_by(monkeypatch, LateCopier)
    for name, folder in folders.items():
        wanted = [replace(REQUESTS[name][0], image=photo())]
        expected = drawn(folder, wanted)
        assert all(drawn(folder, wanted, mode) == expected for mode in OFFLOADS)


def photo() -> InputImage:
    return input_image(Image.linear_gradient("L").convert("RGB").resize((48, 40)))


def test_an_unknown_offload_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(InvalidParams, match="must be one of none, text, model, layers"):
        Engine.load("tiny-flux", device="cpu", offload="disk")


class SlowCopier(SyncCopier):
    """Takes a while for each copy."""

    def __init__(self) -> None:
        self.count = 0

    def begin(self, slot: Tensor, source: Tensor) -> None:
        self.count += 1
        time.sleep(_COPY_SECONDS)
        super().begin(slot, source)


def test_what_a_step_waits_for_is_a_constant_part_of_its_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    copy_by(monkeypatch, lambda: copier)
    copier, config = SlowCopier(), EngineConfig(num_threads=1)
    wanted = [
        GenerationParams(prompt="a star", width=side, height=side, num_images=count, num_inference_steps=4)
        for side in (64, 96, 128)
        for count in (1, 2, 3)
    ]
    with Engine.load("tiny-flux", device="cpu", config=config, offload="layers") as engine:
        for request in wanted:
            engine.generate(request)
        copies_per_step = len(_blocks(engine))
        assert copier.count >= copies_per_step * engine.stats.num_steps
        assert engine.cost_model.fit.step[0] > 0.5 * copies_per_step * _COPY_SECONDS


def _blocks(engine: Engine) -> list[nn.Module]:
    assert isinstance(engine.pipeline, FluxPipeline)
    transformer = engine.pipeline.transformer
    return [*transformer.transformer_blocks, *transformer.single_transformer_blocks]
