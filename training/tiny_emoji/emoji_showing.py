"""Contact sheets: what the denoiser draws so far, and below it what it should have drawn."""

import random
from collections.abc import Sequence
from pathlib import Path

import torch
from einops import rearrange
from PIL import Image
from torch import Tensor

from diffuserve.models.families.packed_images.latents import unpack_latents
from emoji_denoiser import Predict
from emoji_walks import Batch, Studio
from pictures import Picture, Range, caption, draw_picture

_COLUMNS = 8


@torch.no_grad()
def draw(predict: Predict, batch: Batch, size: tuple[int, int], num_steps: int) -> Tensor:
    """Return the latents `(count, tokens, 64)` that so many steps lead to."""
    noisy = batch.noise
    for left in range(num_steps, 0, -1):
        level = torch.full((len(noisy),), left / num_steps, device=noisy.device)
        noisy = noisy - predict(noisy, level.bfloat16().float(), batch, size) / num_steps
    return noisy


def held_out(drawn: Range, count: int) -> list[Picture]:
    """Return pictures that are never trained on, always the same."""
    chance = random.Random("shown")
    return [draw_picture(chance, drawn, held_out=True) for _ in range(count)]


def show(
    path: Path, studio: Studio, predict: Predict, pictures: Sequence[Picture], size: tuple[int, int]
) -> None:
    """Write a sheet of pictures at four steps, each row above its originals, and their captions beside it."""
    torch.manual_seed(0)
    batch = studio.make(pictures, size, random.Random(0))
    drawn, true = (
        studio.show(unpack_latents(tokens, size[1] // 16)).cpu()
        for tokens in (draw(predict, batch, size, 4), batch.clean)
    )
    rows = [
        row
        for start in range(0, len(pictures), _COLUMNS)
        for row in (drawn[start : start + _COLUMNS], true[start : start + _COLUMNS])
    ]
    sheet = rearrange(torch.stack(rows), "rows columns c h w -> (rows h) (columns w) c")
    Image.fromarray(((sheet + 1) * 127.5).round().to(torch.uint8).numpy()).save(path)
    chance = random.Random(0)
    said = [caption(picture, studio.lesson.things, chance) for picture in pictures]
    path.with_suffix(".txt").write_text("\n".join(said) + "\n")
