"""Images as the denoiser sees them, made once: encoding costs more than a training step."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import AutoencoderKL
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional

from draw import draw
from layout import NUM_TRAITS, place
from scenes import Scene, draw_scene

SIDE = 128
"""The native size; its latents set the scale of all."""
OTHER_SIZES = ((96, 96), (192, 128), (128, 192), (192, 192), (256, 256))
"""Width and height of those that are trained beside it, so that any size between holds."""
_BATCH = 50
_TOKEN = 16  # pixels along a token's side


def scene_of(index: int) -> Scene:
    """Single objects a little more often: shapes are learned on them."""
    chance = random.Random(f"scene {index}")
    return draw_scene(chance, num_things=1 if chance.random() < 0.55 else 2)


@dataclass(frozen=True)
class Latents:
    """Latents of rendered scenes of one size.

    `means` `(n, 16, height/8, width/8)` unscaled, `traits` `(n, NUM_TRAITS)`, `things` `(n, tokens)`
    is 1 where a token shows anything of an object. `scene` says what the image of a number shows.
    """

    means: Tensor
    traits: Tensor
    things: Tensor
    shift: float
    scale: float
    scene: Callable[[int], Scene] = scene_of

    def scaled(self, indexes: Tensor) -> Tensor:
        """Return latents scaled to about unit variance, as in the pipeline."""
        return (self.means[indexes].float() - self.shift) * self.scale


def encode_all(vae: AutoencoderKL, folder: Path, count: int) -> list[Latents]:
    """`count` scenes in the native size first, then a tenth as many in each of the others."""
    native = encode(vae, folder, count, SIDE, SIDE)
    shift, scale = float(native["means"].float().mean()), 1 / float(native["means"].float().std())
    others = [encode(vae, folder, count // 10, *size) for size in OTHER_SIZES]
    return [
        Latents(tensors["means"], tensors["traits"], tensors["things"], shift, scale, scene_of)
        for tensors in (native, *others)
    ]


@torch.no_grad()
def encode(
    vae: AutoencoderKL,
    folder: Path,
    count: int,
    width: int,
    height: int,
    scene: Callable[[int], Scene] = scene_of,
) -> dict[str, Tensor]:
    """Return the latents of scenes 0…count-1, stored in `folder` atomically."""
    path = folder / f"latents-{width}x{height}-{count}.safetensors"
    if not path.exists():
        seed = width * height
        traits = torch.randn(count, NUM_TRAITS, generator=torch.Generator().manual_seed(seed))
        means = torch.empty(count, 16, height // 8, width // 8, dtype=torch.bfloat16)
        things = torch.empty(count, height // _TOKEN * (width // _TOKEN), dtype=torch.uint8)
        for start in range(0, count, _BATCH):
            images = torch.stack(
                [
                    draw_scaled(scene(index), traits[index], width, height)
                    for index in range(start, min(start + _BATCH, count))
                ]
            )
            with torch.autocast("cpu", torch.bfloat16):
                means[start : start + _BATCH] = vae.encode(images).latent_dist.mean
            things[start : start + _BATCH] = shows_thing(images)
            if start % 5000 == 0:
                print(f"latents {width}x{height} {start}/{count}", flush=True)
        save_file({"means": means, "traits": traits, "things": things}, path)
    found: dict[str, Tensor] = load_file(path)
    return found


def draw_scaled(scene: Scene, traits: Tensor, width: int, height: int) -> Tensor:
    """A scene as an image `(3, height, width)`."""
    shorter = min(width, height)
    return draw(place(scene, traits, width / shorter, height / shorter), width, height)


def shows_thing(images: Tensor) -> Tensor:
    """Which tokens `(batch, tokens)` differ anywhere from the background, which fills every corner."""
    differs = (images - images[:, :, :1, :1]).abs().amax(1, keepdim=True) > 0.05
    return functional.max_pool2d(differs.float(), _TOKEN).flatten(1).to(torch.uint8)
