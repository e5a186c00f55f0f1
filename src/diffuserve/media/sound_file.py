"""Formats of sound files, and of the sound in a clip's file. Importing this file loads no encoder."""

from collections.abc import Mapping
from dataclasses import dataclass

from diffuserve.domain.errors import InvalidParams


@dataclass(frozen=True, kw_only=True)
class SoundFormat:
    """A format of sound files: 16 bits a sample, without loss."""

    media_type: str
    suffix: str
    description: str
    codec: str


_BYTES_PER_MOMENT = 2 * 2  # of two channels
_LARGEST_WAV = 60 * 1024 * 1024
"""Bytes of samples: files of workers have 64 MiB at most."""
DEFAULT_SOUND_FORMAT = "wav"
SOUND_FORMATS: Mapping[str, SoundFormat] = {
    "wav": SoundFormat(media_type="audio/wav", suffix=".wav", description="PCM", codec="pcm_s16le"),
    "flac": SoundFormat(media_type="audio/flac", suffix=".flac", description="FLAC", codec="flac"),
}
"""The formats by the names that requests give them, and in their order of preference."""


def check_sound(output_format: str, seconds: float, sample_rate: int) -> None:
    """Raise `InvalidParams`, which names `output_format`, if a sound may be too large for such a file."""
    longest = _LARGEST_WAV / (sample_rate * _BYTES_PER_MOMENT)
    if output_format == "wav" and seconds > longest:
        remedy = f"holds {int(longest)} s of {sample_rate:,} Hz, not {seconds:g}; take flac, or fewer seconds"
        raise InvalidParams("output_format", output_format, remedy)


@dataclass(frozen=True)
class SoundTrack:
    """How a container of clips holds sound; of other rates than `rates` it is resampled to the highest."""

    codec: str
    rates: tuple[int, ...]
    bit_rate: int


SOUND_TRACKS: Mapping[str, SoundTrack] = {
    "mp4": SoundTrack(
        "aac", (48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 11_025, 8_000), 192_000
    ),
    "webm": SoundTrack("libopus", (48_000, 24_000, 16_000, 12_000, 8_000), 160_000),
}
"""Of the formats of clips those that have sound, by name."""
