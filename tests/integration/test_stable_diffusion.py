"""Stable Diffusion in the engine: shared passes, neighbors, bit-equal images, warnings and refusals."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diffuserve.domain.errors import InvalidParams, ModelNotCapable, NumericalFailure
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.engine.outputs import GenerationResult
from diffuserve.models.families.stable_diffusion.pipeline import StableDiffusionPipeline
from diffuserve.models.families.stable_diffusion.unet_input import UNetInput
from diffuserve.models.layers.adapted.adapters import Uses
from diffuserve.models.pipelines.base import Conditioning, PackedPipeline, packed
from diffuserve.testing.unet_checkpoints import write_unet_checkpoint
from support.images import psnr

MIXED = [
    GenerationParams(prompt="a red circle", num_inference_steps=3, seed=1, guidance_scale=5.0),
    GenerationParams(prompt="a ring", num_inference_steps=5, seed=2, guidance_scale=1.0, num_images=2),
    GenerationParams(prompt="x", width=96, height=64, num_inference_steps=4, seed=3, sampler="dpmpp_2m_sde"),
    GenerationParams(prompt="a star", num_inference_steps=2, seed=4, negative_prompt="red", sampler="pndm"),
    GenerationParams(prompt="a star", height=96, num_inference_steps=3, seed=5, sampler="euler_ancestral"),
    GenerationParams(prompt="a red star", num_inference_steps=4, seed=6, sampler="unipc", num_images=3),
]


@pytest.fixture
def engine(small_unet: PackedPipeline) -> Iterator[Engine]:
    with Engine(small_unet, EngineConfig(token_budget=100_000, num_threads=1)) as engine:
        yield engine


@pytest.fixture
def unet_calls(small_unet: PackedPipeline) -> Iterator[list[UNetInput]]:
    """The inputs of all passes of the network."""
    assert isinstance(small_unet, StableDiffusionPipeline)
    calls: list[UNetInput] = []
    hook = small_unet.unet.register_forward_pre_hook(lambda _, inputs: calls.append(inputs[0]))
    yield calls
    hook.remove()


def images(results: list[GenerationResult]) -> list[list[bytes]]:
    return [[image.tobytes() for image in result.images] for result in results]


def test_small_requests_share_a_pass_as_long_as_its_layers_cost_more_than_their_rows(
    small_unet: PackedPipeline, unet_calls: list[UNetInput]
) -> None:
    """The prior says so: steps of equal requests alone would never show what a larger one saves."""
    first = GenerationParams(
        prompt="a star", width=128, height=128, num_inference_steps=2, seed=0, guidance_scale=5.0
    )
    requests = [replace(first, seed=seed) for seed in range(16)]
    with Engine(small_unet, EngineConfig(num_threads=1)) as engine:
        engine.generate(requests)
    assert [len(call) for call in unet_calls] == [32, 32]


def test_guided_and_unguided_requests_of_one_size_share_a_pass(
    engine: Engine, unet_calls: list[UNetInput]
) -> None:
    for params in MIXED:
        engine.add(params)
    engine.step()
    rows = {tuple(call.latents.shape[-2:]): len(call) for call in unet_calls}
    assert rows == {(8, 8): 2 + 2 + 2 + 6, (8, 12): 2, (12, 8): 2}
    assert len(unet_calls) == 3, "a pass for each size"
    while engine.step():
        pass


def test_a_request_in_a_batch_equals_the_request_alone(small_unet: PackedPipeline) -> None:
    """Check INV-1, also where the requests are split over threads."""
    with Engine(small_unet, EngineConfig(token_budget=100_000, num_threads=2)) as engine:
        together = engine.generate(MIXED)
        alone = [engine.generate([params])[0] for params in MIXED]
    for shared, single in zip(together, alone, strict=True):
        for image, expected in zip(shared.images, single.images, strict=True):
            assert psnr(image, expected) >= 50


def test_a_prompt_whose_states_are_not_finite_spoils_no_neighbor(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check INV-3 within a pass: rows of one batch do not mix."""
    pipeline = engine.pipeline
    expected = engine.generate(MIXED)
    encode = packed(pipeline).encode

    def poisoned(params: list[GenerationParams], adapters: list[Uses]) -> list[Conditioning]:
        found: list[Any] = encode(params, adapters)
        return [
            replace(each, states=each.states * float("nan")) if wanted.prompt == "culprit" else each
            for wanted, each in zip(params, found, strict=True)
        ]

    monkeypatch.setattr(pipeline, "encode", poisoned)
    batch = [*MIXED[:2], replace(MIXED[0], prompt="culprit"), *MIXED[2:]]
    outcomes = engine.generate(batch, return_exceptions=True)
    assert isinstance(outcomes.pop(2), NumericalFailure)
    for outcome, healthy in zip(outcomes, expected, strict=True):
        assert isinstance(outcome, GenerationResult)
        assert all(psnr(*pair) >= 50 for pair in zip(outcome.images, healthy.images, strict=True))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_deterministic_images_are_equal_to_the_last_bit(dtype: str, tmp_path: Path) -> None:
    folder = write_unet_checkpoint(tmp_path / "model", seed=5)
    config = EngineConfig(deterministic=True, token_budget=100_000, num_threads=2)
    with Engine.load(folder, device="cpu", dtype=dtype, config=config) as engine:
        together = images(engine.generate(MIXED))
        assert engine.stats.mean_requests_per_step > 1
        alone = [images(engine.generate([params]))[0] for params in MIXED]
        pipeline = engine.pipeline
    other = EngineConfig(deterministic=True, token_budget=700, num_threads=3)
    with Engine(pipeline, other) as engine:
        assert together == alone == images(engine.generate(MIXED))[: len(alone)]


