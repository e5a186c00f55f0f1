"""The VAE: small images full of edges, since flat color is learned at once."""

import random
from pathlib import Path

import torch
from diffusers import AutoencoderKL
from torch import Tensor

from draw import draw
from layout import Layout, Placed
from loop import Course, warm_then_cosine
from scenes import COLORS, SHAPES

_SIDE, _BATCH = 64, 16
_WHOLE_SIDE, _WHOLE_BATCH, _WHOLE_FROM = 128, 6, 0.85  # at last whole images
_KL_WEIGHT = 5e-4


def build() -> AutoencoderKL:
    torch.manual_seed(0)
    return AutoencoderKL(
        block_out_channels=(16, 32, 64, 96),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        latent_channels=16,
        layers_per_block=1,
        norm_num_groups=8,
        sample_size=128,
        mid_block_add_attention=False,
        use_quant_conv=False,
        use_post_quant_conv=False,
        force_upcast=False,
        scaling_factor=1.0,
        shift_factor=0.0,
    )


def train(folder: Path, num_steps: int) -> AutoencoderKL:
    vae = build()
    optimizer = torch.optim.AdamW(vae.parameters(), lr=2e-3, betas=(0.9, 0.95), weight_decay=1e-3)
    course = Course("autoencoder", {"vae": vae}, [optimizer], num_steps, warm_then_cosine, folder)

    def loss(step: int, chance: random.Random) -> tuple[Tensor, dict[str, float]]:
        is_whole = step / num_steps > _WHOLE_FROM
        side, batch = (_WHOLE_SIDE, _WHOLE_BATCH) if is_whole else (_SIDE, _BATCH)
        images = torch.stack([draw(crowd(chance, side), side, side) for _ in range(batch)])
        with torch.autocast("cpu", torch.bfloat16):
            posterior = vae.encode(images).latent_dist
            drawn = vae.decode(posterior.sample()).sample.float()
        mean, logvar = posterior.mean.float(), posterior.logvar.float()
        divergence = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).mean()
        error = drawn - images
        squares = error.square().mean()
        value = error.abs().mean() + 2 * squares + _KL_WEIGHT * divergence
        return value, {"dB": -10 * float(torch.log10(squares / 4)), "kl": float(divergence)}

    course.run(loss)
    course.averaged()
    return vae


def crowd(chance: random.Random, side: int) -> Layout:
    """A few objects of any size, some cut off by the edge; radii in pixels as in whole images."""
    pixels = 128 / side
    things = [
        Placed(
            shape=chance.choice(SHAPES),
            x=chance.uniform(0.0, 1.0),
            y=chance.uniform(0.0, 1.0),
            radius=chance.uniform(0.08, 0.3) * pixels,
            rgb=_any_color(chance),
        )
        for _ in range(chance.choice((1, 2, 2, 3)))
    ]
    return Layout(tuple(things), _any_color(chance))


def _any_color(chance: random.Random) -> tuple[float, float, float]:
    shift = chance.uniform(-16, 16)
    red, green, blue = (
        min(max(channel + shift, 0.0), 255.0) for channel in chance.choice(list(COLORS.values()))
    )
    return red, green, blue
