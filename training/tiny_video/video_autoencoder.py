"""The VAE: Wan's own class, which learns single frames first, then short clips, then whole ones."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import (
    WanCausalConv3d,
    WanDecoder3d,
    WanEncoder3d,
    WanResidualBlock,
    unpatchify,
)
from torch import Tensor, nn
from torch.nn import functional

from busy import busy_clip
from loop import Course, warm_then_cosine
from render import render

NUM_FRAMES, SIDE = 17, 96
"""Frames and pixels of a whole clip."""
LATENT_CHANNELS = 16
NAME = "video_autoencoder"
_PATCH = 2
_KL_WEIGHT = 5e-4
_CLIP_RATE = 0.5
_EMA_DECAY = 0.995  # short, since the lessons change


@dataclass(frozen=True)
class Lesson:
    """Kind of batch that the steps before a share `until` of all steps are trained on."""

    until: float
    num_frames: int
    side: int
    batch: int


LESSONS = (
    Lesson(0.25, 1, 64, 16),
    Lesson(0.45, 9, 64, 4),
    Lesson(0.85, NUM_FRAMES, 64, 2),
    Lesson(1.0, NUM_FRAMES, SIDE, 2),
)
"""Colors and edges are learned on single frames, where a step shows many; then what happens in time.

Trained on nine frames alone, the colors of later frames drift, since their chunks were never decoded.
"""


def build() -> AutoencoderKLWan:
    """Return the VAE, 2.7 M parameters: patches first and averages past the convolutions, as in Wan 2.2."""
    torch.manual_seed(0)
    vae = AutoencoderKLWan(
        base_dim=32,
        dim_mult=[1, 2, 2],
        z_dim=LATENT_CHANNELS,
        num_res_blocks=1,
        temperal_downsample=[True, True],
        is_residual=True,
        patch_size=_PATCH,
        in_channels=3 * _PATCH**2,
        out_channels=3 * _PATCH**2,
        scale_factor_temporal=4,
        scale_factor_spatial=8,
        latents_mean=[0.0] * LATENT_CHANNELS,
        latents_std=[1.0] * LATENT_CHANNELS,
    )
    return vae


def make_quicker(vae: AutoencoderKLWan, is_compiled: bool) -> None:
    """Change how the VAE computes, not what: half the time of a step went into norms and zeros."""
    torch._dynamo.config.recompile_limit = 64  # a few programs for each shape of tensor
    normalize = torch.compile(_normalize, dynamic=True) if is_compiled else _normalize
    for module in vae.modules():
        if isinstance(module, WanCausalConv3d) and module.kernel_size[0] > 1:
            module.forward = MethodType(_convolve, module)
        norms = []
        if isinstance(module, WanResidualBlock):
            norms = [module.norm1, module.norm2]
        elif isinstance(module, (WanEncoder3d, WanDecoder3d)):
            norms = [module.norm_out]
        for norm in norms:
            norm.forward = partial(_normalize_with, norm, normalize)
            module.nonlinearity = nn.Identity()  # the norm does it


def train(folder: Path, num_steps: int, is_compiled: bool = True) -> AutoencoderKLWan:
    """Train the VAE for `num_steps` in all, or go on from `folder`; return it with averaged weights."""
    vae = build()
    make_quicker(vae, is_compiled)
    optimizer = torch.optim.AdamW(vae.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=1e-3, fused=True)
    course = Course(NAME, {"vae": vae}, [optimizer], num_steps, learning_rate, folder, _EMA_DECAY)

    def loss(step: int, chance: random.Random) -> tuple[Tensor, dict[str, float]]:
        lesson = next(lesson for lesson in LESSONS if step < lesson.until * num_steps)
        clips = busy_clips(chance, lesson)
        with torch.autocast("cpu", torch.bfloat16):
            posterior = vae.encode(clips).latent_dist
            drawn = decode(vae, posterior.sample()).float()
        mean, logvar = posterior.mean.float(), posterior.logvar.float()
        divergence = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).mean()
        error = drawn - clips
        squares = error.square().mean()
        value = error.abs().mean() + 2 * squares + _KL_WEIGHT * divergence
        return value, {"dB": decibels(squares), "kl": float(divergence), "frames": lesson.num_frames}

    course.run(loss)
    course.averaged()
    return vae


def learning_rate(done: float) -> float:
    """Return the factor of the learning rate after this share of all steps: half of it for clips.

    At the full rate clips in batches of two got worse: from 21 dB to 16 in a hundred steps.
    """
    return warm_then_cosine(done) * (1.0 if done < LESSONS[0].until else _CLIP_RATE)


def busy_clips(chance: random.Random, lesson: Lesson) -> Tensor:
    """Return a batch `(batch, 3, frames, side, side)` in -1…1."""
    size = (lesson.num_frames, lesson.side)
    return torch.stack([render(busy_clip(chance, *size), *size) for _ in range(lesson.batch)])


def decibels(squares: Tensor) -> float:
    """Return the PSNR for a mean squared error of values in -1…1."""
    return -10 * float(torch.log10(squares.detach() / 4))


def decode(vae: AutoencoderKLWan, latents: Tensor) -> Tensor:
    """Return the clips of unscaled latents as `vae.decode` does, but not clamped to -1…1.

    Clamped values have no gradient: what is too bright would stay so.
    """
    vae.clear_cache()
    latents = vae.post_quant_conv(latents)
    chunks = []
    for index in range(latents.shape[2]):
        vae._conv_idx = [0]
        chunk = vae.decoder(
            latents[:, :, index : index + 1],
            feat_cache=vae._feat_map,
            feat_idx=vae._conv_idx,
            first_chunk=index == 0,
        )
        chunks.append(chunk)
    vae.clear_cache()
    clips: Tensor = unpatchify(torch.cat(chunks, dim=2), _PATCH)
    return clips


def _convolve(conv: Any, x: Tensor, cache_x: Tensor | None = None) -> Tensor:
    """Convolve as `WanCausalConv3d.forward` does, but skip the zeros before the first frame.

    A first frame alone, padded with two frames of zeros, costs three times what the last slice of the
    kernel costs on it as an image.
    """
    if cache_x is None and x.shape[2] == 1 and conv.stride[0] == 1:
        across, down = conv._padding[0], conv._padding[2]
        convolved = functional.conv2d(x[:, :, 0], conv.weight[:, :, -1], conv.bias, padding=(down, across))
        return convolved.unsqueeze(2)
    convolved_in_time: Tensor = WanCausalConv3d.forward(conv, x, cache_x)
    return convolved_in_time


def _normalize_with(norm: Any, normalize: Callable[[Tensor, Tensor], Tensor], x: Tensor) -> Tensor:
    return normalize(x, norm.gamma)


def _normalize(x: Tensor, gamma: Tensor) -> Tensor:
    """Return the root mean square norm over channels, and SiLU of it, in the type of `x`."""
    values = x.float()
    root = values.square().sum(1, keepdim=True).sqrt().clamp_min(1e-12)
    return functional.silu(values / root * (x.shape[1] ** 0.5 * gamma)).to(x.dtype)
