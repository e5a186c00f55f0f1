"""The VAE: that of tiny-flux, taught real pictures, of which small cuts full of edges are shown."""

import random
from pathlib import Path

import torch
from diffusers import AutoencoderKL
from torch import Tensor, nn

from compose import paste
from diffuserve.models.folders.pretrained import load_module
from loop import Course, warm_then_cosine
from scenes import COLORS
from sprites import Sprites
from text_encoders import BUNDLED
from things import STYLES

NAME = "emoji_autoencoder"
_SIDE, _BATCH = 64, 12
_KL_WEIGHT = 1e-3
_EDGE_WEIGHT = 1.0
_RATE = 1e-3


def build() -> AutoencoderKL:
    """Return tiny-flux's VAE, whose latents then need no scale of their own."""
    vae: AutoencoderKL = load_module(AutoencoderKL, BUNDLED / "vae").float().train().requires_grad_(True)
    vae.register_to_config(scaling_factor=1.0, shift_factor=0.0)
    return vae


def train(folder: Path, num_steps: int, sprites: Sprites, device: torch.device) -> AutoencoderKL:
    """Train for `num_steps` in all, or go on from `folder`; return the VAE with averaged weights."""
    vae = build().to(device)
    optimizer = torch.optim.AdamW(vae.parameters(), lr=_RATE, betas=(0.9, 0.95), weight_decay=1e-3)
    modules: dict[str, nn.Module] = {"vae": vae}
    course = Course(NAME, modules, [optimizer], num_steps, warm_then_cosine, folder, 0.998)

    def loss(_step: int, chance: random.Random) -> tuple[Tensor, dict[str, float]]:
        images = torch.stack([crowd(chance, sprites, _SIDE) for _ in range(_BATCH)]).to(device)
        with torch.autocast(device.type, torch.bfloat16):
            posterior = vae.encode(images).latent_dist
            drawn = vae.decode(posterior.sample()).sample.float()
        mean, logvar = posterior.mean.float(), posterior.logvar.float()
        divergence = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).mean()
        error = drawn - images
        squares = error.square().mean()
        value = error.abs().mean() + 2 * squares + _EDGE_WEIGHT * _edges(error) + _KL_WEIGHT * divergence
        return value, {"dB": -10 * float(torch.log10(squares.detach() / 4)), "kl": float(divergence.detach())}

    course.run(loss)
    course.averaged()
    return vae


def _edges(error: Tensor) -> Tensor:
    """Return how much neighboring errors differ: what blurs an edge."""
    return error.diff(dim=2).abs().mean() + error.diff(dim=3).abs().mean()


def crowd(chance: random.Random, sprites: Sprites, side: int) -> Tensor:
    """Return `(3, side, side)` in -1…1: a few things of any size, some cut off by the edge."""
    red, green, blue = (
        min(max(channel + chance.uniform(-10, 10), 0), 255) / 255
        for channel in chance.choice(list(COLORS.values()))
    )
    image = torch.tensor([red, green, blue])[:, None, None].repeat(1, side, side)
    style = chance.choice(STYLES)
    for _ in range(chance.choice((1, 2, 3))):
        wide = round(chance.uniform(0.3, 1.25) * side)
        thing = chance.randrange(len(sprites.pixels[style]))
        left, top = (round(chance.uniform(-0.25, 1.0) * side - wide / 4) for _ in range(2))
        paste(image, sprites.sized(thing, style, wide), left, top)
    return image * 2 - 1
