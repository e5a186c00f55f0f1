"""Small models of every family with random weights, requests for them, and diffusers' own images."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.testing.checkpoints import write_flux_checkpoint
from diffuserve.testing.unet_checkpoints import write_unet_checkpoint
from diffuserve.testing.wan_checkpoints import write_wan_checkpoint

_FLUX = (
    GenerationParams(
        prompt="a red circle", width=64, height=96, seed=1, num_inference_steps=4, max_sequence_length=32
    ),
    GenerationParams(
        prompt="a star", width=96, height=64, seed=2, num_inference_steps=3, max_sequence_length=77
    ),
)
_UNET = (
    GenerationParams(
        prompt="a red circle", width=64, height=96, seed=1, num_inference_steps=4, guidance_scale=5.0
    ),
    GenerationParams(prompt="x", width=96, height=64, seed=2, num_inference_steps=3, guidance_scale=1.0),
)
_WAN = (
    GenerationParams(
        prompt="a ring",
        width=64,
        height=32,
        num_frames=5,
        seed=1,
        num_inference_steps=3,
        guidance_scale=5.0,
    ),
    GenerationParams(
        prompt="a star",
        width=32,
        height=64,
        num_frames=1,
        seed=2,
        num_inference_steps=2,
        guidance_scale=1.0,
    ),
)


@dataclass(frozen=True)
class Family:
    """A checkpoint and requests that share its steps."""

    write: Callable[[Path], Path]
    requests: Sequence[GenerationParams]


def _with_guidance(requests: Sequence[GenerationParams], scale: float) -> list[GenerationParams]:
    return [replace(request, guidance_scale=scale) for request in requests]


FAMILIES = {
    "FLUX.1-schnell": Family(partial(write_flux_checkpoint, kind="schnell"), _with_guidance(_FLUX, 0.0)),
    "FLUX.1-dev": Family(partial(write_flux_checkpoint, kind="dev"), _with_guidance(_FLUX, 3.5)),
    "SD 1": Family(partial(write_unet_checkpoint, kind="sd"), _UNET),
    "SD 2": Family(
        partial(
            write_unet_checkpoint,
            kind="sd",
            scheduler={"_class_name": "DDIMScheduler", "prediction_type": "v_prediction"},
            use_linear_projection=True,
        ),
        _UNET,
    ),
    "SDXL": Family(partial(write_unet_checkpoint, kind="xl"), _UNET),
    "Wan 2.1": Family(partial(write_wan_checkpoint, kind="t2v"), _WAN),
    "Wan 2.2": Family(partial(write_wan_checkpoint, kind="ti2v"), _WAN),
}


def stock_frames(
    folder: Path, requests: Sequence[GenerationParams], dtype: torch.dtype, device: str
) -> list[list[Image.Image]]:
    """Return the frames that diffusers' own pipeline draws for each request; an image is one frame."""
    from diffusers import DiffusionPipeline

    pipeline: Any = DiffusionPipeline.from_pretrained(
        folder, dtype=dtype, local_files_only=True, trust_remote_code=False
    ).to(device)
    pipeline.set_progress_bar_config(disable=True)
    return [_drawn(pipeline, request) for request in requests]


def _drawn(pipeline: Any, request: GenerationParams) -> list[Image.Image]:
    accepted = inspect.signature(pipeline.__call__).parameters
    values = {name: value for name, value in request.to_dict().items() if name in accepted}
    generator = torch.Generator("cpu").manual_seed(request.seed or 0)
    output = pipeline(**values, generator=generator, output_type="pil")
    frames: list[Image.Image] = output.frames[0] if hasattr(output, "frames") else output.images
    return frames


def min_psnr(left: Sequence[Sequence[Image.Image]], right: Sequence[Sequence[Image.Image]]) -> float:
    """Return the lowest PSNR of two frames that stand for each other, in decibels."""
    pairs = [pair for frames in zip(left, right, strict=True) for pair in zip(*frames, strict=True)]
    return min(psnr(*pair) for pair in pairs)


def psnr(left: Image.Image, right: Image.Image) -> float:
    """Return decibels; 168 where the images are equal."""
    first, second = (np.asarray(image, dtype=float) for image in (left, right))
    return float(10 * np.log10(255**2 / max(float(np.mean((first - second) ** 2)), 1e-12)))
