"""Requests of the tiny pipelines, each said twice: in diffusers' words for a bare call, and in ours."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image

from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from support.tiny_pipelines.registry import TinyPipeline


@dataclass(frozen=True)
class TinyRequest:
    """What is asked of a tiny pipeline. `size` and `frames` index the pipeline's own; `picture` is a seed."""

    prompt: str
    seed: int
    steps: int = 3
    guidance: float = 3.0
    negative: str | None = None
    size: int = 0
    frames: int = 0
    picture: int = 0

    def bare_call(self, tiny: TinyPipeline, output_type: str = "np") -> dict[str, Any]:
        """Return the arguments of diffusers' own call."""
        return {
            "prompt": self.prompt,
            "num_inference_steps": self.steps,
            "generator": torch.Generator().manual_seed(self.seed),
            "output_type": output_type,
            **tiny.call,
            **self._shape(tiny),
            **self._guiding(tiny),
            **self._pictures(tiny),
        }

    def params(self, tiny: TinyPipeline, num_images: int = 1) -> GenerationParams:
        """Return the same as a request of ours."""
        pictures = self._pictures(tiny)
        given: dict[str, Any] = {
            "guidance_scale": None if tiny.guidance is None else self.guidance,
            "negative_prompt": self.negative if tiny.takes_negative else None,
            "num_frames": tiny.frames[self.frames] if tiny.is_clip else None,
            "max_sequence_length": tiny.call.get("max_sequence_length"),
            "seconds": tiny.call.get("audio_duration"),
            **self._size(tiny),
            **{tiny.field_of(name): _input(picture) for name, picture in pictures.items()},
        }
        return GenerationParams(
            prompt=self.prompt,
            seed=self.seed,
            num_images=num_images,
            num_inference_steps=self.steps,
            **given,
        )

    def _size(self, tiny: TinyPipeline) -> dict[str, int]:
        return dict(zip(("width", "height"), tiny.sizes[self.size], strict=True)) if tiny.sizes else {}

    def _shape(self, tiny: TinyPipeline) -> dict[str, Any]:
        return self._size(tiny) | ({tiny.frames_argument: tiny.frames[self.frames]} if tiny.is_clip else {})

    def _guiding(self, tiny: TinyPipeline) -> dict[str, Any]:
        guidance = {} if tiny.guidance is None else {tiny.guidance: self.guidance}
        blank = " " if tiny.guidance == "true_cfg_scale" and self.guidance > 1 else None
        negative = blank if self.negative is None else self.negative
        return guidance | ({"negative_prompt": negative} if tiny.takes_negative and negative else {})

    def _pictures(self, tiny: TinyPipeline) -> dict[str, Any]:
        """Return an input image for each argument."""
        width, height = tiny.sizes[self.size] if tiny.sizes else (64, 64)
        pictures = {name: noise_picture(width, height, self.picture) for name in tiny.pictures}
        return pictures | ({"mask_image": half_mask(width, height)} if "mask_image" in pictures else {})


def noise_picture(width: int, height: int, seed: int) -> Image.Image:
    """Return noise as an input image: no two parts of it are alike."""
    levels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(levels)


def _input(picture: Image.Image) -> InputImage:
    mode: Literal["RGB", "L"] = "L" if picture.mode == "L" else "RGB"
    pixels = picture.tobytes()
    return InputImage(sha256(pixels).hexdigest(), picture.width, picture.height, mode, pixels)


def half_mask(width: int, height: int) -> Image.Image:
    """Return a mask whose left half is to be drawn anew."""
    levels = np.zeros((height, width), np.uint8)
    levels[:, : width // 2] = 255
    return Image.fromarray(levels)


def mixed_requests(tiny: TinyPipeline) -> Sequence[TinyRequest]:
    """Return requests that differ in all that may keep them from sharing a pass.

    Prompts are of several lengths, of which two are equal. The last request has another size and, of a
    clip, another length too.
    """
    requests = [
        TinyRequest("a red circle", 1, steps=4, guidance=5.0, negative="ugly"),
        TinyRequest("a blue star on a black background", 2, steps=6, picture=1),
        TinyRequest("two hearts", 3, steps=3, guidance=1.0, picture=2),
        TinyRequest("a red circle", 4, steps=5, guidance=4.0, negative="blurred, dark", picture=3),
    ]
    other = replace(requests[1], seed=5, size=min(1, len(tiny.sizes) - 1) if tiny.sizes else 0, steps=4)
    return [*requests, replace(other, frames=1) if len(tiny.frames) > 1 else other]
