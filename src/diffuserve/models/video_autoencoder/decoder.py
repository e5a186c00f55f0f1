"""Decoder of Wan's video autoencoder, one latent frame at a time."""

from functools import partial
from pathlib import Path

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from diffuserve.models.layers.strips.slabs import Slabs
from diffuserve.models.layers.strips.strips import (
    ConvolvedRows,
    FeatureRows,
    PointRows,
    StoredRows,
    Strips,
    UpsampledRows,
    empty_rows,
)
from diffuserve.models.video_autoencoder.blocks import (
    CausalConv,
    Features,
    FrameCache,
    PointConv,
    RmsNorm,
    VideoMidBlock,
    VideoResidualBlock,
    activated,
    load_part,
)
from diffuserve.models.video_autoencoder.config import VideoVaeConfig
from diffuserve.models.weights.load_plan import LoadPlan

_ENCODER_PREFIXES = ("encoder.", "quant_conv.")
Pixels = Float[Tensor, "_frames _pixel_rows _pixel_columns 3"]


def load_decoder(config: VideoVaeConfig, files: list[Path], plan: LoadPlan) -> "VideoDecoder":
    """Load the decoder's part of a checkpoint of `AutoencoderKLWan`."""
    return load_part(VideoDecoder, config, files, plan, others=_ENCODER_PREFIXES)


class VideoDecoder(nn.Module):
    """Decodes latent frames to pixels in -1…1, rows of red, green, blue."""

    def __init__(self, config: VideoVaeConfig) -> None:
        super().__init__()
        self.config = config
        self.post_quant_conv = PointConv(config.z_dim, config.z_dim)
        self.decoder = _Decoder(config)

    def forward(self, latents: Features, cache: FrameCache | None) -> Pixels:
        """Decode the next latent frame of the clip of `cache`: the first to one frame, later ones to four.

        Without a cache each latent frame is the first of a clip of its own.
        """
        return self._pixels(self.decoder(self.post_quant_conv(latents), cache))

    def decode_in_strips(self, latents: Features, cache: FrameCache | None, slabs: Slabs) -> Pixels:
        """Decode the same in strips of rows, each rank those of its slab.

        All ranks must call it with the same latents; each returns all pixels.
        """
        patches: Tensor = self.decoder.in_strips(self.post_quant_conv(latents), Strips(slabs), cache)
        scale = self.config.scale // self.config.patch
        return self._pixels(slabs.gather_rows(patches, latents.shape[2], scale))

    def _pixels(self, patches: Features) -> Pixels:
        patch = self.config.patch
        pixels = rearrange(patches, "t (c pw ph) h w -> t (h ph) (w pw) c", pw=patch, ph=patch)
        return pixels.clamp_(-1, 1)


class _Decoder(nn.Module):
    def __init__(self, config: VideoVaeConfig) -> None:
        super().__init__()
        widths = config.decoder_widths
        self.conv_in = CausalConv(config.z_dim, widths[0])
        self.mid_block = VideoMidBlock(widths[0])
        block = _ResidualUpBlock if config.is_residual else _UpBlock
        self.up_blocks = nn.ModuleList(
            block(config, stage, widths[stage], widths[stage + 1]) for stage in range(len(config.dim_mult))
        )
        self.norm_out = RmsNorm(widths[-1])
        self.conv_out = CausalConv(widths[-1], config.out_channels)

    def forward(self, frames: Features, cache: FrameCache | None) -> Features:
        is_first = cache is None or self.conv_in not in cache
        frames = self.mid_block(self.conv_in(frames, cache), cache)
        for block in self.up_blocks:
            frames = block(frames, cache, is_first)
        return self.conv_out(activated(self.norm_out, frames), cache)

    def in_strips(self, frames: Features, strips: Strips, cache: FrameCache | None) -> Features:
        """Return the patches of this rank's slab."""
        is_first = cache is None or self.conv_in not in cache
        rows = self.mid_block.in_strips(self.conv_in(frames, cache), strips, cache)
        for block in self.up_blocks:
            assert isinstance(block, _UpBlock | _ResidualUpBlock)
            rows = block.in_strips(rows, strips, cache, is_first)
        normalized = PointRows(rows, partial(activated, self.norm_out))
        [patches] = strips.store(self.conv_out.in_strips(normalized, cache))
        return patches.own


