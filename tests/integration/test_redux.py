"""Requests with image prompts draw what diffusers does with FLUX.1 Redux, in steps that all share."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FluxPipeline, FluxPriorReduxPipeline
from diffusers.pipelines.flux.modeling_flux import ReduxImageEncoder
from PIL import Image
from transformers import SiglipImageProcessorPil, SiglipVisionModel

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.media.input_image import as_image, input_image
from diffuserve.models.folders.companions import companions_of
from diffuserve.models.registry import num_companion_bytes
from diffuserve.testing.checkpoints import write_flux_checkpoint
from diffuserve.testing.image_prompter_checkpoints import write_redux
from support.images import psnr

MIN_PSNR = 50.0  # decibel, float32 on a CPU
CONFIG = EngineConfig(token_budget=100_000, num_threads=1)
LENGTH = 512  # tokens of the prompt, which the reference always reads


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_flux_checkpoint(tmp_path_factory.mktemp("flux") / "model", kind="dev", seed=5)


@pytest.fixture(scope="module")
def redux(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_redux(tmp_path_factory.mktemp("redux"), folder, seed=3)


def load(folder: Path, redux: Path | None) -> Engine:
    return Engine.load(folder, device="cpu", dtype="float32", config=CONFIG, image_prompter=redux)


def noisy(seed: int) -> Any:
    levels = np.random.default_rng(seed).integers(0, 256, (11, 9, 3), dtype=np.uint8)
    return input_image(Image.fromarray(levels).resize((44, 36), Image.Resampling.BICUBIC))


def requests() -> list[GenerationParams]:
    common: dict[str, Any] = {"prompt": "a red circle", "max_sequence_length": LENGTH, "height": 64}
    return [
        GenerationParams(**common, width=64, seed=0, num_inference_steps=3),
        GenerationParams(**common, width=64, seed=1, num_inference_steps=3, image_prompts=noisy(1)),
        GenerationParams(
            **common,
            width=96,
            seed=2,
            num_inference_steps=2,
            image_prompts=[noisy(1), noisy(2)],
            image_prompt_scale=0.7,
        ),
    ]


def reference_of(folder: Path, redux: Path) -> tuple[Any, Any]:
    drawing = FluxPipeline.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    drawing.set_progress_bar_config(disable=True)
    prior = FluxPriorReduxPipeline(
        image_encoder=SiglipVisionModel.from_pretrained(
            redux / "image_encoder", local_files_only=True, trust_remote_code=False
        ),
        feature_extractor=SiglipImageProcessorPil.from_pretrained(
            redux / "feature_extractor", local_files_only=True, trust_remote_code=False
        ),
        image_embedder=ReduxImageEncoder.from_pretrained(
            redux / "image_embedder", local_files_only=True, trust_remote_code=False
        ),
        text_encoder=drawing.text_encoder,
        tokenizer=drawing.tokenizer,
        text_encoder_2=drawing.text_encoder_2,
        tokenizer_2=drawing.tokenizer_2,
    )
    return drawing, prior


def expected_of(folder: Path, redux: Path, batch: Sequence[GenerationParams]) -> list[Image.Image]:
    drawing, prior = reference_of(folder, redux)
    images = []
    for each in batch:
        said: dict[str, Any] = {"prompt": each.prompt, "max_sequence_length": LENGTH}
        if count := len(each.prompt_images):
            assert each.image_prompt_scale is not None
            said = prior(
                [as_image(image) for _, image in each.input_images if isinstance(image, InputImage)],
                prompt=[each.prompt] * count,
                prompt_embeds_scale=[each.image_prompt_scale / count] * count,
                pooled_prompt_embeds_scale=[1.0 / count] * count,
            )
        drawn = drawing(
            **said,
            width=each.width,
            height=each.height,
            num_inference_steps=each.num_inference_steps,
            guidance_scale=each.guidance_scale,
            generator=torch.Generator("cpu").manual_seed(each.seed or 0),
        )
        images.append(drawn.images[0])
    return images


def test_mixed_requests_draw_what_diffusers_does(folder: Path, redux: Path) -> None:
    with load(folder, redux) as engine:
        batch = [engine.pipeline.spec.resolve(each, seed=0) for each in requests()]
        results = engine.generate(batch)
        assert engine.stats.mean_requests_per_step > 2, "requests share steps"
        bare = [replace(each, image_prompts=None, image_prompt_scale=None) for each in batch]
        without = engine.generate(bare)
    expected = expected_of(folder, redux, batch)
    for params, result, theirs, plain in zip(batch, results, expected, without, strict=True):
        assert psnr(result.images[0], theirs) >= MIN_PSNR, params
        assert (psnr(result.images[0], plain.images[0]) < 40) == bool(params.prompt_images)


def test_tokens_of_images_count_in_a_step_and_weights_in_memory(folder: Path, redux: Path) -> None:
    with load(folder, redux) as engine:
        plain, single, double = (engine.pipeline.spec.resolve(each, seed=0) for each in requests())
        tokens = [engine.pipeline.spec.workload(each).sequence_tokens for each in (plain, single)]
        assert tokens[1] - tokens[0] == 14 * 14
        assert engine.pipeline.spec.workload(double).text_tokens == LENGTH + 14 * 14
    weights = [*redux.glob("image_*/*.safetensors")]
    expected = sum(file.stat().st_size for file in weights)
    assert num_companion_bytes(str(folder), companions_of({}, redux)) == expected


def test_folders_that_do_not_fit_are_refused_before_weights_load(
    folder: Path, redux: Path, tmp_path: Path
) -> None:
    wider = write_flux_checkpoint(
        tmp_path / "wide", transformer={"joint_attention_dim": 48}, text_encoder_2={"d_model": 48}
    )
    with pytest.raises(InvalidModel, match="txt_in_features=32 must be joint_attention_dim=48"):
        load(wider, redux)
    with pytest.raises(InvalidModel, match=r"holds no image_embedder/; FLUX.1 reads image prompts with"):
        load(folder, folder)
    with pytest.raises(InvalidModel, match=r"image_prompter: .*: no such file or folder; give"):
        load(folder, tmp_path / "nothing")
