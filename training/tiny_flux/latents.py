"""Pictures as the denoiser sees them, made once: encoding costs more than a training step."""

import random
from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import AutoencoderKL
from safetensors.torch import load_file, save_file
from torch import Tensor

from draw import draw
from layout import NUM_TRAITS, place
from scenes import Scene, draw_scene

SIDE = 128
_BATCH = 50


@dataclass
class Latents:
    """Of scenes drawn from their numbers: `means` `(n, 16, 16, 16)` unscaled, `traits` `(n, NUM_TRAITS)`."""

    means: Tensor
    traits: Tensor
    shift: float
    scale: float

    def scene(self, index: int) -> Scene:
        return scene_of(index)

    def scaled(self, indexes: Tensor) -> Tensor:
        """Of about unit variance, as the pipeline has them."""
        return (self.means[indexes].float() - self.shift) * self.scale


def scene_of(index: int) -> Scene:
    """Single objects a little more often: shapes are learned on them."""
    chance = random.Random(f"scene {index}")
    return draw_scene(chance, num_things=1 if chance.random() < 0.55 else 2)


@torch.no_grad()
def encode(vae: AutoencoderKL, folder: Path, count: int) -> Latents:
    """Of the scenes 0…count-1; kept in `folder`, whole or not at all."""
    path = folder / f"latents-{count}.safetensors"
    if not path.exists():
        traits = torch.randn(count, NUM_TRAITS, generator=torch.Generator().manual_seed(2))
        means = torch.empty(count, 16, SIDE // 8, SIDE // 8, dtype=torch.bfloat16)
        for start in range(0, count, _BATCH):
            pictures = torch.stack(
                [
                    draw(place(scene_of(index), traits[index]), SIDE, SIDE)
                    for index in range(start, min(start + _BATCH, count))
                ]
            )
            with torch.autocast("cpu", torch.bfloat16):
                means[start : start + _BATCH] = vae.encode(pictures).latent_dist.mean
            if start % 5000 == 0:
                print(f"latents {start}/{count}", flush=True)
        save_file({"means": means, "traits": traits}, path)
    found = load_file(path)
    values = found["means"].float()
    return Latents(found["means"], found["traits"], float(values.mean()), 1 / float(values.std()))
