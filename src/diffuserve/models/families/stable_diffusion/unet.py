"""The UNet of Stable Diffusion 1, 2 and XL (Rombach et al. 2022, arXiv:2112.10752; Podell et al. 2023,
arXiv:2307.01952).

The reference implementation is diffusers' `UNet2DConditionModel`, whose operations keep their order here, and
whose parameters their names. Convolutions and group norms work on whole images, so requests of one size share
a batch; rows do not depend on one another.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from diffuserve.models.families.stable_diffusion.attention import Attention, Context, Tokens
from diffuserve.models.families.stable_diffusion.config import UNET_LAYERS, UNetConfig
from diffuserve.models.families.stable_diffusion.image_prompts.attention import ImageAttention
from diffuserve.models.families.stable_diffusion.unet_input import Features, UNetInput
from diffuserve.models.layers.adapted.adapted_convolution import AdaptedConv2d
from diffuserve.models.layers.adapted.adapters import RowAdapters
from diffuserve.models.layers.linear import Linear, PositionsLinear, name_layers
from diffuserve.models.layers.quantized.quantized_linear import quantize_layers
from diffuserve.models.layers.timestep import timestep_embedding
from diffuserve.models.offload.components import Component, Ring
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import Placement, load_weights, num_parameters

_TRANSFORMER_EPSILON = 1e-6  # for the group norm before a transformer
_FEED_FORWARD_RATIO = 4


def load_unet(
    config: UNetConfig,
    files: list[Path],
    plan: LoadPlan,
) -> "UNet":
    """Load a checkpoint of `UNet2DConditionModel`, channels-last."""
    with torch.device("meta"):
        unet = UNet(config)
        quantize_layers(unet, UNET_LAYERS, plan.kept_in)
    name_layers(unet)
    load_weights(unet, files, unet.placements(), plan, memory_format=torch.channels_last)
    return unet.eval()


class UNetHalf(nn.Module):
    """A UNet's way down to its middle, of which ControlNets are copies."""

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        self.config = config
        widths = config.block_out_channels
        self.conv_in = AdaptedConv2d(config.in_channels, widths[0], 3, padding=1)
        self.time_embedding = _TimestepEmbedding(widths[0], config.time_dim, config.time_cond_proj_dim)
        if config.addition_embed_type is not None:
            assert config.projection_class_embeddings_input_dim is not None
            added = config.projection_class_embeddings_input_dim
            self.add_embedding = _TimestepEmbedding(added, config.time_dim)
        self.down_blocks = nn.ModuleList(_DownBlock(config, level) for level in range(config.num_levels))
        self.mid_block = _MidBlock(config)

    def placements(self) -> dict[str, Placement]:
        """Return the place of each checkpoint tensor, which is under its own name."""
        return {name: Placement(name) for name, _ in self.named_parameters()}

    def descend(
        self, batch: UNetInput, added: Features | None = None
    ) -> tuple[Float[Tensor, "rows deepest _ _"], Float[Tensor, "rows time"], list[Tensor]]:
        """Return the features of the middle, the embedded time, and the skips; `added` is to the first."""
        time, adapters, context = self._embed_time(batch), batch.adapters, batch.context
        features = self.conv_in(batch.latents.to(memory_format=torch.channels_last), adapters)
        features = features if added is None else features + added
        skips: list[Tensor] = [features]
        for block in self.down_blocks:
            features = block(features, time, context, skips, adapters)
        return self.mid_block(features, time, context, adapters), time, skips

    def _embed_time(self, batch: UNetInput) -> Float[Tensor, "rows time"]:
        dtype = batch.latents.dtype
        time = timestep_embedding(batch.timesteps, self.config.block_out_channels[0]).to(dtype)
        embedded: Tensor = self.time_embedding(time, batch.adapters, batch.guidance)
        if self.config.addition_embed_type is None:
            return embedded
        assert batch.pooled is not None
        assert batch.sizes is not None
        assert self.config.addition_time_embed_dim is not None
        sizes = timestep_embedding(batch.sizes.flatten(), self.config.addition_time_embed_dim)
        added = torch.cat([batch.pooled, sizes.view(len(batch.sizes), -1).to(dtype)], dim=-1)
        return embedded + self.add_embedding(added, batch.adapters)


