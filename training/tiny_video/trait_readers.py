"""Heads that read what the starting noise settles: a beginning that training alone takes very long to find.

Each trait is the mean of a noise channel over a whole clip (`choreography`). It is 27 times smaller than the
values themselves, and a network that starts at random neither averages so evenly nor enlarges so much: after
4,600 steps places had no effect on what was drawn. So the first head of the first block begins as this
average: its queries are zero, so that it attends to all tokens alike; its values are the channels; its output
fills one dimension for each trait, open at the first timestep alone, since later means are those of the clip
that comes into being. All of it goes on to be trained.
"""

import torch
from diffusers import WanTransformer3DModel
from torch import Tensor
from torch.nn import functional as F

from choreography import NUM_TRAITS

_FIRST_TIMESTEP = 999
_CELLS = 4  # of a token, in each channel
_NUM_CELLS = 5 * 12 * 12  # that a channel's mean is over, in clips of 17 frames of 96×96 pixels
_SHARE = 1.0  # of a trait of 1 beside the root mean square of the other dimensions
_GATE = 2  # row of the factors that scale what attention adds
_SPREAD = 40.0  # timesteps within which the dimensions open
_NUM_SAMPLES = 4_096
_RIDGE = 1e-6


@torch.no_grad()
def read_traits(denoiser: WanTransformer3DModel) -> None:
    """Have the first head of the first block read the traits, whatever the other weights are."""
    generator = torch.Generator().manual_seed(11)
    channels = denoiser.config.in_channels
    tokens = torch.randn(_NUM_SAMPLES, channels * _CELLS, generator=generator)
    dims = torch.arange(NUM_TRAITS)
    denoiser.patch_embedding.weight[dims] = 0.0  # these dimensions hold traits and nothing else at first
    denoiser.patch_embedding.bias[dims] = 0.0
    states = F.linear(tokens, denoiser.patch_embedding.weight.flatten(1), denoiser.patch_embedding.bias)
    _attend_evenly(denoiser)
    _read_channels(denoiser, tokens, states)
    _open_first(denoiser, dims)
    _write(denoiser, dims, _SHARE * float(states.square().mean().sqrt()))


def _attend_evenly(denoiser: WanTransformer3DModel) -> None:
    attention = denoiser.blocks[0].attn1
    attention.norm_q.weight[: _head_dim(denoiser)] = 0.0


def _read_channels(denoiser: WanTransformer3DModel, tokens: Tensor, states: Tensor) -> None:
    """Fit the head's values to the mean of a token's cells in each channel that has a trait."""
    shift, scale = _factors(denoiser, torch.tensor([float(_FIRST_TIMESTEP)]))[0, :2]
    normed = F.layer_norm(states, states.shape[-1:], eps=1e-6) * (1 + scale) + shift
    with_one = torch.cat([normed, torch.ones(len(normed), 1)], 1)
    means = tokens.view(len(tokens), -1, _CELLS).mean(2)[:, :NUM_TRAITS]
    fitted = _solve(with_one, means)
    values = denoiser.blocks[0].attn1.to_v
    values.weight[:NUM_TRAITS], values.bias[:NUM_TRAITS] = fitted[:-1].T, fitted[-1]


def _open_first(denoiser: WanTransformer3DModel, dims: Tensor) -> None:
    """Fit the gates of these dimensions: open at the first timestep, closed at those that follow."""
    timesteps = torch.linspace(0, _FIRST_TIMESTEP, 1_000)
    wanted = torch.exp(-(((timesteps - _FIRST_TIMESTEP) / _SPREAD) ** 2))
    embedder = denoiser.condition_embedder
    time = F.silu(embedder.time_embedder(embedder.timesteps_proj(timesteps)))
    with_one = torch.cat([time, torch.ones(len(time), 1)], 1)
    fitted = _solve(with_one, wanted[:, None])[:, 0]
    rows = _GATE * time.shape[1] + dims
    embedder.time_proj.weight[rows], embedder.time_proj.bias[rows] = fitted[:-1], fitted[-1]
    denoiser.blocks[0].scale_shift_table[:, _GATE, dims] = 0.0


def _write(denoiser: WanTransformer3DModel, dims: Tensor, size: float) -> None:
    """Fill a dimension with each trait, and nothing else with this head."""
    out = denoiser.blocks[0].attn1.to_out[0]
    out.weight[:, : _head_dim(denoiser)] = 0.0
    out.weight[dims] = 0.0
    out.bias[dims] = 0.0
    out.weight[dims, torch.arange(NUM_TRAITS)] = size * _NUM_CELLS**0.5


def _solve(inputs: Tensor, outputs: Tensor) -> Tensor:
    """Return the weights of the least squares, kept small where the inputs do not tell them."""
    inputs, outputs = inputs.double(), outputs.double()
    squares = inputs.T @ inputs
    ridge = _RIDGE * squares.diagonal().mean() * torch.eye(len(squares), dtype=torch.double)
    solved: Tensor = torch.linalg.solve(squares + ridge, inputs.T @ outputs)
    return solved.float()


def _factors(denoiser: WanTransformer3DModel, timesteps: Tensor) -> Tensor:
    """Return the first block's factors `(timesteps, 6, dim)`."""
    embedder = denoiser.condition_embedder
    time = embedder.time_embedder(embedder.timesteps_proj(timesteps))
    rows: Tensor = embedder.time_proj(F.silu(time)).unflatten(1, (6, -1))
    factors: Tensor = rows + denoiser.blocks[0].scale_shift_table
    return factors


def _head_dim(denoiser: WanTransformer3DModel) -> int:
    return int(denoiser.config.attention_head_dim)