class _UpBlock(nn.Module):
    """Residual blocks, after which all but the last block double height and width, and some the frames."""

    def __init__(self, config: VideoVaeConfig, stage: int, width_before: int, width: int) -> None:
        super().__init__()
        before = width_before // 2 if stage else width_before
        widths = (before, *[width] * config.num_res_blocks)
        self.resnets = nn.ModuleList(VideoResidualBlock(width_in, width) for width_in in widths)
        doubles = config.temporal_upsample[stage : stage + 1]
        self.upsamplers = nn.ModuleList(_Upsampler(width, width // 2, is_temporal) for is_temporal in doubles)

    def forward(self, frames: Features, cache: FrameCache | None, is_first: bool) -> Features:
        for resnet in self.resnets:
            frames = resnet(frames, cache)
        for upsampler in self.upsamplers:
            frames = upsampler(frames, cache, is_first)
        return frames

    def in_strips(
        self, rows: StoredRows, strips: Strips, cache: FrameCache | None, is_first: bool
    ) -> StoredRows:
        """Return the block's output, and give up its input."""
        rows = _through(self.resnets, rows, strips, cache)
        for upsampler in self.upsamplers:
            assert isinstance(upsampler, _Upsampler)
            [rows] = strips.store(upsampler.in_strips(rows, cache, is_first))
        return rows


class _ResidualUpBlock(nn.Module):
    """The block of Wan 2.2: copies of its input features are added to its output."""

    def __init__(self, config: VideoVaeConfig, stage: int, width_before: int, width: int) -> None:
        super().__init__()
        self._width = width
        widths = (width_before, *[width] * config.num_res_blocks)
        self.resnets = nn.ModuleList(VideoResidualBlock(before, width) for before in widths)
        self._doubles = config.temporal_upsample[stage : stage + 1]
        if self._doubles:
            self.upsampler = _Upsampler(width, width, self._doubles[0])

    def forward(self, frames: Features, cache: FrameCache | None, is_first: bool) -> Features:
        before = frames
        for resnet in self.resnets:
            frames = resnet(frames, cache)
        if self._doubles:
            frames = self.upsampler(frames, cache, is_first)
            frames += self._copied(before, is_first)
        return frames

    def in_strips(
        self, rows: StoredRows, strips: Strips, cache: FrameCache | None, is_first: bool
    ) -> StoredRows:
        """Return the block's output."""
        if not self._doubles:
            return _through(self.resnets, rows, strips, cache)
        [inside] = strips.store(PointRows(rows, nn.Identity()))  # copies are made of what `rows` are now
        inside = _through(self.resnets, inside, strips, cache)
        [inside] = strips.store(self.upsampler.in_strips(inside, cache, is_first))
        return strips.add(inside, UpsampledRows(rows, partial(self._copied, is_first=is_first)))

    def _copied(self, frames: Features, is_first: bool) -> Features:
        times = 1 + self._doubles[0]
        copies = _copies(frames, self._width, times)
        return copies[times - 1 :: times] if is_first else copies


def _through(
    resnets: nn.ModuleList, rows: StoredRows, strips: Strips, cache: FrameCache | None
) -> StoredRows:
    """Return what residual blocks make of rows, one after the other."""
    for resnet in resnets:
        assert isinstance(resnet, VideoResidualBlock)
        rows = resnet.in_strips(rows, strips, cache)
    return rows


def _copies(frames: Features, width: int, times: int) -> Features:
    """Return features of twice the height and width, and `times` the frames, as copies of the given ones.

    If there are fewer output channels, those of one group are spread over space and time.
    """
    repeats = width * times * 4 // frames.shape[1]
    copies = frames.permute(0, 2, 3, 1).repeat_interleave(repeats, dim=3)
    spread = rearrange(copies, "t h w (c ft fh fw) -> (t ft) (h fh) (w fw) c", ft=times, fh=2, fw=2)
    return spread.permute(0, 3, 1, 2)


class _Upsampler(nn.Module):
    """Doubles height and width, and the frames if `is_temporal`, except the first frame of a clip."""

    def __init__(self, width_before: int, width: int, is_temporal: bool) -> None:
        super().__init__()
        self.resample = nn.Sequential(nn.Identity(), nn.Conv2d(width_before, width, 3, padding=1))
        self._is_temporal = is_temporal
        if is_temporal:
            self.time_conv = CausalConv(width_before, 2 * width_before, kernel=1)

    def forward(self, frames: Features, cache: FrameCache | None, is_first: bool) -> Features:
        if self._is_temporal and cache is not None:
            frames = self._double_frames(frames, cache, is_first)
        return self.resample(F.interpolate(frames, scale_factor=2.0, mode="nearest-exact"))

    def _double_frames(self, frames: Features, cache: FrameCache, is_first: bool) -> Features:
        if is_first:  # later frames do not see the first one's
            cache[self.time_conv] = torch.zeros_like(torch.cat([frames, frames]))
            return frames
        return _in_turn(self.time_conv(frames, cache))

    def in_strips(self, rows: StoredRows, cache: FrameCache | None, is_first: bool) -> FeatureRows:
        """Return rows that are computed as they are read."""
        doubled: FeatureRows = rows
        if self._is_temporal and cache is not None:
            if is_first:
                cache[self.time_conv] = torch.zeros_like(empty_rows(rows.own[:1], rows.num_rows + 2)).repeat(
                    2, 1, 1, 1
                )
            else:
                doubled = PointRows(self.time_conv.in_strips(rows, cache), _in_turn)
        conv = self.resample[1]
        return ConvolvedRows(
            UpsampledRows(doubled), partial(F.conv2d, weight=conv.weight, bias=conv.bias, padding=(0, 1))
        )


def _in_turn(pairs: Features) -> Features:
    """Return the frames of pairs that stand side by side in channels."""
    return rearrange(pairs, "t (pair c) h w -> (t pair) c h w", pair=2)
