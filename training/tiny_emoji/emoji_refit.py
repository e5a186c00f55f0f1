"""When the text encoders have learned on, the denoiser's two layers that read them are refitted.

Both are linear: the layer for T5's tokens, and the first for CLIP's pooled vector. Each is solved anew, by
least squares over captions, to make of the later encoders' words what it made of the earlier ones'. All else
that the denoiser learned stays.
"""

import random

import torch
from diffusers import FluxTransformer2DModel
from torch import Tensor, nn

from emoji_text import Lesson
from pictures import Range, caption, draw_picture
from text_encoders import TextEncoders

_NUM_CAPTIONS, _AT_ONCE, _PAIR_SHARE = 6_000, 200, 0.3
_RIDGE = 1e-4
"""In units of the mean square of what goes in: keeps directions that hardly vary from large weights."""


@torch.no_grad()
def refit(
    denoiser: FluxTransformer2DModel, earlier: TextEncoders, later: TextEncoders, lesson: Lesson
) -> tuple[float, float]:
    """Change the two layers in place; return for each the share of its output's variance that is lost."""
    chance, drawn = random.Random("refit"), Range(len(lesson.things), _PAIR_SHARE)
    captions = [caption(draw_picture(chance, drawn), lesson.things, chance) for _ in range(_NUM_CAPTIONS)]
    pooled_before, tokens_before = read(earlier, captions, lesson)
    pooled, tokens = read(later, captions, lesson)
    return (
        solve(denoiser.time_text_embed.text_embedder.linear_1, pooled, pooled_before),
        solve(denoiser.context_embedder, tokens, tokens_before),
    )


def read(encoders: TextEncoders, captions: list[str], lesson: Lesson) -> tuple[Tensor, Tensor]:
    """Return the pooled vectors and all tokens of captions, a row for each."""
    parts = [
        encoders(*lesson.tokenize(captions[start : start + _AT_ONCE]))
        for start in range(0, len(captions), _AT_ONCE)
    ]
    pooled, tokens = zip(*parts, strict=True)
    return torch.cat(pooled), torch.cat(tokens).flatten(0, 1)


def solve(layer: nn.Linear, given: Tensor, given_before: Tensor) -> float:
    """Have the layer make of `given` what it made of `given_before`; return the share of variance lost."""
    wanted, given = layer(given_before).double(), given.double()
    means = given.mean(0), wanted.mean(0)
    given, wanted = given - means[0], wanted - means[1]
    ridge = _RIDGE * len(given) * given.square().mean() * torch.eye(given.shape[1], dtype=given.dtype)
    weight = torch.linalg.solve(given.T @ given + ridge, given.T @ wanted)
    layer.weight.copy_(weight.T)
    layer.bias.copy_(means[1] - means[0] @ weight)
    return float((given @ weight - wanted).square().mean() / wanted.square().mean())
