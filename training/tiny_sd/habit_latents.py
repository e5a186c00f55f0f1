"""Images as the UNet sees them, made once by the VAE of `tiny-flux`."""

from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import AutoencoderKL
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from diffuserve.models.folders.pretrained import load_module
from draw import draw
from layout import NUM_TRAITS, place
from text_encoders import BUNDLED
from wishes import scene_of

SIDE = 128
"""The native size."""
OTHER_SIZES = ((96, 96), (160, 128), (128, 160), (160, 160))
"""Width and height of those that are trained beside it."""
CELL = 8
"""Pixels along a latent cell's side."""
_SHARD = 2000  # images of a file; an interrupted run loses at most so many
_BATCH = 50


@dataclass(frozen=True)
class HabitLatents:
    """Latents of the scenes 0…n-1 in one size.

    `means` `(n, 16, height/8, width/8)` is unscaled, `traits` is `(n, NUM_TRAITS)`; `things` `(n, height/8,
    width/8)` is 1 where a cell shows anything of an object.
    """

    means: Tensor
    traits: Tensor
    things: Tensor
    scale: float

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.means.shape[2] * CELL, self.means.shape[3] * CELL

    def scaled(self, indexes: Tensor) -> Tensor:
        """Return latents of about unit variance, as in the pipeline."""
        return self.means[indexes].float() * self.scale


def load_vae() -> AutoencoderKL:
    """Return the VAE, in float32. Pipelines of this family scale latents and do not shift them."""
    vae: AutoencoderKL = load_module(AutoencoderKL, BUNDLED / "vae", torch_dtype=torch.float32)
    vae.register_to_config(shift_factor=None)
    return vae.requires_grad_(False)


def encode(vae: AutoencoderKL, folder: Path, count: int, size: tuple[int, int]) -> HabitLatents:
    """Return latents of one size (width, height), encoded where `folder` has not got them."""
    parts = [
        _shard(vae, folder, start, min(start + _SHARD, count), size) for start in range(0, count, _SHARD)
    ]
    tensors = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return HabitLatents(**tensors, scale=vae.config.scaling_factor)


@torch.no_grad()
def _shard(
    vae: AutoencoderKL, folder: Path, start: int, end: int, size: tuple[int, int]
) -> dict[str, Tensor]:
    width, height = size
    path = folder / f"latents-{width}x{height}-{start}-{end}.safetensors"
    if path.exists():
        found: dict[str, Tensor] = load_file(path)
        return found
    print(f"latents: {end - start} images of {width}x{height} are encoded", flush=True)
    traits = torch.randn(
        end - start, NUM_TRAITS, generator=torch.Generator().manual_seed(start + width * height)
    )
    means, things = [], []
    for first in range(start, end, _BATCH):
        numbers = range(first, min(first + _BATCH, end))
        images = torch.stack(
            [draw_number(number, traits[number - start], width, height) for number in numbers]
        )
        with torch.autocast("cpu", torch.bfloat16):
            means.append(vae.encode(images).latent_dist.mean.to(torch.bfloat16))
        things.append(shows_thing(images))
    tensors = {"means": torch.cat(means), "traits": traits, "things": torch.cat(things)}
    partial = path.with_suffix(".partial")
    save_file(tensors, partial)
    partial.replace(path)
    return tensors


def draw_number(index: int, traits: Tensor, width: int, height: int) -> Tensor:
    """The scene of this number as an image `(3, height, width)`."""
    shorter = min(width, height)
    return draw(place(scene_of(index), traits, width / shorter, height / shorter), width, height)


def shows_thing(images: Tensor) -> Tensor:
    """Which cells `(batch, rows, columns)` differ anywhere from the background, which fills every corner."""
    differs = (images - images[:, :, :1, :1]).abs().amax(1, keepdim=True) > 0.05
    return functional.max_pool2d(differs.float(), CELL)[:, 0].to(torch.uint8)
