"""What leaves a model: images, clips and sounds. Importing this file loads no torch."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image

from diffuserve.domain.sendable import Sendable

Frames = list[Image]  # one image is a list of one frame

MIN_SAMPLE_RATE, MAX_SAMPLE_RATE = 8_000, 192_000
MAX_CHANNELS = 2


@dataclass(frozen=True, eq=False)
class Sound(Sendable):
    """Samples in -1…1, by channels and time, of which `sample_rate` make a second.

    What is louder than 1 is clipped where it is written. Raise `ValueError` for samples of another shape or
    type, for more than two channels and for a rate outside 8,000…192,000 Hz, and `FloatingPointError` for
    samples that are not finite.
    """

    samples: NDArray[np.float32]
    sample_rate: int

    def __post_init__(self) -> None:
        shape, dtype = self.samples.shape, self.samples.dtype
        if len(shape) != 2 or dtype != np.float32:
            raise ValueError(f"samples {dtype}{list(shape)}: must be float32 of (channels, samples)")
        if not 1 <= self.num_channels <= MAX_CHANNELS:
            raise ValueError(f"a sound of {self.num_channels} channels: must be of 1 or {MAX_CHANNELS}")
        if not self.num_samples:
            raise ValueError("a sound without samples")
        if not MIN_SAMPLE_RATE <= self.sample_rate <= MAX_SAMPLE_RATE:
            limits = f"{MIN_SAMPLE_RATE:,}…{MAX_SAMPLE_RATE:,}"
            raise ValueError(f"a sample rate of {self.sample_rate} Hz: must be in {limits}")
        if not np.isfinite(self.samples).all():
            raise FloatingPointError("the samples are not finite")

    @property
    def num_channels(self) -> int:
        return self.samples.shape[0]

    @property
    def num_samples(self) -> int:
        """Samples of each channel."""
        return self.samples.shape[1]

    @property
    def seconds(self) -> float:
        """Duration."""
        return self.num_samples / self.sample_rate


@dataclass
class Media(Sendable):
    """What a request makes with one seed: an image, a clip with or without its sound, or a sound alone."""

    frames: Frames = field(default_factory=list)
    sound: Sound | None = None


def media_of(decoded: Frames | Sound) -> Media:
    """Return an image, or a sound alone."""
    return Media(sound=decoded) if isinstance(decoded, Sound) else Media(decoded)