def test_equal_prompts_and_negative_prompts_are_encoded_once(engine: Engine) -> None:
    assert isinstance(engine.pipeline, StableDiffusionPipeline)
    texts: list[int] = []
    hook = engine.pipeline.text.encoders[0].register_forward_pre_hook(
        lambda _, inputs: texts.append(len(inputs[0]))
    )
    common = {"num_inference_steps": 1, "guidance_scale": 5.0}
    requests = [
        GenerationParams(prompt=prompt, negative_prompt=negative, **common)  # type: ignore[arg-type]
        for prompt, negative in (("a", "b"), ("a", "c"), ("d", "b"), ("a", "b"), ("a", None))
    ]
    engine.generate(requests)
    engine.generate(requests)
    hook.remove()
    assert texts == [4], "a, b, c and d in one batch, then the cache"


def test_a_negative_prompt_without_guidance_is_warned_of(engine: Engine) -> None:
    request = GenerationParams(prompt="a star", negative_prompt="red", guidance_scale=1.0, seed=1)
    ignored, plain = engine.generate([request, replace(request, negative_prompt=None)])
    assert "changes nothing without guidance" in ignored.warnings[0]
    assert plain.warnings == ()
    assert psnr(ignored.images[0], plain.images[0]) >= 50


def test_texts_that_are_cut_are_warned_of_by_name(engine: Engine) -> None:
    result = engine.generate(
        GenerationParams(prompt="a star", negative_prompt="ring " * 60, num_inference_steps=1)
    )
    assert result.warnings == (
        "the negative prompt has 62 tokens and the model reads 32; the rest was cut off",
    )
    short = engine.generate(GenerationParams(prompt="a red star", max_sequence_length=3, seed=1))
    assert "the prompt has 5 tokens and the model reads 3" in short.warnings[0]


def test_what_the_model_cannot_do_is_refused_by_name(engine: Engine) -> None:
    with pytest.raises(ModelNotCapable, match=r"sampler='flow_match_euler'.*it has ddim, dpmpp_2m"):
        engine.add(GenerationParams(prompt="a star", sampler="flow_match_euler"))
    with pytest.raises(InvalidParams, match=r"width=68.*multiple of 8 pixels; try 64 or 72"):
        engine.add(GenerationParams(prompt="a star", width=68))
    with pytest.raises(InvalidParams, match=r"height=136.*32…128"):
        engine.add(GenerationParams(prompt="a star", height=136))
    with pytest.raises(InvalidParams, match="lcm takes at most 50"):
        engine.add(GenerationParams(prompt="a star", sampler="lcm", num_inference_steps=51))
    assert engine.step() == []


def test_half_precision_stays_close_to_float32(tmp_path: Path) -> None:
    folder = write_unet_checkpoint(tmp_path / "model", seed=5)
    batch = MIXED[:2]
    drawn = {}
    for dtype in ("float32", "float16", "bfloat16"):
        with Engine.load(folder, device="cpu", dtype=dtype) as engine:
            drawn[dtype] = [result.images[0] for result in engine.generate(batch)]
            expected = "float32" if dtype == "float16" else dtype  # this VAE overflows in fp16
            assert engine.describe()["vae dtype"] == expected
    assert all(psnr(*pair) > 30 for pair in zip(drawn["float32"], drawn["float16"], strict=True))
    # bf16 has 8 bits, and the noise is rounded to it too.
    assert all(psnr(*pair) > 12 for pair in zip(drawn["float32"], drawn["bfloat16"], strict=True))


def test_previews_have_a_pixel_for_each_latent_cell(engine: Engine) -> None:
    request = engine.add(MIXED[2], preview=True)
    previews = []
    while outputs := engine.step():
        previews += [output.preview for output in outputs if output.request_id == request]
    assert len([preview for preview in previews if preview is not None]) == 4
    assert all(preview.width * 2 == preview.height * 3 for preview in previews if preview is not None)


def test_the_guide_of_a_step_follows_the_scale(engine: Engine) -> None:
    """Guidance of 1 is no guidance, and a larger one is another image."""
    request = GenerationParams(prompt="a star", num_inference_steps=3, seed=1)
    drawn = [
        engine.generate(replace(request, guidance_scale=scale)).images[0] for scale in (0.0, 1.0, 2.0, 8.0)
    ]
    assert psnr(drawn[0], drawn[1]) >= 50
    assert psnr(drawn[1], drawn[2]) < 40
    assert psnr(drawn[2], drawn[3]) < 40
