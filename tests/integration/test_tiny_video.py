"""The bundled video model: equal to diffusers, from a prompt and from a first frame."""

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.engine import Engine
from diffuserve.media.input_image import input_image
from diffuserve.models.bundled import bundled_models
from support.images import psnr

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

FOLDER = bundled_models()["tiny-video"]
MIN_PSNR = 50.0  # decibel of a frame, float32 on a CPU
SIDE = 96


def test_clips_of_any_length_equal_diffusers_frame_by_frame() -> None:
    reference = diffusers.WanPipeline.from_pretrained(
        FOLDER, dtype=torch.float32, local_files_only=True, trust_remote_code=False
    )
    reference.set_progress_bar_config(disable=True)
    batch = [
        GenerationParams(prompt=prompt, num_frames=num_frames, num_inference_steps=steps, seed=seed)
        for seed, (prompt, num_frames, steps) in enumerate(
            [("a blue star moves right", 5, 2), ("a red circle falls", 9, 1), ("a green ring", 1, 3)]
        )
    ]
    with Engine.load("tiny-video", device="cpu", dtype="float32") as engine:
        results = engine.generate(batch)
    for params, result in zip(batch, results, strict=True):
        assert params.seed is not None
        [expected] = reference(
            params.prompt,
            width=SIDE,
            height=SIDE,
            num_frames=params.num_frames,
            num_inference_steps=params.num_inference_steps,
            guidance_scale=1.0,
            generator=torch.Generator("cpu").manual_seed(params.seed),
            max_sequence_length=engine.spec.max_sequence_length,
            output_type="pil",
        ).frames
        [frames] = result.frames
        assert len(frames) == params.num_frames
        pairs = zip(frames, expected, strict=True)
        assert min(psnr(own, other) for own, other in pairs) >= MIN_PSNR, params


def test_a_clip_begins_with_the_image_that_it_is_given() -> None:
    image = Image.new("RGB", (SIDE, SIDE), (255, 255, 255))
    image.paste((220, 40, 40), (36, 36, 60, 60))
    with Engine.load("tiny-video", device="cpu") as engine:
        [result] = engine.generate(
            [
                GenerationParams(
                    prompt="a red square moves right", image=input_image(image), num_frames=5, seed=1
                )
            ]
        )
    first = np.asarray(result.frames[0][0]).astype(float)
    assert first[:20].mean() > 220, "the ground is white"
    assert np.abs(first[44:52, 44:52].mean((0, 1)) - (220, 40, 40)).max() < 40, "the square is there"


def test_it_draws_seventeen_frames_in_four_steps_by_default() -> None:
    with Engine.load("tiny-video", device="cpu") as engine:
        spec = engine.spec
        params = spec.resolve(GenerationParams(prompt="a red circle falls"), seed=0)
    assert (params.num_frames, params.num_inference_steps, params.width, params.height) == (17, 4, SIDE, SIDE)
    assert (params.guidance_scale, params.fps, spec.has_first_frame) == (1.0, 8, True)
