"""Wan in the engine: shared passes, neighbors, experts, first frames, bit-equal clips, warnings."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from diffuserve.domain.errors import NumericalFailure
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.engine.outputs import GenerationResult
from diffuserve.media.input_image import as_image, input_image
from diffuserve.models.families.wan.pipeline import WanPipeline
from diffuserve.models.families.wan.transformer import PackedWanInput
from diffuserve.models.layers.adapted.adapters import Uses
from diffuserve.models.pipelines.base import Conditioning, DenoiseInput, packed
from diffuserve.models.registry import load_pipeline
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.testing.wan_checkpoints import write_wan_checkpoint
from support.images import psnr

CPU = torch.device("cpu")
CLIP = GenerationParams(
    prompt="a red circle",
    width=32,
    height=32,
    num_frames=5,
    num_inference_steps=3,
    seed=1,
    guidance_scale=5.0,
)


def photo() -> InputImage:
    return input_image(Image.linear_gradient("L").convert("RGB").resize((48, 40)))


MIXED = [
    CLIP,
    replace(CLIP, prompt="a ring", num_frames=1, num_inference_steps=5, guidance_scale=1.0, num_images=2),
    replace(CLIP, prompt="x", width=48, num_frames=9, num_inference_steps=4, seed=3, sampler="dpmpp_2m"),
    replace(CLIP, prompt="a star", image=photo(), num_inference_steps=2, seed=4, negative_prompt="red"),
    replace(CLIP, prompt="a star", height=48, seed=5, num_images=2, image=photo(), guidance_scale=1.0),
]


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> WanPipeline:
    """A random checkpoint that takes text alone or with a first frame."""
    folder = write_wan_checkpoint(tmp_path_factory.mktemp("model") / "wan", kind="tiny", seed=5)
    loaded = load_pipeline(str(folder), LoadPlan(CPU, torch.float32))
    assert isinstance(loaded, WanPipeline)
    return loaded


@pytest.fixture
def engine(pipeline: WanPipeline) -> Iterator[Engine]:
    with Engine(pipeline, EngineConfig(token_budget=100_000, num_threads=1)) as engine:
        yield engine


def frames_of(results: list[GenerationResult]) -> list[Image.Image]:
    return [frame for result in results for clip in result.frames for frame in clip]


def assert_equal(left: list[GenerationResult], right: list[GenerationResult]) -> None:
    pairs = list(zip(frames_of(left), frames_of(right), strict=True))
    assert min(psnr(*pair) for pair in pairs) >= 50


def test_clips_and_images_guided_or_not_share_a_pass(engine: Engine, pipeline: WanPipeline) -> None:
    calls: list[PackedWanInput] = []
    hook = pipeline.experts[0].register_forward_pre_hook(lambda _, inputs: calls.append(inputs[0]))
    for params in MIXED:
        engine.add(params)
    engine.step()
    hook.remove()
    [packed] = calls
    # two passes of a guided clip, one of another, for each of its clips
    assert sorted(packed.layout.segments.lengths) == sorted([4, 4, *[8] * 4, *[18] * 2, *[12] * 2])
    assert len(packed.layout.factors.lengths) == 10 + 4, "a given frame has factors of its own"
    while engine.step():
        pass


def test_a_request_in_a_batch_equals_the_request_alone(pipeline: WanPipeline) -> None:
    """Check INV-1, also where the requests are split over threads."""
    with Engine(pipeline, EngineConfig(token_budget=100_000, num_threads=2)) as engine:
        together = engine.generate(MIXED)
        alone = [engine.generate([params])[0] for params in MIXED]
    assert_equal(together, alone)


def test_a_prompt_whose_states_are_not_finite_spoils_no_neighbor(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check INV-3 within a pass: sequences of one row do not mix."""
    expected = engine.generate(MIXED)
    encode = packed(engine.pipeline).encode

    def poisoned(params: list[GenerationParams], adapters: list[Uses]) -> list[Conditioning]:
        found: list[Any] = encode(params, adapters)
        return [
            replace(each, prompt=each.prompt * float("nan")) if wanted.prompt == "culprit" else each
            for wanted, each in zip(params, found, strict=True)
        ]

    monkeypatch.setattr(engine.pipeline, "encode", poisoned)
    batch = [*MIXED[:2], replace(CLIP, prompt="culprit"), *MIXED[2:]]
    outcomes = engine.generate(batch, return_exceptions=True)
    assert isinstance(outcomes.pop(2), NumericalFailure)
    assert_equal([each for each in outcomes if isinstance(each, GenerationResult)], expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_deterministic_clips_are_equal_to_the_last_bit(dtype: str, tmp_path: Path) -> None:
    folder = write_wan_checkpoint(tmp_path / "model", kind="tiny", seed=5)
    config = EngineConfig(deterministic=True, token_budget=100_000, num_threads=2)
    with Engine.load(folder, device="cpu", dtype=dtype, config=config) as engine:
        together = [frame.tobytes() for frame in frames_of(engine.generate(MIXED))]
        assert engine.stats.mean_requests_per_step > 1
        alone = [frame.tobytes() for each in MIXED for frame in frames_of(engine.generate([each]))]
        pipeline = engine.pipeline
    other = EngineConfig(deterministic=True, token_budget=40, num_threads=3)
    with Engine(pipeline, other) as engine:
        assert together == alone == [frame.tobytes() for frame in frames_of(engine.generate(MIXED))]


def test_equal_texts_and_images_are_encoded_once(
    engine: Engine, pipeline: WanPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[int] = []
    images: list[tuple[int, ...]] = []
    encode = pipeline.vae.encode_image
    hook = pipeline.text.model.register_forward_pre_hook(lambda _, inputs: texts.append(len(inputs[0])))

    def count(pixels: Tensor) -> Tensor:
        images.append(tuple(pixels.shape))
        return encode(pixels)

    monkeypatch.setattr(pipeline.vae, "encode_image", count)
    step = replace(CLIP, num_inference_steps=1)
    requests = [
        replace(step, prompt=prompt, negative_prompt=negative, image=image)
        for prompt, negative, image in (
            ("a", "b", photo()),
            ("c", "b", photo()),
            ("a", "b", None),
            ("a", None, photo()),
            ("a", "", photo()),
        )
    ]
    engine.generate(requests)
    engine.generate(requests)
    hook.remove()
    assert texts == [2, 2], "prompts a and c, negative prompts b and none, then the cache"
    assert images == [(1, 3, 32, 32)]


def test_the_first_frame_is_the_image_and_the_others_are_not(engine: Engine, pipeline: WanPipeline) -> None:
    """The image passes the autoencoder and nothing else."""
    requests = [replace(CLIP, image=photo(), prompt=prompt) for prompt in ("a star", "two rings")]
    first, second = (result.frames[0] for result in engine.generate(requests))
    assert psnr(first[0], second[0]) >= 50
    assert psnr(first[4], second[4]) < 45
    pixels = as_image(photo()).resize((32, 32), Image.Resampling.LANCZOS)
    given = replace(CLIP, image=input_image(pixels), num_frames=1)
    alone = engine.generate([given])[0].images[0]
    assert psnr(first[0], alone) >= 50


def test_previews_are_strips_of_frames(engine: Engine) -> None:
    requests = {engine.add(params, preview=True): params for params in (MIXED[1], MIXED[2], MIXED[3])}
    shapes: dict[str, set[float]] = {request: set() for request in requests}
    while outputs := engine.step():
        for output in outputs:
            if output.preview is not None:
                shapes[output.request_id].add(output.preview.width / output.preview.height)
    assert list(shapes.values()) == [{1.0}, {3 * 1.5}, {2.0}], "a frame for each latent frame"


def test_latents_are_in_float32_whatever_the_dtype(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_wan_checkpoint(tmp_path / "model", kind="tiny", seed=5)
    pipeline = load_pipeline(str(folder), LoadPlan(CPU, torch.bfloat16))
    assert pipeline.describe()["vae dtype"] == "float32"
    denoise = packed(pipeline).denoise
    seen: list[torch.dtype] = []

    def look(batch: Sequence[DenoiseInput]) -> list[Tensor]:
        seen.extend(request.latents.dtype for request in batch)
        return denoise(batch)

    monkeypatch.setattr(pipeline, "denoise", look)
    with Engine(pipeline, EngineConfig(token_budget=100_000)) as engine:
        engine.generate([replace(CLIP, sampler="flow_match_euler")])
    assert seen == [torch.float32] * 3


def test_each_expert_gets_the_requests_of_its_noise_levels_alone(tmp_path: Path) -> None:
    """Requests of both experts share the engine's step, and each expert its own pass."""
    folder = write_wan_checkpoint(tmp_path / "model", kind="a14b", seed=5)
    (folder / "diffuserve.json").write_text('{"guidance_scale": 4.0, "guidance_scale_2": 1.0}')
    calls: list[tuple[int, list[float]]] = []
    pipeline = load_pipeline(str(folder), LoadPlan(CPU, torch.float32))
    assert isinstance(pipeline, WanPipeline)
    for index, expert in enumerate(pipeline.experts):
        expert.register_forward_pre_hook(
            lambda _, inputs, index=index: calls.append((index, inputs[0].timestep.tolist()))
        )
    with Engine(pipeline, EngineConfig(token_budget=100_000, num_threads=1)) as engine:
        engine.generate([replace(CLIP, num_inference_steps=steps) for steps in (2, 4)])
    assert {index for index, _ in calls} == {0, 1}
    assert all((timestep >= 875) == (index == 0) for index, timesteps in calls for timestep in timesteps)
    assert [len(timesteps) for _, timesteps in calls[:3]] == [4, 2, 2], "shared, until one has less noise"


def test_the_second_guidance_changes_the_clip_in_proportion(tmp_path: Path) -> None:
    plain = write_wan_checkpoint(tmp_path / "plain", kind="a14b", seed=5)
    steered = write_wan_checkpoint(tmp_path / "steered", kind="a14b", seed=5)
    (steered / "diffuserve.json").write_text('{"guidance_scale": 5.0, "guidance_scale_2": 2.5}')
    clips = []
    for folder in (plain, steered):
        with Engine.load(str(folder), device="cpu", dtype="float32") as engine:
            clips.append(engine.generate([CLIP])[0].frames[0])
    assert psnr(clips[0][4], clips[1][4]) < 45


def test_a_negative_prompt_and_the_lack_of_one_are_different_clips(engine: Engine) -> None:
    drawn = [
        engine.generate([replace(CLIP, negative_prompt=negative)])[0].frames[0][4]
        for negative in (None, "", "blurry rings")
    ]
    assert psnr(drawn[0], drawn[1]) >= 50
    assert psnr(drawn[1], drawn[2]) < 45
