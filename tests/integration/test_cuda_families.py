"""Every family on a pretended CUDA device: images as on the CPU, and no wait that a step need not have."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from diffuserve.domain.errors import RequestFailed
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.engine.outputs import GenerationResult
from diffuserve.media.input_image import input_image
from diffuserve.models.families.flux import pipeline as flux_pipeline
from diffuserve.models.families.packed_images import passes as packed_passes
from diffuserve.models.families.packed_images import pipeline as packed_pipeline
from diffuserve.models.layers.joint.packing import PackedInput, pack_layout
from diffuserve.testing.checkpoints import write_flux_checkpoint
from diffuserve.testing.flux2_checkpoints import write_flux2_checkpoint
from diffuserve.testing.qwen_image_checkpoints import write_qwen_image_checkpoint
from diffuserve.testing.unet_checkpoints import write_unet_checkpoint
from diffuserve.testing.wan_checkpoints import write_wan_checkpoint
from diffuserve.testing.z_image_checkpoints import write_z_image_checkpoint
from support.images import psnr
from support.pretend_cuda import CudaLog, pretend_cuda

# Of images on the two devices in one dtype, in decibels: what its rounding leaves.
MIN_PSNR = {"float32": 70.0, "bfloat16": 35.0, "float16": 45.0}


def photo(width: int, height: int) -> InputImage:
    gradient = Image.linear_gradient("L").resize((width, height))
    return input_image(Image.merge("RGB", (gradient, gradient.rotate(90).resize((width, height)), gradient)))


def half(width: int, height: int) -> InputImage:
    """Return a mask that is white in its left half."""
    mask = Image.new("L", (width, height))
    mask.paste(255, (0, 0, width // 2, height))
    return input_image(mask, "L")


FLUX = (
    GenerationParams(prompt="a red circle", width=64, height=64, seed=1, num_inference_steps=2),
    GenerationParams(prompt="a star", width=96, height=64, num_images=2, seed=2, num_inference_steps=3),
)
EDITED = (
    replace(FLUX[0], image=photo(64, 64), strength=0.9),
    replace(FLUX[1], image=photo(96, 64), mask=half(96, 64), strength=0.9),
)
FILLED = (replace(EDITED[0], mask=half(64, 64), strength=None), replace(EDITED[1], strength=None))
REFERENCES = (FLUX[0], replace(FLUX[1], image=photo(64, 64)))
UNET = (
    GenerationParams(prompt="a red circle", seed=1, guidance_scale=5.0, num_inference_steps=2),
    GenerationParams(prompt="x", width=96, seed=2, guidance_scale=1.0, num_images=2, num_inference_steps=3),
    GenerationParams(prompt="a star", seed=3, sampler="dpmpp_2m_sde", num_inference_steps=3),
)
WAN = (
    GenerationParams(prompt="a ring", width=64, height=32, num_frames=5, seed=1, num_inference_steps=2),
    GenerationParams(
        prompt="a star", width=32, height=64, num_frames=1, num_images=2, seed=2, num_inference_steps=3
    ),
)
FIRST_FRAME = (replace(WAN[0], image=photo(64, 32)),)


def write_editor(folder: Path) -> Path:
    """Write a Qwen-Image-Edit whose references have fewer pixels than a real one's."""
    write_qwen_image_checkpoint(folder, kind="edit-2511")
    (folder / "diffuserve.json").write_text('{"max_reference_pixels": 4096}')
    return folder


@dataclass(frozen=True)
class Family:
    """A checkpoint and requests that make use of all of it."""

    write: Callable[[Path], Path]
    requests: Sequence[GenerationParams]


