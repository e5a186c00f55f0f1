"""Operations and memory of a decode, computed from an autoencoder's config. Pure, without torch.

They are those of our decoder, which skips products with the zeros before a clip.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from diffuserve.models.layers.strips.strip_sizes import needs_strips, strip_bytes
from diffuserve.models.video_autoencoder.config import MAX_STACKED, TAPS, TEMPORAL_SCALE, VideoVaeConfig

_LEVEL_BYTES = 16  # per pixel and channel, for converting the output to 8 bits


@dataclass(frozen=True)
class _Conv:
    """A convolution with `taps` frames and `area` pixels, for each latent frame after the first.

    It runs for `frames` frames of `cells` positions per latent cell. `is_first`: it also runs for the first
    latent frame of a clip.
    """

    width_before: int
    width: int
    area: int
    taps: int
    cells: int
    frames: int
    is_first: bool = True

    def operations(self, latent_cells: int) -> int:
        weights = self.width_before * self.width * self.area * self.taps
        return 2 * weights * self.cells * self.frames * latent_cells

    def first_operations(self, latent_cells: int) -> int:
        return self.operations(latent_cells) // (self.taps * self.frames) if self.is_first else 0

    @property
    def cached(self) -> int:
        """Scalars kept from chunk to chunk, per latent cell."""
        return 0 if self.taps == 1 else 2 * self.width_before * self.cells

    @property
    def working(self) -> int:
        """Scalars per latent cell while it runs: input, its copy with two more frames, and output."""
        seen = 0 if self.taps == 1 else self.frames + 2 * (TAPS - 1)
        return ((self.frames + seen) * self.width_before + self.frames * self.width) * self.cells

    @property
    def stacked(self) -> int:
        """Scalars of the stacked frames, per latent cell, if all are stacked at once."""
        return 0 if self.taps == 1 else TAPS * self.frames * self.width_before * self.cells


@dataclass(frozen=True)
class _Moment:
    """A convolution, and the scalars per latent cell that are held beside it."""

    conv: _Conv
    beside: int

    def scalars(self, latent_cells: int) -> int:
        one_frame = self.conv.stacked // self.conv.frames * latent_cells
        stacked = min(self.conv.stacked * latent_cells, max(MAX_STACKED, one_frame))
        return (self.conv.working + self.beside) * latent_cells + stacked


def decode_operations(config: VideoVaeConfig, width: int, height: int, num_frames: int) -> int:
    """Return the floating-point operations of decoding a clip; a multiply-add counts as two."""
    cells = _latent_cells(config, width, height)
    convs = [moment.conv for moment in _moments(config)]
    attention = 4 * cells * cells * config.decoder_widths[0]
    first = sum(conv.first_operations(cells) for conv in convs) + attention
    later = sum(conv.operations(cells) for conv in convs) + attention
    return first + (config.latent_frames(num_frames) - 1) * later


def cache_bytes(config: VideoVaeConfig, width: int, height: int, item_bytes: int = 4) -> int:
    """Return the bytes that a clip keeps from chunk to chunk."""
    scalars = sum(moment.conv.cached for moment in _moments(config))
    return scalars * _latent_cells(config, width, height) * item_bytes


def chunk_bytes(config: VideoVaeConfig, width: int, height: int, item_bytes: int = 4) -> int:
    """Return the peak bytes of decoding a chunk, whole or in strips, beside the cache."""
    cells = _latent_cells(config, width, height)
    if needs_strips(width * height):
        maps = _map_scalars(config, is_clip=True) * cells
        features = maps * item_bytes + strip_bytes(maps, item_bytes)
    else:
        features = max(moment.scalars(cells) for moment in _moments(config)) * item_bytes
    return max(features, TEMPORAL_SCALE * 3 * width * height * _LEVEL_BYTES)


def decode_bytes(config: VideoVaeConfig, width: int, height: int, item_bytes: int = 4) -> int:
    """Return the peak bytes of decoding a clip of any length: of one chunk and the cache."""
    return chunk_bytes(config, width, height, item_bytes) + cache_bytes(config, width, height, item_bytes)


def image_bytes(config: VideoVaeConfig, num_pixels: int, item_bytes: int = 4) -> int:
    """Return the peak bytes of decoding one image, a clip's first frame, whole or in strips.

    Whole it is that of a norm: the stage's input, the block's and what that has convolved are kept, and the
    norm makes two copies in float32.
    """
    cells = num_pixels // config.scale**2
    if needs_strips(num_pixels):
        maps = _map_scalars(config, is_clip=False) * cells
        return maps * item_bytes + strip_bytes(maps, item_bytes)
    widest = max(features * 4**stage for stage, features in enumerate(config.decoder_widths[1:]))
    return widest * cells * (3 * item_bytes + 2 * 4)


def _map_scalars(config: VideoVaeConfig, is_clip: bool) -> int:
    """Return the scalars per latent cell of the maps that are kept while frames are decoded in strips.

    These are a stage's input, what a block has convolved and what that is added to, and of a clip the last
    two frames that a convolution has seen, before and after.
    """
    most, cells, frames = 0, 1, 1
    for stage, width in enumerate(config.decoder_widths[1:]):
        before = config.decoder_widths[stage] // (2 if stage and not config.is_residual else 1)
        doubles = config.temporal_upsample[stage : stage + 1]
        held, features = before * cells * frames, width * cells * frames
        held *= 2 if config.is_residual and doubles else 1  # its copies are added later
        cached = 2 * max(before, width) * cells if is_clip else 0
        most = max(most, held + (features if before == width else 2 * features) + cached)
        for is_temporal in doubles:
            cells, frames = 4 * cells, frames * (1 + (is_temporal and is_clip))
            output = (width if config.is_residual else width // 2) * cells * frames
            most = max(most, held + features + output)
    return most


def _latent_cells(config: VideoVaeConfig, width: int, height: int) -> int:
    return (width // config.scale) * (height // config.scale)


def _moments(config: VideoVaeConfig) -> Iterator[_Moment]:
    """Yield the decoder's convolutions in order."""
    widths, cells, frames = config.decoder_widths, 1, 1
    yield _Moment(_Conv(config.z_dim, config.z_dim, 1, 1, 1, 1), 0)
    yield _Moment(_Conv(config.z_dim, widths[0], 9, TAPS, 1, 1), 0)
    for _ in range(2):
        yield from _resnet(widths[0], widths[0], 1, 1, beside=widths[0])
    for output in (3 * widths[0], widths[0]):  # attention
        yield _Moment(_Conv(widths[0], output, 1, 1, 1, 1), 3 * widths[0])
    for stage, width in enumerate(widths[1:]):
        before = widths[stage] // (2 if stage and not config.is_residual else 1)
        held = before * cells * frames
        for index in range(config.num_res_blocks + 1):
            yield from _resnet(width if index else before, width, cells, frames, beside=held)
        for is_temporal in config.temporal_upsample[stage : stage + 1]:
            yield from _upsampler(config, width, is_temporal, cells, frames, beside=held)
            cells, frames = 4 * cells, frames * (1 + is_temporal)
    yield _Moment(_Conv(widths[-1], config.out_channels, 9, TAPS, cells, frames), widths[-1] * cells * frames)


def _resnet(before: int, width: int, cells: int, frames: int, beside: int) -> Iterator[_Moment]:
    """Yield the convolutions of a residual block; its input is kept for the shortcut."""
    features = cells * frames
    yield _Moment(_Conv(before, width, 9, TAPS, cells, frames), beside + before * features)
    yield _Moment(_Conv(width, width, 9, TAPS, cells, frames), beside + (before + width) * features)
    if before != width:
        yield _Moment(_Conv(before, width, 1, 1, cells, frames), beside + width * features)


def _upsampler(
    config: VideoVaeConfig, width: int, is_temporal: bool, cells: int, frames: int, beside: int
) -> Iterator[_Moment]:
    """Yield the convolutions that double frames, height and width; Wan 2.2 adds copies of what was before."""
    features = width * cells * frames
    if is_temporal:
        yield _Moment(_Conv(width, 2 * width, 1, TAPS, cells, frames, is_first=False), beside + 3 * features)
        features, frames = 2 * features, 2 * frames
    output = width if config.is_residual else width // 2
    copies = 4 * features if config.is_residual else 0
    yield _Moment(_Conv(width, output, 9, 1, 4 * cells, frames), beside + 2 * features + copies)
