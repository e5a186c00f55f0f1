"""The transformer's forward pass for training: the reference's operations in half of its time.

`WanTransformer3DModel` makes a row of factors for each token where a clip's first frame has a timestep of its
own; here a clip has two rows. Weights are cast to bf16 once in a step, and what lies between the products is
fused by `torch.compile`.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from diffusers import WanTransformer3DModel
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

Clips = Float[Tensor, "clips channels frames rows columns"]
Rows = Float[Tensor, "clips 2 6 dim"]
States = Float[Tensor, "clips tokens dim"]
Rotation = tuple[Tensor, Tensor]
Layer = Any
"""A module of diffusers', whose parts have no types."""
Forward = Callable[[Clips, Float[Tensor, "clips"], Float[Tensor, "clips"], States], Clips]


def make_forward(denoiser: WanTransformer3DModel, is_compiled: bool) -> Forward:
    """Return `forward(clips, first, level, text)`: the predictions, in float32.

    `first` are the timesteps of the clips' first latent frames, `level` those of the others.
    """
    dtype = torch.bfloat16 if is_compiled else torch.float32

    def forward(clips: Tensor, first: Tensor, level: Tensor, text: Tensor) -> Tensor:
        embedder = denoiser.condition_embedder
        batch, _, frames, rows, columns = clips.shape
        in_first, in_all = rows * columns // 4, frames * rows * columns // 4
        cos, sin = _rotation(denoiser, clips)
        timesteps = torch.stack([first, level], 1).flatten()
        time = embedder.time_embedder(embedder.timesteps_proj(timesteps)).view(batch, 2, -1)
        factors = embedder.time_proj(F.silu(time)).view(batch, 2, 6, -1)
        words = embedder.text_embedder(text).to(dtype)

        def of_tokens(rows_of_clip: Tensor) -> Tensor:
            """Return the rows `(clips, 2, dim)` by token."""
            return torch.cat(
                [
                    rows_of_clip[:, :1].expand(-1, in_first, -1),
                    rows_of_clip[:, 1:].expand(-1, in_all - in_first, -1),
                ],
                1,
            )

        states = _linear(_patches(clips), denoiser.patch_embedding, dtype).float()
        for block in denoiser.blocks:
            shift, scale, gate, ff_shift, ff_scale, ff_gate = (
                of_tokens((block.scale_shift_table + factors)[:, :, index]) for index in range(6)
            )
            normed = (_norm(states) * (1 + scale) + shift).to(dtype)
            states = states + gate * _attend(block.attn1, normed, normed, (cos, sin))
            normed = _norm(states, block.norm2).to(dtype)
            states = states + _attend(block.attn2, normed, words, None)
            normed = (_norm(states) * (1 + ff_scale) + ff_shift).to(dtype)
            inner = F.gelu(_linear(normed, block.ffn.net[0].proj, dtype), approximate="tanh")
            states = states + ff_gate * _linear(inner, block.ffn.net[2], dtype)
        shift, scale = (of_tokens(denoiser.scale_shift_table[:, index] + time) for index in range(2))
        out = _linear((_norm(states) * (1 + scale) + shift).to(dtype), denoiser.proj_out, dtype)
        return _clips(out.float(), clips)

    return cast(Forward, torch.compile(forward)) if is_compiled else forward


def _linear(states: Tensor, layer: Layer, dtype: torch.dtype) -> Tensor:
    return F.linear(states.to(dtype), layer.weight.flatten(1).to(dtype), layer.bias.to(dtype))


def _norm(states: Tensor, layer: Layer = None) -> Tensor:
    weight, bias = (None, None) if layer is None else (layer.weight, layer.bias)
    return F.layer_norm(states, states.shape[-1:], weight, bias, 1e-6)


def _attend(layer: Layer, queries: Tensor, keys: Tensor, rotation: Rotation | None) -> Tensor:
    """Return attention's output in float32; the products in the dtype of `queries`."""
    dtype = queries.dtype
    q = _rms(_linear(queries, layer.to_q, dtype), layer.norm_q)
    k = _rms(_linear(keys, layer.to_k, dtype), layer.norm_k)
    v = _linear(keys, layer.to_v, dtype)
    q, k, v = (x.unflatten(2, (layer.heads, -1)) for x in (q, k, v))
    if rotation is not None:
        q, k = _rotate(q, *rotation), _rotate(k, *rotation)
    q, k, v = (x.to(dtype).transpose(1, 2).flatten(0, 1) for x in (q, k, v))
    scores = torch.bmm(q, k.transpose(1, 2)).float() * q.shape[-1] ** -0.5
    attended = torch.bmm(scores.softmax(-1).to(dtype), v)
    joined = attended.unflatten(0, (len(queries), -1)).transpose(1, 2).flatten(2)
    return _linear(joined, layer.to_out[0], dtype).float()


def _rms(states: Tensor, layer: Layer) -> Tensor:
    states = states.float()
    weighted: Tensor = states * torch.rsqrt(states.square().mean(-1, keepdim=True) + 1e-6) * layer.weight
    return weighted


def _rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    real, imaginary = states.unflatten(-1, (-1, 2)).unbind(-1)
    turned = (real * cos - imaginary * sin, real * sin + imaginary * cos)
    return torch.stack(turned, -1).flatten(-2)


def _rotation(denoiser: WanTransformer3DModel, clips: Tensor) -> Rotation:
    cos, sin = denoiser.rope(clips)
    return cos[..., 0::2].float(), sin[..., 1::2].float()


def _patches(clips: Tensor) -> Tensor:
    """Return `(clips, tokens, channels · 4)`, ordered as the weights of the reference's convolution."""
    batch, channels, frames, rows, columns = clips.shape
    cells = clips.view(batch, channels, frames, rows // 2, 2, columns // 2, 2)
    return cells.permute(0, 2, 3, 5, 1, 4, 6).flatten(4).flatten(1, 3)


def _clips(tokens: Tensor, like: Tensor) -> Tensor:
    batch, _, frames, rows, columns = like.shape
    cells = tokens.view(batch, frames, rows // 2, columns // 2, 2, 2, -1)
    return cells.permute(0, 6, 1, 2, 4, 3, 5).reshape(batch, -1, frames, rows, columns)
