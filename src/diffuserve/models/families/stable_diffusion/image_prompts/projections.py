"""Projections of an image's embedding to tokens that stand beside a prompt's.

The reference implementations are diffusers' `ImageProjection` and `IPAdapterPlusImageProjection`; parameters
are named as in the official files.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from diffuserve.models.families.stable_diffusion.image_prompts.ip_adapter import (
    ATTENTION,
    HEAD_DIM,
    PROJECTION,
    IpAdapter,
    IpAdapterShape,
    ResamplerShape,
)
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import Placement, load_weights

Latents = Float[Tensor, "images tokens width"]
TextTokens = Float[Tensor, "images tokens text_dim"]


def load_projection(adapter: IpAdapter, plan: LoadPlan) -> "Projection | Resampler":
    """Load the projection of an IP-Adapter."""
    shape = adapter.shape
    with torch.device("meta"):
        module = Projection(shape) if shape.resampler is None else Resampler(shape, shape.resampler)
    placements = {f"{PROJECTION}{name}": Placement(name) for name, _ in module.named_parameters()}
    load_weights(module, [adapter.file], placements, plan, ignored_prefixes=(ATTENTION,))
    return module.eval()


class Projection(nn.Module):
    """Makes tokens of the single embedding of an image."""

    def __init__(self, shape: IpAdapterShape) -> None:
        super().__init__()
        self._tokens = shape.tokens
        self.proj = nn.Linear(shape.image_dim, shape.tokens * shape.text_dim)
        self.norm = nn.LayerNorm(shape.text_dim)

    def forward(
        self, embedding: Float[Tensor, "images image_dim"]
    ) -> Float[Tensor, "images tokens text_dim"]:
        return self.norm(self.proj(embedding).unflatten(-1, (self._tokens, -1)))


class Resampler(nn.Module):
    """Makes tokens of the tokens of an image: learned queries read them (Perceiver, arXiv:2103.03206)."""

    def __init__(self, shape: IpAdapterShape, own: ResamplerShape) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.empty(1, shape.tokens, own.width), requires_grad=False)
        self.proj_in = nn.Linear(shape.image_dim, own.width)
        self.proj_out = nn.Linear(own.width, shape.text_dim)
        self.norm_out = nn.LayerNorm(shape.text_dim)
        self.layers = nn.ModuleList(_ResamplerLayer(own) for _ in range(own.layers))

    def forward(self, states: Float[Tensor, "images patches image_dim"]) -> TextTokens:
        image, latents = self.proj_in(states), self.latents.expand(len(states), -1, -1)
        for layer in self.layers:
            latents = layer(image, latents)
        return self.norm_out(self.proj_out(latents))


class _ResamplerLayer(nn.ModuleList):
    def __init__(self, own: ResamplerShape) -> None:
        super().__init__([_LatentAttention(own), _feed_forward(own)])

    def forward(self, image: Float[Tensor, "images patches width"], latents: Latents) -> Latents:
        attention, feed_forward = self
        latents = attention(image, latents) + latents
        latents = feed_forward(latents) + latents
        return latents


class _LatentAttention(nn.Module):
    """Latents read an image's tokens, and one another."""

    def __init__(self, own: ResamplerShape) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(own.width), nn.LayerNorm(own.width)
        self.to_q = nn.Linear(own.width, own.inner, bias=False)
        self.to_kv = nn.Linear(own.width, 2 * own.inner, bias=False)
        self.to_out = nn.Linear(own.inner, own.width, bias=False)

    def forward(self, image: Float[Tensor, "images patches width"], latents: Latents) -> Latents:
        normed = self.norm2(latents)
        key, value = self.to_kv(torch.cat([self.norm1(image), normed], dim=1)).chunk(2, dim=-1)
        query, key, value = (
            states.unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2) for states in (self.to_q(normed), key, value)
        )
        attended = F.scaled_dot_product_attention(query, key, value)
        return self.to_out(attended.transpose(1, 2).flatten(2))


def _feed_forward(own: ResamplerShape) -> nn.Sequential:
    return nn.Sequential(
        nn.LayerNorm(own.width),
        nn.Linear(own.width, own.hidden, bias=False),
        nn.GELU(),
        nn.Linear(own.hidden, own.width, bias=False),
    )