class UNet(UNetHalf):
    """Predicts noise, velocity or clean latents, as the checkpoint was trained to."""

    def __init__(self, config: UNetConfig) -> None:
        super().__init__(config)
        widths = config.block_out_channels
        self.up_blocks = nn.ModuleList(
            _UpBlock(config, level) for level in reversed(range(config.num_levels))
        )
        self.conv_norm_out = nn.GroupNorm(config.norm_num_groups, widths[0], config.norm_eps)
        self.conv_out = AdaptedConv2d(widths[0], config.out_channels, 3, padding=1)

    def attend_images(self, layers: Iterable[tuple[str, ImageAttention]]) -> None:
        """Have cross-attentions, by their names, attend to image prompts too."""
        for name, layer in layers:
            attention = self.get_submodule(name)
            assert isinstance(attention, Attention)
            attention.images = layer

    def forward(self, batch: UNetInput) -> Features:
        """Return the prediction for each row, of `out_channels` channels."""
        adapters, context = batch.adapters, batch.context
        features, time, skips = self.descend(batch)
        features = _controlled(batch, features, skips)
        for block in self.up_blocks:
            features = block(features, time, context, skips, adapters)
        return self.conv_out(F.silu(self.conv_norm_out(features)), adapters)

    @property
    def component(self) -> Component:
        """Return how its weights may be kept on the host."""
        kinds = (_TransformerBlock, _ResidualBlock)
        rings = [[layer for layer in self.modules() if isinstance(layer, kind)] for kind in kinds]
        return Component(self, [Ring(layers) for layers in rings if layers], is_denoiser=True)

    @property
    def num_layers(self) -> int:
        """The layers that a pass goes through, each by operations of its own."""
        kinds = (Linear, nn.Conv2d, nn.GroupNorm, nn.LayerNorm)
        return sum(isinstance(layer, kinds) for layer in self.modules())

    @property
    def cell_operations(self) -> float:
        """Return the operations for each latent cell, without attention: two a parameter that sees it."""
        from_top, last = range(self.config.num_levels), self.config.num_levels - 1
        blocks = [*zip(from_top, self.down_blocks, strict=True), (last, self.mid_block)]
        blocks += zip(reversed(from_top), self.up_blocks, strict=True)
        return sum(2 * num_parameters(block) / 4**level for level, block in blocks)


def _controlled(batch: UNetInput, features: Tensor, skips: list[Tensor]) -> Tensor:
    """Return the features of the middle with what ControlNets add to them, and add to the skips."""
    for control in batch.controls:
        *of_skips, (rows, change) = control.changes(batch)
        features = features.index_add(0, rows, change)
        for place, (rows, change) in enumerate(of_skips):
            skips[place] = skips[place].index_add(0, rows, change)
    return features


class _TimestepEmbedding(nn.Module):
    def __init__(self, width_before: int, width: int, guidance_width: int | None = None) -> None:
        super().__init__()
        self.linear_1, self.linear_2 = PositionsLinear(width_before, width), PositionsLinear(width, width)
        self.cond_proj = None
        if guidance_width is not None:
            self.cond_proj = PositionsLinear(guidance_width, width_before, bias=False)

    def forward(self, values: Tensor, adapters: RowAdapters | None, guidance: Tensor | None = None) -> Tensor:
        if guidance is not None and self.cond_proj is not None:
            values = values + self.cond_proj(guidance, adapters)
        embedded: Tensor = self.linear_2(F.silu(self.linear_1(values, adapters)), adapters)
        return embedded


