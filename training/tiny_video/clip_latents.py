"""Clips as the denoiser sees them, made once: encoding costs more than a training step."""

import random
from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import AutoencoderKLWan
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from choreography import NUM_TRAITS, choreograph
from motions import ClipScene, draw_clip_scene
from render import render
from video_autoencoder import NUM_FRAMES, SIDE

FOLDER = "latents"
_SHARD = 400  # clips of a file; an interrupted run loses at most so many
_BATCH = 8
_TOKEN = 16  # pixels along a token's side


@dataclass(frozen=True)
class ClipLatents:
    """Clips of scenes drawn from their numbers.

    `means` `(n, 16, 5, 12, 12)` is unscaled, `traits` is `(n, NUM_TRAITS)`; `things` `(n, 6, 6)` is 1 where
    an object is at any time. `mean` and `std` `(16, 1, 1, 1)` are those of each channel.
    """

    means: Tensor
    traits: Tensor
    things: Tensor
    mean: Tensor
    std: Tensor

    def scaled(self, indexes: Tensor) -> Tensor:
        """Return latents of zero mean and unit variance, as the pipeline has them."""
        return (self.means[indexes].float() - self.mean) / self.std


def scene_of(index: int) -> ClipScene:
    """Return the scene of this number."""
    return draw_clip_scene(random.Random(f"clip {index}"))


def encode_all(vae: AutoencoderKLWan, folder: Path, count: int) -> ClipLatents:
    """Return the latents of the scenes 0…count-1, encoded where `folder` has not got them."""
    (folder / FOLDER).mkdir(exist_ok=True)
    shards = [
        _shard(vae, folder / FOLDER, start, min(start + _SHARD, count)) for start in range(0, count, _SHARD)
    ]
    tensors = {name: torch.cat([shard[name] for shard in shards]) for name in shards[0]}
    sample = tensors["means"][:2000].float()
    mean, std = sample.mean((0, 2, 3, 4)), sample.std((0, 2, 3, 4))
    vae.register_to_config(latents_mean=mean.tolist(), latents_std=std.tolist())
    return ClipLatents(**tensors, mean=mean[:, None, None, None], std=std[:, None, None, None])


@torch.no_grad()
def _shard(vae: AutoencoderKLWan, folder: Path, start: int, end: int) -> dict[str, Tensor]:
    path = folder / f"{start}-{end}.safetensors"
    if path.exists():
        found: dict[str, Tensor] = load_file(path)
        return found
    print(f"latents: {start} clips are encoded", flush=True)
    traits = torch.randn(end - start, NUM_TRAITS, generator=torch.Generator().manual_seed(start))
    means, things = [], []
    for first in range(start, end, _BATCH):
        numbers = range(first, min(first + _BATCH, end))
        clips = torch.stack([true_clip(scene_of(number), traits[number - start]) for number in numbers])
        with torch.autocast("cpu", torch.bfloat16):
            means.append(vae.encode(clips).latent_dist.mean.to(torch.bfloat16))
        things.append(shows_thing(clips))
    tensors = {"means": torch.cat(means), "traits": traits, "things": torch.cat(things)}
    partial = path.with_suffix(".partial")
    save_file(tensors, partial)
    partial.replace(path)
    return tensors


def true_clip(scene: ClipScene, traits: Tensor) -> Tensor:
    """Return the scene for these traits as a clip `(3, NUM_FRAMES, SIDE, SIDE)` in -1…1."""
    return render(choreograph(scene, traits, NUM_FRAMES), NUM_FRAMES, SIDE)


def shows_thing(clips: Tensor) -> Tensor:
    """Return which tokens `(batch, rows, columns)` differ from the background in any frame."""
    ground = clips.flatten(2).median(2).values[:, :, None, None, None]
    differs = (clips - ground).abs().amax((1, 2)) > 0.05
    return functional.max_pool2d(differs.float()[:, None], _TOKEN)[:, 0].to(torch.uint8)
