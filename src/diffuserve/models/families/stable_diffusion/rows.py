"""Rows of the UNet's input: one for each image of a request, two with guidance by two passes.

Requests of one size share a batch of rows, even with different steps, prompts, guidance and samplers.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from diffuserve.models.families.stable_diffusion.config import SIZES, UNetConfig
from diffuserve.models.families.stable_diffusion.image_prompts.attention import ImageTokens
from diffuserve.models.families.stable_diffusion.text import StableDiffusionConditioning
from diffuserve.models.families.stable_diffusion.unet_input import UNetInput
from diffuserve.models.layers.adapted.adapters import RowAdapters
from diffuserve.models.pipelines.base import Conditioning, DenoiseInput
from diffuserve.parallel.ranks import SequenceRanks

_AESTHETIC_SCORES = (
    2.5,
    6.0,
)  # the reference's default aesthetic scores of the negative and the positive pass


def make_rows(requests: Sequence[DenoiseInput], config: UNetConfig) -> UNetInput:
    """Return the rows of requests of one size, in their order: of each first those steered away from."""
    parts = [_rows_of(request, config) for request in requests]
    return UNetInput(
        latents=torch.cat([part.latents for part in parts]),
        timesteps=torch.cat([part.timesteps for part in parts]),
        text=torch.cat([part.text for part in parts]),
        pooled=_cat([part.pooled for part in parts]),
        sizes=_cat([part.sizes for part in parts]),
        guidance=_cat([part.guidance for part in parts]),
        adapters=RowAdapters.of([len(part) for part in parts], [request.adapters for request in requests]),
        images=tuple(tokens for request in requests for tokens in _images(request)),
    )


def num_rows(request: DenoiseInput) -> int:
    """Return the rows of a request: one for each image and pass."""
    return len(request.latents) * len(_passes(request))


def split_rows(predicted: Tensor, requests: Sequence[DenoiseInput]) -> list[Tensor]:
    """Return each request's prediction, guided: u + g·(c - u) (arXiv:2207.12598, equation 6)."""
    predictions = []
    for request, rows in zip(requests, predicted.split([num_rows(each) for each in requests]), strict=True):
        *away, toward = rows.chunk(len(_passes(request)))
        scale = request.params.guidance_scale or 0.0
        predictions.append(away[0] + scale * (toward - away[0]) if away else toward)
    return predictions


def part_of(rows: UNetInput, ranks: SequenceRanks) -> UNetInput:
    """Return a rank's rows, equally many on each; past the end the last one is repeated."""
    share = -(-len(rows) // ranks.size)
    first = ranks.index * share
    return rows.take(range(first, first + share))


def _rows_of(request: DenoiseInput, config: UNetConfig) -> UNetInput:
    passes = _passes(request)
    count, dtype, device = len(request.latents), request.latents.dtype, request.latents.device
    rows = len(passes) * count
    return UNetInput(
        latents=_inputs(request, config).repeat(len(passes), 1, 1, 1),
        timesteps=torch.full((rows,), request.timestep, device=device),
        text=torch.cat([states.expand(count, -1, -1) for states, _ in passes]),
        pooled=_cat([None if pooled is None else pooled.expand(count, -1) for _, pooled in passes]),
        sizes=_sizes(request, config).to(device, dtype).repeat_interleave(count, 0) if config.is_xl else None,
        guidance=_guidance(request, config.time_cond_proj_dim, rows),
    )


def _passes(request: DenoiseInput) -> list[tuple[Tensor, Tensor | None]]:
    """Return the conditioning of each pass: what a guided request is steered away from, then its prompt's."""
    found = _conditioning(request.conditioning)
    prompt = (found.states, found.pooled)
    if found.negative_states is None:
        return [prompt]
    return [(found.negative_states, found.negative_pooled), prompt]


def _images(request: DenoiseInput) -> list[ImageTokens | None]:
    """Return the tokens of the image prompts of each row of a request."""
    images, count = _conditioning(request.conditioning).prompt_images, len(request.latents)
    weight = request.params.image_prompt_scale
    if images is None or not weight:
        return [None for _ in range(len(_passes(request)) * count)]
    by_pass = [images.negative, images.states][-len(_passes(request)) :]
    return [ImageTokens(states, weight) for states in by_pass for _ in range(count)]


def _inputs(request: DenoiseInput, config: UNetConfig) -> Tensor:
    """Return latents as the model reads them, with what else it reads as further channels."""
    scaled = request.latents * request.input_scale
    return torch.cat([scaled, *request.guides], dim=1) if config.reads_mask else scaled


def _sizes(request: DenoiseInput, config: UNetConfig) -> Float[Tensor, "passes numbers"]:
    """Return the original's height and width, the crop's corner, and the target's height and width per pass.

    Refiners read an aesthetic score instead of the target's height and width.
    """
    assert request.params.height is not None
    assert request.params.width is not None
    size = (float(request.params.height), float(request.params.width))
    passes = _passes(request)
    pooled = passes[-1][1]
    assert pooled is not None
    if config.num_sizes(pooled.shape[-1]) == SIZES:
        return torch.tensor([[*size, 0.0, 0.0, *size]] * len(passes))
    return torch.tensor([[*size, 0.0, 0.0, score] for score in _AESTHETIC_SCORES[-len(passes) :]])


def _guidance(request: DenoiseInput, width: int | None, rows: int) -> Float[Tensor, "rows width"] | None:
    """Return the embedding of the scale that distilled models read: sines first, then cosines."""
    if width is None:
        return None
    half = width // 2
    exponents = torch.arange(half, dtype=torch.float32) * -(torch.log(torch.tensor(10_000.0)) / (half - 1))
    angles = torch.tensor((request.params.guidance_scale or 0.0) - 1) * 1000.0 * exponents.exp()
    embedded = torch.cat([angles.sin(), angles.cos(), torch.zeros(width % 2)])
    return embedded.to(request.latents.device, request.latents.dtype).expand(rows, -1)


def _cat(parts: Sequence[Tensor | None]) -> Tensor | None:
    present = [part for part in parts if part is not None]
    return torch.cat(present) if present else None


def _conditioning(conditioning: Conditioning) -> StableDiffusionConditioning:
    assert isinstance(conditioning, StableDiffusionConditioning)
    return conditioning
