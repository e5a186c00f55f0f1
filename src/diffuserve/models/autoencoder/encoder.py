"""Encoder of `AutoencoderKL`: from pixels to a distribution of latents.

The other half of `autoencoder_kl`, loaded for models that take images.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from diffuserve.domain.sendable import Sendable
from diffuserve.models.autoencoder.blocks import (
    EPSILON,
    Features,
    MidBlock,
    Pixels,
    ResidualBlock,
    conv,
    placements,
)
from diffuserve.models.autoencoder.config import AutoencoderConfig
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import load_weights

_OTHER_PREFIXES = ("decoder.", "post_quant_conv.", "bn.")
_LOG_VARIANCE = (-30.0, 20.0)  # smallest and largest


@dataclass(frozen=True)
class LatentDistribution(Sendable):
    """The latents of encoded images: independent normal values, before any scale or shift of the checkpoint.

    Reference: diffusers' `DiagonalGaussianDistribution`.
    """

    mean: Features
    std: Features

    @classmethod
    def of_moments(cls, moments: Features) -> "LatentDistribution":
        """Read an encoder's output: the means, then the logarithms of variances, which are bounded."""
        mean, log_variance = moments.chunk(2, dim=1)
        return cls(mean, torch.exp(0.5 * log_variance.clamp(*_LOG_VARIANCE)))

    @property
    def nbytes(self) -> int:
        return self.mean.nbytes + self.std.nbytes

    def mode(self) -> Features:
        """Return the likeliest latents."""
        return self.mean

    def sample(self, generator: torch.Generator) -> Features:
        """Draw latents; noise is drawn on the CPU, in their dtype."""
        noise = torch.randn(self.mean.shape, generator=generator, dtype=self.mean.dtype)
        return self.mean + self.std * noise.to(self.mean.device)


def load_encoder(config: AutoencoderConfig, files: list[Path], plan: LoadPlan) -> "ImageEncoder":
    """Load the encoder's part of a checkpoint of `AutoencoderKL`, channels-last."""
    with torch.device("meta"):
        encoder = ImageEncoder(config)
    load_weights(
        encoder,
        files,
        placements(encoder, files),
        plan,
        ignored_prefixes=_OTHER_PREFIXES,
        memory_format=torch.channels_last,
    )
    return encoder.eval()


class ImageEncoder(nn.Module):
    """Encodes pixels in -1…1, whose sides are multiples of the config's `scale`."""

    def __init__(self, config: AutoencoderConfig) -> None:
        super().__init__()
        self.config = config
        channels = 2 * config.latent_channels
        self.encoder = _Encoder(config)
        self.quant_conv = nn.Conv2d(channels, channels, 1) if config.use_quant_conv else nn.Identity()

    def forward(self, pixels: Pixels) -> LatentDistribution:
        """Encode images of one size."""
        pixels = pixels.to(memory_format=torch.channels_last)
        return LatentDistribution.of_moments(self.quant_conv(self.encoder(pixels)))


class _Encoder(nn.Module):
    def __init__(self, config: AutoencoderConfig) -> None:
        super().__init__()
        groups, widths = config.norm_num_groups, config.block_out_channels
        self.conv_in = conv(config.in_channels, widths[0])
        self.down_blocks = nn.Sequential(
            *(
                _DownBlock(before, width, config.layers_per_block, groups, is_last=index == len(widths) - 1)
                for index, (before, width) in enumerate(zip((widths[0], *widths), widths, strict=False))
            )
        )
        self.mid_block = MidBlock(widths[-1], groups, config.mid_block_add_attention)
        self.conv_norm_out = nn.GroupNorm(groups, widths[-1], eps=EPSILON)
        self.conv_out = conv(widths[-1], 2 * config.latent_channels)

    def forward(self, pixels: Pixels) -> Features:
        features = self.mid_block(self.down_blocks(self.conv_in(pixels)))
        moments: Tensor = self.conv_out(F.silu(self.conv_norm_out(features)))
        return moments


class _DownBlock(nn.Module):
    """Residual blocks, after which all but the last block halve the height and width."""

    def __init__(self, width_before: int, width: int, num_layers: int, groups: int, is_last: bool) -> None:
        super().__init__()
        widths = (width_before, *[width] * (num_layers - 1))
        self.resnets = nn.Sequential(*(ResidualBlock(before, width, groups) for before in widths))
        self.downsamplers = nn.Sequential(*([] if is_last else [_Downsampler(width)]))

    def forward(self, features: Features) -> Float[Tensor, "batch channels2 height2 width2"]:
        features = self.downsamplers(self.resnets(features))
        return features


class _Downsampler(nn.Module):
    """A strided convolution that is padded at the right and at the bottom alone."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, stride=2)

    def forward(self, features: Features) -> Float[Tensor, "batch channels height2 width2"]:
        features = self.conv(F.pad(features, (0, 1, 0, 1)))
        return features