class _DownBlock(nn.Module):
    """Residual blocks, each with attention where the level has it; all but the last level halve the size."""

    def __init__(self, config: UNetConfig, level: int) -> None:
        super().__init__()
        width, count = config.block_out_channels[level], config.layers[level]
        width_before = config.block_out_channels[max(level - 1, 0)]
        has_attention = config.down_block_types[level] == "CrossAttnDownBlock2D"
        self.resnets = nn.ModuleList(
            _ResidualBlock(config, before, width) for before in (width_before, *[width] * (count - 1))
        )
        self.attentions = _attentions(config, level, count if has_attention else 0)
        is_last = level == config.num_levels - 1
        self.downsamplers = nn.ModuleList([] if is_last else [_Downsampler(width)])

    def forward(
        self,
        features: Tensor,
        time: Tensor,
        context: Context,
        skips: list[Tensor],
        adapters: RowAdapters | None,
    ) -> Tensor:
        """Return the features of the next level; append those of every stage to `skips`."""
        for resnet, attention in _pairs(self.resnets, self.attentions):
            features = attention(resnet(features, time, adapters), context, adapters)
            skips.append(features)
        for downsampler in self.downsamplers:
            features = downsampler(features, adapters)
            skips.append(features)
        return features


class _MidBlock(nn.Module):
    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        width = config.block_out_channels[-1]
        self.resnets = nn.ModuleList(_ResidualBlock(config, width, width) for _ in range(2))
        self.attentions = _attentions(config, config.num_levels - 1, 1)

    def forward(
        self, features: Tensor, time: Tensor, context: Context, adapters: RowAdapters | None
    ) -> Tensor:
        first, second = self.resnets
        features = self.attentions[0](first(features, time, adapters), context, adapters)
        features = second(features, time, adapters)
        return features


class _UpBlock(nn.Module):
    """Residual blocks over features and skips; all but the first level return to the size of the next one."""

    def __init__(self, config: UNetConfig, level: int) -> None:
        super().__init__()
        widths, count = config.block_out_channels, config.layers[level] + 1
        width, width_below = widths[level], widths[min(level + 1, config.num_levels - 1)]
        before = (width_below, *[width] * (count - 1))
        skipped = (*[width] * (count - 1), widths[max(level - 1, 0)])
        place = config.num_levels - 1 - level
        has_attention = config.up_block_types[place] == "CrossAttnUpBlock2D"
        self.resnets = nn.ModuleList(
            _ResidualBlock(config, sum(pair), width) for pair in zip(before, skipped, strict=True)
        )
        self.attentions = _attentions(config, level, count if has_attention else 0)
        self.upsamplers = nn.ModuleList([_Upsampler(width)] if level > 0 else [])

    def forward(
        self,
        features: Tensor,
        time: Tensor,
        context: Context,
        skips: list[Tensor],
        adapters: RowAdapters | None,
    ) -> Tensor:
        """Return the features of the level above; take as many of `skips` as there are residual blocks."""
        for resnet, attention in _pairs(self.resnets, self.attentions):
            features = torch.cat([features, skips.pop()], dim=1)
            features = attention(resnet(features, time, adapters), context, adapters)
        for upsampler in self.upsamplers:
            features = upsampler(features, skips[-1].shape[-2:], adapters)
        return features


