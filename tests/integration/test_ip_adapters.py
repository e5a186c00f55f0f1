"""Requests with image prompts draw what diffusers does with an IP-Adapter, in steps that all share."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers import CLIPImageProcessorPil

from diffuserve.domain.errors import InvalidModel, ModelNotCapable
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.media.input_image import as_image, input_image
from diffuserve.testing.image_prompter_checkpoints import write_ip_adapter
from diffuserve.testing.unet_checkpoints import write_unet_checkpoint
from support.images import psnr
from support.unet_reference import draw_with, load_reference

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

MIN_PSNR = 50.0  # decibel, float32 on a CPU
CONFIG = EngineConfig(token_budget=100_000, num_threads=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_unet_checkpoint(tmp_path_factory.mktemp("xl") / "model", kind="xl", seed=5)


def load(folder: Path, adapter: Path | None, config: EngineConfig = CONFIG) -> Engine:
    return Engine.load(folder, device="cpu", dtype="float32", config=config, image_prompter=adapter)


def noisy(seed: int, width: int = 40, height: int = 52) -> Any:
    levels = np.random.default_rng(seed).integers(0, 256, (height // 4, width // 4, 3), dtype=np.uint8)
    return input_image(Image.fromarray(levels).resize((width, height), Image.Resampling.BICUBIC))


def requests() -> list[GenerationParams]:
    common: dict[str, Any] = {"prompt": "a red circle", "num_inference_steps": 3, "height": 64}
    return [
        GenerationParams(**common, width=64, seed=0),
        GenerationParams(**common, width=64, seed=1, guidance_scale=5.0, image_prompts=noisy(1)),
        GenerationParams(
            **common, width=64, seed=2, guidance_scale=1.0, image_prompts=noisy(2), image_prompt_scale=0.4
        ),
        GenerationParams(
            **common,
            width=96,
            seed=3,
            guidance_scale=4.0,
            num_images=2,
            image_prompts=[noisy(1), noisy(3)],
            image_prompt_scale=0.7,
        ),
        GenerationParams(**common, width=64, seed=4, image_prompts=noisy(1), image_prompt_scale=0.0),
    ]


def expected_of(folder: Path, adapter: Path, batch: Sequence[GenerationParams]) -> list[list[Image.Image]]:
    reference = load_reference(folder)
    plain = [draw_with(reference, each, width=each.width, height=each.height) for each in batch]
    reference.load_ip_adapter(str(adapter.parent), subfolder="", weight_name=adapter.name)
    side = reference.image_encoder.config.image_size
    reference.feature_extractor = CLIPImageProcessorPil(size={"shortest_edge": side}, crop_size=side)
    for index, each in enumerate(batch):
        if each.prompt_images:
            reference.set_ip_adapter_scale(each.image_prompt_scale)
            given = [[as_image(image) for _, image in each.input_images if isinstance(image, InputImage)]]
            size = {"width": each.width, "height": each.height}
            plain[index] = draw_with(reference, each, ip_adapter_image=given, **size)
    return plain


@pytest.mark.parametrize("kind", ["plain", "plus"])
def test_mixed_requests_draw_what_diffusers_does(folder: Path, tmp_path: Path, kind: Any) -> None:
    adapter = write_ip_adapter(tmp_path / "adapter", folder, kind=kind, seed=3)
    with load(folder, adapter) as engine:
        batch = [engine.pipeline.spec.resolve(each, seed=0) for each in requests()]
        results = engine.generate(batch)
        assert engine.stats.mean_requests_per_step > 2, "requests share steps"
        without = engine.generate(
            [replace(each, image_prompts=None, image_prompt_scale=None) for each in batch]
        )
    expected = expected_of(folder, adapter, batch)
    for params, result, theirs, plain in zip(batch, results, expected, without, strict=True):
        for ours, their, other in zip(result.images, theirs, plain.images, strict=True):
            assert psnr(ours, their) >= MIN_PSNR, params
            assert (psnr(ours, other) < 40) == bool(params.image_prompt_scale)


def test_neighbors_without_image_prompts_keep_their_bits(folder: Path, tmp_path: Path) -> None:
    adapter = write_ip_adapter(tmp_path / "adapter", folder, seed=3)
    plain, *others = requests()[:3]
    with load(folder, adapter) as engine, load(folder, None) as bare:
        alone = bare.generate([plain, replace(others[0], image_prompts=None), plain])
        beside = engine.generate([plain, others[0], plain])
    for ours, theirs in ((beside[0], alone[0]), (beside[2], alone[2])):
        assert np.array_equal(np.asarray(ours.images[0]), np.asarray(theirs.images[0]))


def test_offloaded_weights_read_image_prompts_too(folder: Path, tmp_path: Path) -> None:
    adapter, params = write_ip_adapter(tmp_path / "adapter", folder, seed=3), requests()[1]
    with load(folder, adapter) as engine:
        expected = engine.generate(params).images[0]
    with Engine.load(folder, device="cpu", config=CONFIG, offload="layers", image_prompter=adapter) as engine:
        assert psnr(engine.generate(params).images[0], expected) >= MIN_PSNR


def test_requests_are_refused_by_models_without_an_adapter_and_beyond_four(
    folder: Path, tmp_path: Path
) -> None:
    adapter, params = write_ip_adapter(tmp_path / "adapter", folder, seed=3), requests()[1]
    with (
        load(folder, None) as engine,
        pytest.raises(ModelNotCapable, match="start it with an image_prompter"),
    ):
        engine.generate(params)
    with load(folder, adapter) as engine:
        assert engine.pipeline.spec.max_image_prompts == 4
        assert engine.pipeline.spec.resolve(params, seed=0).image_prompt_scale == 1.0


def test_files_that_do_not_fit_are_refused_before_weights_load(folder: Path, tmp_path: Path) -> None:
    other = write_unet_checkpoint(tmp_path / "sd", kind="sd", seed=5)
    adapter = write_ip_adapter(tmp_path / "adapter", folder)
    pickle = tmp_path / "ip-adapter_sdxl.bin"
    pickle.write_bytes(b"\x80\x02}")
    with pytest.raises(
        InvalidModel, match=r"pickles can run code; the hub has the same as ip-adapter_sdxl.saf"
    ):
        load(folder, pickle)
    with pytest.raises(
        InvalidModel, match="was made for a UNet with cross_attention_dim=64; this one has 32"
    ):
        load(other, adapter)
    deeper = write_unet_checkpoint(tmp_path / "deep", kind="xl", layers_per_block=2)
    with pytest.raises(InvalidModel, match=r"to_k_ip.weight has shape .*where this model's UNet needs"):
        load(deeper, adapter)
    (adapter.parent / "image_encoder").rename(tmp_path / "elsewhere")
    with pytest.raises(
        InvalidModel, match="projection_dim=20, in the folder image_encoder beside it; there is"
    ):
        load(folder, adapter)
    with pytest.raises(InvalidModel, match="no such file"):
        load(folder, tmp_path / "missing.safetensors")