FAMILIES = {
    "schnell": Family(partial(write_flux_checkpoint, kind="schnell"), FLUX),
    "dev": Family(partial(write_flux_checkpoint, kind="dev"), EDITED),
    "fill": Family(partial(write_flux_checkpoint, kind="fill"), FILLED),
    "kontext": Family(partial(write_flux_checkpoint, kind="kontext"), REFERENCES),
    "flux2": Family(partial(write_flux2_checkpoint, kind="base"), REFERENCES),
    "qwen-image": Family(write_qwen_image_checkpoint, (FLUX[0], EDITED[1])),
    "qwen-image-edit": Family(
        write_editor, (REFERENCES[1], replace(FLUX[0], image=(photo(64, 48), photo(40, 64))))
    ),
    "sd": Family(partial(write_unet_checkpoint, kind="sd"), UNET),
    "sdxl": Family(partial(write_unet_checkpoint, kind="xl"), UNET),
    "wan-t2v": Family(partial(write_wan_checkpoint, kind="t2v"), WAN),
    "wan-ti2v": Family(partial(write_wan_checkpoint, kind="ti2v"), (*WAN, *FIRST_FRAME)),
    "wan-i2v": Family(partial(write_wan_checkpoint, kind="i2v"), FIRST_FRAME),
    "z-image": Family(write_z_image_checkpoint, EDITED),
}
REPEATED = {"dev", "kontext", "qwen-image", "sd", "wan-t2v"}
"""What others draw, too: FLUX.1 Fill, FLUX.2, Qwen-Image's editor, SDXL and Wan's for text and images."""
# One of each architecture in every dtype, the others in the one that they are used in most. What is slow to
# draw, or repeated, is drawn only where there is time; FLUX.1's fastest stands for dtypes but bfloat16.
DRAWN = {("schnell", "float32"), *((name, "bfloat16") for name in FAMILIES.keys() - REPEATED)}
RUNS = [
    pytest.param(name, dtype, marks=[] if (name, dtype) in DRAWN else [pytest.mark.slow])
    for name in FAMILIES
    for dtype in MIN_PSNR
    if dtype == "bfloat16" or name in ("schnell", "sdxl", "wan-ti2v")
]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folders: dict[str, Path] = {}

    def write(name: str) -> Path:
        if name not in folders:
            folders[name] = FAMILIES[name].write(tmp_path_factory.mktemp("models") / name)
        return folders[name]

    return write


@pytest.fixture
def log() -> Iterator[CudaLog]:
    with pretend_cuda() as log:
        yield log


def min_psnr(left: Sequence[GenerationResult], right: Sequence[GenerationResult]) -> float:
    return min(
        psnr(image, other)
        for first, second in zip(left, right, strict=True)
        for frames, others in zip(first.frames, second.frames, strict=True)
        for image, other in zip(frames, others, strict=True)
    )


def on_cpu(folder: Path, dtype: str, requests: Sequence[GenerationParams]) -> list[GenerationResult]:
    with Engine.load(folder, device="cpu", dtype=dtype) as engine:
        return engine.generate(requests)


def finish(engine: Engine) -> GenerationResult:
    """Step until the only request is done."""
    while True:
        for output in engine.step():
            if output.finished:
                assert output.result is not None, output.error
                return output.result


@pytest.mark.parametrize(("name", "dtype"), RUNS)
def test_a_mixed_batch_is_drawn_as_on_the_cpu(
    folder_of: Callable[[str], Path], name: str, dtype: str
) -> None:
    folder, requests = folder_of(name), FAMILIES[name].requests
    expected = on_cpu(folder, dtype, requests)
    with pretend_cuda(), Engine.load(folder, device="cuda", dtype=dtype) as engine:
        assert engine.pipeline.device == torch.device("cuda:0")
        drawn = engine.generate(requests)
    assert min_psnr(drawn, expected) >= MIN_PSNR[dtype]


@pytest.mark.parametrize("name", ["schnell", "sdxl", "wan-ti2v"])
def test_a_request_goes_on_from_its_checkpoint_in_another_engine(
    folder_of: Callable[[str], Path], name: str, log: CudaLog
) -> None:
    folder, request = folder_of(name), FAMILIES[name].requests[0]
    with Engine.load(folder, device="cuda", dtype="bfloat16") as engine:
        request_id = engine.add(request)
        engine.step()
        checkpoint = engine.checkpoint(request_id)
        whole = finish(engine)
    with Engine.load(folder, device="cuda", dtype="bfloat16") as engine:
        engine.add(request, resume=checkpoint)
        resumed = finish(engine)
    assert min_psnr([resumed], [whole]) >= 100


@pytest.mark.parametrize("name", ["sdxl", "wan-ti2v", pytest.param("schnell", marks=pytest.mark.slow)])
def test_previews_are_drawn_as_on_the_cpu(folder_of: Callable[[str], Path], name: str, log: CudaLog) -> None:
    request = FAMILIES[name].requests[0]
    previews = []
    for device in ("cpu", "cuda"):
        with Engine.load(folder_of(name), device=device, dtype="float32") as engine:
            engine.add(request, preview=True)
            [output] = engine.step()
            previews.append(output.previews)
    assert len(previews[0]) == len(previews[1]) == request.num_images
    assert all(psnr(*pair) > 50 for pair in zip(*previews, strict=True))