class _Downsampler(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = AdaptedConv2d(width, width, 3, stride=2, padding=1)

    def forward(self, features: Tensor, adapters: RowAdapters | None) -> Tensor:
        halved: Tensor = self.conv(features, adapters)
        return halved


class _Upsampler(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = AdaptedConv2d(width, width, 3, padding=1)

    def forward(self, features: Tensor, size: Sequence[int], adapters: RowAdapters | None) -> Tensor:
        """Return features of `size`, which is not twice the present one where a side was odd."""
        grown: Tensor = self.conv(F.interpolate(features, size=list(size), mode="nearest"), adapters)
        return grown


class _ResidualBlock(nn.Module):
    def __init__(self, config: UNetConfig, width_before: int, width: int) -> None:
        super().__init__()
        groups, epsilon = config.norm_num_groups, config.norm_eps
        self.norm1 = nn.GroupNorm(groups, width_before, epsilon)
        self.conv1 = AdaptedConv2d(width_before, width, 3, padding=1)
        self.time_emb_proj = PositionsLinear(config.time_dim, width)
        self.norm2 = nn.GroupNorm(groups, width, epsilon)
        self.conv2 = AdaptedConv2d(width, width, 3, padding=1)
        self.conv_shortcut = AdaptedConv2d(width_before, width, 1) if width_before != width else None

    def forward(self, features: Tensor, time: Tensor, adapters: RowAdapters | None) -> Tensor:
        hidden = self.conv1(F.silu(self.norm1(features)), adapters)
        hidden = hidden + self.time_emb_proj(F.silu(time), adapters)[:, :, None, None]
        hidden = self.conv2(F.silu(self.norm2(hidden)), adapters)
        kept = features if self.conv_shortcut is None else self.conv_shortcut(features, adapters)
        summed: Tensor = kept + hidden
        return summed


class _SpatialTransformer(nn.Module):
    """Transformer blocks over the positions of an image, which also attend to the prompt's tokens."""

    def __init__(self, config: UNetConfig, level: int) -> None:
        super().__init__()
        width, heads = config.block_out_channels[level], config.heads[level]
        self._is_linear = config.use_linear_projection
        self.norm = nn.GroupNorm(config.norm_num_groups, width, _TRANSFORMER_EPSILON)
        self.proj_in, self.proj_out = (
            PositionsLinear(width, width) if self._is_linear else AdaptedConv2d(width, width, 1)
            for _ in range(2)
        )
        self.transformer_blocks = nn.ModuleList(
            _TransformerBlock(width, heads, config.cross_attention_dim)
            for _ in range(config.transformer_layers[level])
        )

    def forward(self, features: Features, context: Context, adapters: RowAdapters | None) -> Features:
        height, width = features.shape[-2:]
        tokens = self._project(self.norm(features), adapters)
        for block in self.transformer_blocks:
            tokens = block(tokens, context, adapters)
        if self._is_linear:
            tokens = self.proj_out(tokens, adapters)
        hidden = tokens.transpose(1, 2).unflatten(2, (height, width))
        return (hidden if self._is_linear else self.proj_out(hidden, adapters)) + features

    def _project(self, features: Features, adapters: RowAdapters | None) -> Tokens:
        if self._is_linear:
            return self.proj_in(features.flatten(2).transpose(1, 2), adapters)
        return self.proj_in(features, adapters).flatten(2).transpose(1, 2)


class _TransformerBlock(nn.Module):
    def __init__(self, width: int, heads: int, text_width: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.attn1 = Attention(width, width, heads)
        self.attn2 = Attention(width, text_width, heads)
        self.ff = _FeedForward(width)

    def forward(self, tokens: Tokens, context: Context, adapters: RowAdapters | None) -> Tokens:
        normed = self.norm1(tokens)
        tokens = tokens + self.attn1(normed, normed, adapters)
        tokens = tokens + self.attn2(self.norm2(tokens), context.text, adapters, context.images)
        tokens = tokens + self.ff(self.norm3(tokens), adapters)
        return tokens


class _FeedForward(nn.Module):
    """A feed-forward layer gated by GELU (Shazeer 2020, arXiv:2002.05202)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = _FEED_FORWARD_RATIO * width
        self.net = nn.ModuleList([_GatedGelu(width, inner), nn.Identity(), PositionsLinear(inner, width)])

    def forward(self, tokens: Tokens, adapters: RowAdapters | None) -> Tokens:
        gated, _, projection = self.net
        return projection(gated(tokens, adapters), adapters)


class _GatedGelu(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.proj = PositionsLinear(width, 2 * inner)

    def forward(self, tokens: Tokens, adapters: RowAdapters | None) -> Float[Tensor, "rows positions inner"]:
        hidden, gate = self.proj(tokens, adapters).chunk(2, dim=-1)
        return hidden * F.gelu(gate)


class _NoAttention(nn.Module):
    def forward(self, features: Features, context: Context, adapters: RowAdapters | None) -> Features:
        return features


def _attentions(config: UNetConfig, level: int, count: int) -> nn.ModuleList:
    return nn.ModuleList(_SpatialTransformer(config, level) for _ in range(count))


def _pairs(resnets: nn.ModuleList, attentions: nn.ModuleList) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Yield each residual block with its attention, which changes nothing where the level has none."""
    return zip(resnets, attentions or [_NoAttention()] * len(resnets), strict=True)
