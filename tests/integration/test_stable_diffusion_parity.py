"""Requests of a mixed batch get the images of diffusers' own Stable Diffusion pipelines (INV-2)."""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL.Image import Image

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.requests.samplers import DIFFUSION_SAMPLERS, SPACINGS
from diffuserve.engine.engine import Engine
from diffuserve.testing.unet_checkpoints import Kind, write_unet_checkpoint
from support.images import psnr
from support.unet_reference import draw_with, load, load_reference

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

MIN_PSNR = 50.0  # decibel, float32 on a CPU
PROMPTS = ("a red circle", "a small yellow star at the top left on a blue background", "ring " * 40, "x")

Checkpoints = Callable[..., Path]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """Return a function that writes each checkpoint once."""
    written: dict[str, Path] = {}

    def write(kind: Kind, **options: Any) -> Path:
        key = repr((kind, options))
        if key not in written:
            written[key] = write_unet_checkpoint(
                tmp_path_factory.mktemp("model") / kind, kind=kind, seed=5, **options
            )
        return written[key]

    return write


def draw_with_reference(reference: Any, params: GenerationParams) -> list[Image]:
    return draw_with(reference, params, width=params.width, height=params.height)


def make_mixed_batch(kind: Kind, seed: int, size: int = 8) -> list[GenerationParams]:
    """Requests that differ in everything that may differ, also in their steps: 1-8."""
    draw = random.Random(seed)
    is_distilled = kind.startswith("lcm")
    return [
        GenerationParams(
            prompt=draw.choice(PROMPTS),
            negative_prompt=None if is_distilled else draw.choice([None, "", "blurry", "a blue ring"]),
            width=8 * draw.randint(4, 16),
            height=8 * draw.randint(4, 16),
            num_inference_steps=1 + i % 8,
            guidance_scale=draw.choice([1.0, 5.0]),
            seed=draw.randrange(2**40),
            num_images=draw.choice([1, 1, 2, 3]),
            sampler=None if is_distilled else draw.choice([None, *DIFFUSION_SAMPLERS]),
        )
        for i in range(size)
    ]


def assert_parity(engine: Engine, folder: Path, batch: list[GenerationParams]) -> None:
    """Compare each image of a batch with the reference's."""
    reference = load_reference(folder)
    for params, result in zip(batch, engine.generate(batch), strict=True):
        for ours, theirs in zip(result.images, draw_with_reference(reference, params), strict=True):
            assert psnr(ours, theirs) >= MIN_PSNR, params


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        *(("xl", 5), ("sd", 5), ("lcm-xl", 4)),
        *(pytest.param(kind, 8, marks=pytest.mark.slow) for kind in ("xl", "sd", "lcm", "lcm-xl")),
    ],
)
def test_a_mixed_batch_equals_diffusers(kind: Kind, size: int, checkpoint: Checkpoints) -> None:
    folder = checkpoint(kind)
    with load(folder) as engine:
        assert_parity(engine, folder, make_mixed_batch(kind, seed=1, size=size))
        assert engine.stats.mean_requests_per_step > 1, "requests shared steps"


@pytest.mark.parametrize("kind", ["xl", "sd"])
def test_every_sampler_in_one_batch_equals_diffusers(kind: Kind, checkpoint: Checkpoints) -> None:
    """Requests of one size, so that all of them share their forward passes."""
    folder = checkpoint(kind)
    batch = [
        GenerationParams(
            prompt="a red circle",
            negative_prompt="blurry",
            num_inference_steps=3 + index % 2,
            guidance_scale=5.0,
            seed=index,
            num_images=1 + (index == 3),
            sampler=sampler,
        )
        for index, sampler in enumerate(DIFFUSION_SAMPLERS)
    ]
    with load(folder) as engine:
        assert_parity(engine, folder, batch)


@pytest.mark.parametrize("own", [True, False], ids=["the checkpoint's own", "by name"])
def test_each_request_of_a_batch_has_its_own_eta(own: bool, checkpoint: Checkpoints) -> None:
    folder = checkpoint("sd", scheduler={"_class_name": "DDIMScheduler"} if own else {})
    batch = [
        GenerationParams(
            prompt="a star",
            num_inference_steps=4,
            guidance_scale=5.0,
            seed=3,
            num_images=2,
            sampler=None if own else "ddim",
            eta=eta,
        )
        for eta in (None, 0.0, 0.5, 1.0)
    ]
    with load(folder) as engine:
        assert_parity(engine, folder, batch)
        left_out, none, half, full = (result.images[0] for result in engine.generate(batch))
    assert psnr(left_out, none) >= MIN_PSNR
    assert max(psnr(none, half), psnr(half, full), psnr(none, full)) < 40