@pytest.mark.parametrize("name", ["schnell", "sdxl", "wan-ti2v"])
def test_a_preview_is_drawn_where_it_is_wanted_and_makes_no_step_wait(
    folder_of: Callable[[str], Path], name: str, log: CudaLog
) -> None:
    request = replace(FAMILIES[name].requests[0], num_inference_steps=4)
    with Engine.load(folder_of(name), device="cuda", dtype="bfloat16") as engine:
        engine.add(request, preview={3})
        seen = []
        for _ in range(3):
            log.clear()
            [output] = engine.step()
            seen.append((len(output.previews), sum(log.kernels.values()), log.syncs_by_kind()))
    _, (none, without, waits), (one, drawn, drawn_waits) = seen
    assert (none, one) == (0, 1)
    assert without < drawn
    assert drawn_waits == waits
    assert waits["stream"] == 1


@pytest.mark.parametrize(
    "name", ["schnell", "dev", "sdxl", "wan-ti2v", pytest.param("z-image", marks=pytest.mark.slow)]
)
def test_a_step_reads_nothing_back_and_waits_once(
    folder_of: Callable[[str], Path], name: str, log: CudaLog
) -> None:
    request = replace(FAMILIES[name].requests[0], num_inference_steps=4)
    with Engine.load(folder_of(name), device="cuda", dtype="bfloat16") as engine:
        engine.add(request)
        engine.step()
        log.clear()
        engine.step()
        waits = log.syncs_by_kind()
        assert log.kernels, "the step ran on the device"
    assert waits.pop("stream") == 1, "the scheduler wants finished steps"
    assert waits.pop("copy to the device", 0) <= 2, "numbers of the step, while the device has no work"
    assert waits == {}


def test_the_next_step_is_prepared_while_the_device_works(
    folder_of: Callable[[str], Path], log: CudaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def recorded(name: str, make: Callable[..., Any]) -> Callable[..., Any]:
        def making(*args: Any) -> Any:
            made.append(name)
            return make(*args)

        return making

    monkeypatch.setattr(packed_pipeline, "pack_layout", recorded("layout", pack_layout))
    draw = flux_pipeline.FluxPipeline.init_latents
    monkeypatch.setattr(flux_pipeline.FluxPipeline, "init_latents", recorded("noise", draw))
    with Engine.load(folder_of("schnell"), device="cuda", config=EngineConfig(max_batch_size=1)) as engine:
        for request in FLUX[:2]:
            engine.add(replace(request, num_inference_steps=1))
        engine.step()
        assert made == ["noise", "layout", "noise", "layout"], "its own, then those of the next"
        while engine.step():
            pass
    assert len(made) == 4, "nothing is left to make"


def test_what_cannot_be_prepared_fails_the_request_to_blame(
    folder_of: Callable[[str], Path], log: CudaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = flux_pipeline.FluxPipeline.init_latents

    def broken(self: Any, params: GenerationParams, *args: Any) -> Any:
        if params.seed == 2:
            raise ValueError("no noise")
        return draw(self, params, *args)

    monkeypatch.setattr(flux_pipeline.FluxPipeline, "init_latents", broken)
    requests = [replace(FLUX[0], seed=seed, num_inference_steps=1) for seed in (1, 2, 3)]
    with Engine.load(folder_of("schnell"), device="cuda", config=EngineConfig(max_batch_size=1)) as engine:
        ids = [engine.add(request) for request in requests]
        outputs = [output for _ in range(20) for output in engine.step() if output.finished]
    assert {output.request_id for output in outputs if output.error is not None} == {ids[1]}
    assert len(outputs) == 3


def test_factors_on_the_host_are_caught(
    folder_of: Callable[[str], Path], log: CudaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planted(**values: Any) -> Any:
        return PackedInput(**{**values, "factors": values["factors"].cpu()})

    monkeypatch.setattr(packed_passes, "PackedInput", planted)
    with (
        Engine.load(folder_of("schnell"), device="cuda") as engine,
        pytest.raises(RequestFailed, match="devi"),
    ):
        engine.generate(FLUX[0])


def test_a_layout_on_the_host_is_caught(
    folder_of: Callable[[str], Path], log: CudaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = lambda shapes, axes, _device: pack_layout(shapes, axes, torch.device("cpu"))  # noqa: E731
    monkeypatch.setattr(packed_pipeline, "pack_layout", planted)
    with (
        Engine.load(folder_of("schnell"), device="cuda") as engine,
        pytest.raises(RequestFailed, match="devi"),
    ):
        engine.generate(FLUX[0])


def test_decoding_that_does_not_wait_for_its_latents_is_caught(
    folder_of: Callable[[str], Path], log: CudaLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Engine.load(folder_of("schnell"), device="cuda") as engine:
        monkeypatch.setattr(torch.cuda.Stream, "synchronize", lambda _stream: None)
        monkeypatch.setattr(torch.cuda.Stream, "wait_event", lambda _stream, _event: None)
        with pytest.raises(RequestFailed, match="StreamRace"):
            engine.generate(FLUX[0])
