"""Decoder of `AutoencoderKL`, the image autoencoder of FLUX.1, SDXL and Stable Diffusion.

Rombach et al. 2022 (arXiv:2112.10752). The reference implementation is diffusers' `AutoencoderKL`: operations
keep its order, so that images are equal to the last bit, and parameters keep the names of its checkpoints.
Importing diffusers for this one class would take longer than to load a small model.
"""

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from diffuserve.models.autoencoder.blocks import (
    EPSILON,
    Features,
    MidBlock,
    Pixels,
    ResidualBlock,
    activated,
    conv,
    placements,
    without_padding_rows,
)
from diffuserve.models.autoencoder.config import AutoencoderConfig
from diffuserve.models.layers.strips.slabs import Slabs
from diffuserve.models.layers.strips.strips import ConvolvedRows, FeatureRows, Strips, UpsampledRows
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import load_weights

_OTHER_PREFIXES = ("encoder.", "quant_conv.", "bn.")


def load_decoder(config: AutoencoderConfig, files: list[Path], plan: LoadPlan) -> "ImageDecoder":
    """Load the decoder's part of a checkpoint of `AutoencoderKL`, channels-last."""
    with torch.device("meta"):
        decoder = ImageDecoder(config)
    load_weights(
        decoder,
        files,
        placements(decoder, files),
        plan,
        ignored_prefixes=_OTHER_PREFIXES,
        memory_format=torch.channels_last,
    )
    return decoder.eval()


class ImageDecoder(nn.Module):
    """Decodes latents to pixels of about -1…1."""

    def __init__(self, config: AutoencoderConfig) -> None:
        super().__init__()
        self.config = config
        channels, has_conv = config.latent_channels, config.use_post_quant_conv
        self.post_quant_conv = nn.Conv2d(channels, channels, 1) if has_conv else nn.Identity()
        self.decoder = _Decoder(config)

    def forward(self, latents: Features) -> Pixels:
        """Decode latents of one size whole."""
        pixels: Tensor = self.decoder(self.post_quant_conv(latents))
        return pixels

    def decode_in_strips(self, latents: Features, slabs: Slabs) -> Pixels:
        """Decode latents of one size in strips of rows, each rank those of its slab.

        All ranks must call it with the same latents; each returns all pixels.
        """
        pixels: Tensor = self.decoder.in_strips(self.post_quant_conv(latents), Strips(slabs))
        return slabs.gather_rows(pixels, latents.shape[2], self.config.scale)


class _Decoder(nn.Module):
    def __init__(self, config: AutoencoderConfig) -> None:
        super().__init__()
        groups = config.norm_num_groups
        widths = config.decoder_widths[::-1]
        self.conv_in = conv(config.latent_channels, widths[0])
        self.mid_block = MidBlock(widths[0], groups, config.mid_block_add_attention)
        self.up_blocks = nn.Sequential(
            *(
                _UpBlock(before, width, config.layers_per_block + 1, groups, is_last=index == len(widths) - 1)
                for index, (before, width) in enumerate(zip((widths[0], *widths), widths, strict=False))
            )
        )
        self.conv_norm_out = nn.GroupNorm(groups, widths[-1], eps=EPSILON)
        self.conv_out = conv(widths[-1], config.out_channels)

    def forward(self, latents: Features) -> Pixels:
        features = self.up_blocks(self.mid_block(self.conv_in(latents)))
        pixels: Tensor = self.conv_out(F.silu(self.conv_norm_out(features)))
        return pixels

    def in_strips(self, latents: Features, strips: Strips) -> Pixels:
        """Return the pixels of this rank's slab."""
        rows: FeatureRows = self.mid_block.in_strips(self.conv_in(latents), strips)
        for block in self.up_blocks:
            assert isinstance(block, _UpBlock)
            rows = block.in_strips(rows, strips)
        rows = activated(rows, self.conv_norm_out, strips)
        [pixels] = strips.store(ConvolvedRows(rows, without_padding_rows(self.conv_out)))
        return pixels.own


class _UpBlock(nn.Module):
    """Residual blocks, after which all but the last block double the height and width."""

    def __init__(self, width_before: int, width: int, num_layers: int, groups: int, is_last: bool) -> None:
        super().__init__()
        widths = (width_before, *[width] * (num_layers - 1))
        self.resnets = nn.Sequential(*(ResidualBlock(before, width, groups) for before in widths))
        self.upsamplers = nn.Sequential(*([] if is_last else [_Upsampler(width)]))

    def forward(self, features: Features) -> Float[Tensor, "batch channels2 height2 width2"]:
        features = self.upsamplers(self.resnets(features))
        return features

    def in_strips(self, rows: FeatureRows, strips: Strips) -> FeatureRows:
        """Return the block's output; where it doubles height and width, that is computed as it is read."""
        for resnet in self.resnets:
            assert isinstance(resnet, ResidualBlock)
            rows = resnet.in_strips(rows, strips)
        for upsampler in self.upsamplers:
            assert isinstance(upsampler, _Upsampler)
            rows = ConvolvedRows(UpsampledRows(rows), without_padding_rows(upsampler.conv))
        return rows


class _Upsampler(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = conv(width, width)

    def forward(self, features: Features) -> Float[Tensor, "batch channels height2 width2"]:
        if 2 * features.numel() > 2**31:  # the channels-last kernel counts elements in 32 bits
            features = features.contiguous()
        features = self.conv(F.interpolate(features, scale_factor=2.0, mode="nearest"))
        return features
