"""Requests of a mixed batch get the clips of diffusers' own Wan pipelines (INV-2)."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.media.input_image import input_image
from diffuserve.models.families.wan.scheduler import EULER
from diffuserve.testing.wan_checkpoints import WanKind, write_wan_checkpoint
from support.images import psnr
from support.wan_reference import WanReference

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

MIN_PSNR = 50.0  # decibel, float32 on a CPU
KINDS: tuple[WanKind, ...] = ("t2v", "ti2v", "a14b", "i2v", "flf2v", "a14b-i2v", "tiny")
FRAMES = (1, 5, 9, 17)
PROMPTS = ("a red circle moves", "ring " * 40, "fish &amp;amp; chips\n  “x”", "x")

Checkpoints = Callable[..., Path]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    """Return a function that writes each checkpoint once."""
    written: dict[str, Path] = {}

    def write(kind: WanKind, **options: Any) -> Path:
        key = repr((kind, options))
        if key not in written:
            folder = tmp_path_factory.mktemp("model") / kind
            written[key] = write_wan_checkpoint(folder, kind=kind, seed=5, **options)
        return written[key]

    return write


@cache
def reference_of(folder: Path) -> WanReference:
    return WanReference(folder)


def load(folder: Path, **config: Any) -> Engine:
    config = {"token_budget": 100_000} | config
    return Engine.load(str(folder), device="cpu", dtype="float32", config=EngineConfig(**config))


def photo(width: int, height: int, seed: int = 1) -> InputImage:
    """Return an image of smooth random colors."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    return input_image(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))


def make_mixed_batch(kind: WanKind, seed: int, size: int = 6) -> list[GenerationParams]:
    """Requests that differ in everything that may differ; steps 1-6 and all numbers of frames occur."""
    draw = random.Random(seed)
    multiple = 32 if kind == "ti2v" else 16
    takes_image, needs_image = kind in ("ti2v", "tiny"), kind in ("i2v", "flf2v", "a14b-i2v")
    needs_last = kind == "flf2v"
    frames = [max(count, 5) for count in FRAMES] if needs_last else FRAMES
    return [
        GenerationParams(
            prompt=draw.choice(PROMPTS),
            negative_prompt=(None, "", "blurry", "a blue ring")[index % 4],
            width=multiple * draw.randint(1, 64 // multiple),
            height=multiple * draw.randint(1, 64 // multiple),
            num_frames=frames[index % len(frames)],
            num_inference_steps=1 + index % 6,
            guidance_scale=(5.0, 1.0, 5.0)[index % 3],
            seed=draw.randrange(2**40),
            num_images=1 + (index % 4 == 1),
            image=photo(40 + 9 * index, 50, seed=index)
            if needs_image or (takes_image and index % 2)
            else None,
            last_image=photo(64, 30 + 5 * index, seed=50 + index)
            if needs_last or (kind == "a14b-i2v" and index in (1, 2))
            else None,
        )
        for index in range(size)
    ]


def assert_parity(engine: Engine, folder: Path, batch: list[GenerationParams]) -> None:
    """Compare each frame of a batch with the reference's."""
    reference = reference_of(folder)
    for params, result in zip(batch, engine.generate(batch), strict=True):
        theirs = reference.draw(params)
        assert [len(clip) for clip in result.frames] == [len(clip) for clip in theirs]
        pairs = [
            pair for clips in zip(result.frames, theirs, strict=True) for pair in zip(*clips, strict=True)
        ]
        assert min(psnr(*pair) for pair in pairs) >= MIN_PSNR, params


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        # Two models that read an image do what each does, and who reads a last one reads a first one, too.
        *((kind, 4) for kind in KINDS if kind not in ("a14b-i2v", "i2v")),
        *(pytest.param(kind, 6, marks=pytest.mark.slow) for kind in KINDS),
    ],
)
def test_a_mixed_batch_equals_diffusers(kind: WanKind, size: int, checkpoint: Checkpoints) -> None:
    folder = checkpoint(kind)
    with load(folder) as engine:
        assert_parity(engine, folder, make_mixed_batch(kind, seed=1, size=size))
        assert engine.stats.mean_requests_per_step > 1, "requests shared steps"


SHORT = GenerationParams(
    prompt="a star", width=32, height=32, num_frames=5, num_inference_steps=4, guidance_scale=5.0, seed=3
)


@pytest.mark.parametrize(
    "scheduler",
    [
        {"flow_shift": 12.0, "solver_order": 3},
        {"flow_shift": 1.0, "disable_corrector": [1]},
        {"_class_name": EULER, "shift": 3.0, "use_flow_sigmas": False},
    ],
    ids=lambda options: str(next(iter(options.values()))),
)
def test_other_schedulers_of_checkpoints_equal_diffusers(
    scheduler: dict[str, Any], checkpoint: Checkpoints
) -> None:
    folder = checkpoint("t2v", scheduler=scheduler)
    with load(folder) as engine:
        assert_parity(engine, folder, [replace(SHORT, num_inference_steps=steps) for steps in (1, 4, 5)])


def test_samplers_by_name_equal_diffusers(checkpoint: Checkpoints) -> None:
    folder = checkpoint("tiny")
    batch = [
        replace(SHORT, sampler=name, num_inference_steps=5, image=image)
        for name in ("unipc", "dpmpp_2m")
        for image in (None, photo(40, 50))
    ]
    with load(folder) as engine:
        assert_parity(engine, folder, batch)


def test_eulers_sampler_takes_the_checkpoints_steps_where_they_are_eulers(checkpoint: Checkpoints) -> None:
    """The timesteps differ by less than one: a checkpoint's UniPC cuts them to whole ones."""
    with load(checkpoint("tiny")) as engine:
        own, named = engine.generate([SHORT, replace(SHORT, sampler="flow_match_euler")])
    assert min(psnr(*pair) for pair in zip(own.frames[0], named.frames[0], strict=True)) > 35


def test_clips_of_the_reference_differ_from_one_another(checkpoint: Checkpoints) -> None:
    """Rule out that parity on random weights holds because all clips are gray, or stand still."""
    reference = reference_of(checkpoint("t2v"))
    others: tuple[dict[str, Any], ...] = (
        {},
        {"prompt": "two blue rings"},
        {"seed": 4},
        {"negative_prompt": "three green stars on the wide grass"},
        {"guidance_scale": 1.0},
    )
    first, *changed = (reference.draw(replace(SHORT, **other))[0] for other in others)
    assert all(psnr(first[2], clip[2]) < 40 for clip in changed)
    assert psnr(first[0], first[4]) < 30
    assert np.asarray(first[0]).std() > 10