@pytest.mark.parametrize("kind", ["xl", "sd"])
def test_no_negative_prompt_and_an_empty_one_mean_what_they_mean_to_diffusers(
    kind: Kind, checkpoint: Checkpoints
) -> None:
    folder = checkpoint(kind)
    batch = [
        GenerationParams(
            prompt="a star", negative_prompt=negative, num_inference_steps=2, guidance_scale=5.0, seed=3
        )
        for negative in (None, "", "blurry")
    ]
    with load(folder) as engine:
        assert_parity(engine, folder, batch)
        none, empty, text = (result.images[0] for result in engine.generate(batch))
    assert (psnr(none, empty) < 40) == (kind == "xl"), "SD 1 has the empty prompt in any case"
    assert psnr(empty, text) < 40


@pytest.mark.parametrize("kind", ["xl", "sd"])
def test_each_request_of_a_batch_has_its_own_spacing_of_timesteps(
    kind: Kind, checkpoint: Checkpoints
) -> None:
    folder, own = checkpoint(kind), ["euler", "euler_ancestral", "ddim", "dpmpp_2m", "dpmpp_2m_sde"]
    batch = [
        GenerationParams(
            prompt="a star",
            num_inference_steps=4,
            guidance_scale=1.0,
            seed=3,
            sampler=own[index],
            timestep_spacing=spacing,
        )
        for index, spacing in [(i, SPACINGS[i % 3]) for i in range(5)] + [(0, "trailing"), (2, "leading")]
    ]
    if kind == "xl":  # its own sampler can be spaced
        batch.append(replace(batch[0], sampler=None, timestep_spacing="trailing"))
    with load(folder) as engine:
        assert_parity(engine, folder, batch)
        assert psnr(*(engine.generate(batch[index]).images[0] for index in (0, 5))) < 40


OTHERS: Mapping[str, tuple[Kind, dict[str, Any]]] = {
    "trailing": (
        "xl",
        {"_class_name": "EulerAncestralDiscreteScheduler", "timestep_spacing": "trailing", "steps_offset": 0},
    ),
    "velocity": ("sd", {"_class_name": "DDIMScheduler", "prediction_type": "v_prediction"}),
    "clean": ("xl", {"prediction_type": "sample", "timestep_spacing": "trailing"}),
    "outdated": ("sd", {"steps_offset": 0, "clip_sample": True, "_class_name": "DDIMScheduler"}),
}


@pytest.mark.filterwarnings("ignore:The configuration file of this scheduler:FutureWarning")
@pytest.mark.parametrize("name", OTHERS)
def test_other_schedulers_of_checkpoints_equal_diffusers(name: str, checkpoint: Checkpoints) -> None:
    kind, scheduler = OTHERS[name]
    folder = checkpoint(kind, scheduler=scheduler)
    batch = [
        GenerationParams(
            prompt="a star", num_inference_steps=steps, guidance_scale=guidance, seed=3, sampler=sampler
        )
        for steps, guidance, sampler in ((1, 0.0, None), (4, 5.0, None), (3, 1.0, "dpmpp_2m_karras"))
    ]
    with load(folder) as engine:
        assert_parity(engine, folder, batch)


def test_the_images_of_the_reference_differ_from_one_another(checkpoint: Checkpoints) -> None:
    """Rule out that parity on random weights holds because all images are gray."""
    reference = load_reference(checkpoint("xl"))
    draw: dict[str, Any] = {"num_inference_steps": 3, "guidance_scale": 5.0, "width": 64, "height": 64}
    images = [
        draw_with_reference(reference, GenerationParams(prompt=prompt, seed=seed, **draw))[0]
        for prompt, seed in (("a star", 1), ("a red circle", 1), ("a star", 2))
    ]
    assert max(psnr(images[0], other) for other in images[1:]) < 30
    assert np.asarray(images[0]).std() > 10
