"""Encoder of Wan's video autoencoder: the first frame of a clip by itself, then four at a time."""

from pathlib import Path

import torch
from einops import rearrange
from torch import Tensor, nn
from torch.nn import functional as F

from diffuserve.models.video_autoencoder.blocks import (
    CausalConv,
    Features,
    FrameCache,
    PointConv,
    RmsNorm,
    VideoMidBlock,
    VideoResidualBlock,
    load_part,
)
from diffuserve.models.video_autoencoder.config import VideoVaeConfig
from diffuserve.models.weights.load_plan import LoadPlan

_DECODER_PREFIXES = ("decoder.", "post_quant_conv.")


def load_encoder(config: VideoVaeConfig, files: list[Path], plan: LoadPlan) -> "VideoEncoder":
    """Load the encoder's part of a checkpoint of `AutoencoderKLWan`."""
    return load_part(VideoEncoder, config, files, plan, others=_DECODER_PREFIXES)


class VideoEncoder(nn.Module):
    """Encodes pixels in -1…1, whose sides are multiples of the config's `scale`."""

    def __init__(self, config: VideoVaeConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = _Encoder(config)
        self.quant_conv = PointConv(2 * config.z_dim, 2 * config.z_dim)

    def forward(self, pixels: Features, cache: FrameCache | None) -> Features:
        """Return the most likely latents of the next frames of the clip of `cache`.

        These are one frame, then four at a time. Without a cache each is the first of a clip of its own.
        """
        return self.moments(pixels, cache).chunk(2, dim=1)[0]

    def moments(self, pixels: Features, cache: FrameCache | None) -> Features:
        """Return the means of the latents and the logarithms of their variances, for the same frames."""
        patch = self.config.patch
        patches = rearrange(pixels, "t c (h ph) (w pw) -> t (c pw ph) h w", ph=patch, pw=patch)
        patches = patches.contiguous(memory_format=torch.channels_last)
        moments: Tensor = self.quant_conv(self.encoder(patches, cache))
        return moments


class _Encoder(nn.Module):
    def __init__(self, config: VideoVaeConfig) -> None:
        super().__init__()
        widths = config.encoder_widths
        self.conv_in = CausalConv(config.in_channels, widths[0])
        self.down_blocks = nn.ModuleList(_residual_blocks(config) if config.is_residual else _blocks(config))
        self.mid_block = VideoMidBlock(widths[-1])
        self.norm_out = RmsNorm(widths[-1])
        self.conv_out = CausalConv(widths[-1], 2 * config.z_dim)

    def forward(self, frames: Features, cache: FrameCache | None) -> Features:
        frames = self.conv_in(frames, cache)
        for block in self.down_blocks:
            frames = block(frames, cache)
        frames = self.mid_block(frames, cache)
        return self.conv_out(F.silu(self.norm_out(frames), inplace=True), cache)


def _blocks(config: VideoVaeConfig) -> list[nn.Module]:
    """Return the residual blocks of all stages, with what halves the sides between stages."""
    widths, blocks = config.encoder_widths, list[nn.Module]()
    for stage in range(len(config.dim_mult)):
        before, width = widths[stage : stage + 2]
        blocks += [
            VideoResidualBlock(each, width) for each in (before, *[width] * (config.num_res_blocks - 1))
        ]
        blocks += [_Downsampler(width, halves) for halves in config.temperal_downsample[stage : stage + 1]]
    return blocks


def _residual_blocks(config: VideoVaeConfig) -> list[nn.Module]:
    widths = config.encoder_widths
    return [
        _ResidualDownBlock(config, stage, *widths[stage : stage + 2]) for stage in range(len(config.dim_mult))
    ]


class _ResidualDownBlock(nn.Module):
    """The stage of Wan 2.2: averages of its input features are added to its output."""

    def __init__(self, config: VideoVaeConfig, stage: int, width_before: int, width: int) -> None:
        super().__init__()
        self._width = width
        widths = (width_before, *[width] * (config.num_res_blocks - 1))
        self.resnets = nn.ModuleList(VideoResidualBlock(before, width) for before in widths)
        halves = config.temperal_downsample[stage : stage + 1]
        self._space, self._time = (2, 1 + halves[0]) if halves else (1, 1)
        self.downsampler = _Downsampler(width, halves[0]) if halves else None

    def forward(self, frames: Features, cache: FrameCache | None) -> Features:
        before = frames
        for resnet in self.resnets:
            frames = resnet(frames, cache)
        if self.downsampler is not None:
            frames = self.downsampler(frames, cache)
        is_single = cache is None
        return frames + _averages(before, self._width, self._space, self._time, is_single)


def _averages(frames: Features, width: int, space: int, time: int, is_single: bool) -> Features:
    """Return features with `space` times fewer rows and columns and `time` times fewer frames.

    Before the first frame of a clip there are zeros; `is_single`: each frame is the first of its own clip.
    """
    if is_single:
        frames = torch.stack([torch.zeros_like(frames)] * (time - 1) + [frames], dim=1).flatten(0, 1)
    elif frames.shape[0] % time:
        frames = torch.cat([torch.zeros_like(frames[:1]), frames])
    folded = rearrange(frames, "(t ft) c (h fh) (w fw) -> t (c ft fh fw) h w", ft=time, fh=space, fw=space)
    return folded.unflatten(1, (width, -1)).mean(dim=2)


class _Downsampler(nn.Module):
    """Halves height and width, padded only at the right and bottom, and the frames if `is_temporal`."""

    def __init__(self, width: int, is_temporal: bool) -> None:
        super().__init__()
        self.resample = nn.Sequential(nn.Identity(), nn.Conv2d(width, width, 3, stride=2))
        self._is_temporal = is_temporal
        if is_temporal:
            self.time_conv = CausalConv(width, width, kernel=1, stride=2)

    def forward(self, frames: Features, cache: FrameCache | None) -> Features:
        frames = self.resample(F.pad(frames, (0, 1, 0, 1)))
        if not self._is_temporal or cache is None:
            return frames
        before = cache.get(self)
        cache[self] = frames[-1:].clone()
        return frames if before is None else self.time_conv.over_time(torch.cat([before, frames]))
