"""Sounds for tests."""

import numpy as np

from diffuserve.models.frames import Sound

HZ = 440.0


def tone(seconds: float = 2.5, rate: int = 44_100, channels: int = 2, loudness: float = 0.5) -> Sound:
    """Return a tone of `HZ`, which is half as loud in the second channel."""
    times = np.arange(round(seconds * rate)) / rate
    samples = [loudness / (number + 1) * np.sin(2 * np.pi * HZ * times) for number in range(channels)]
    return Sound(np.stack(samples).astype(np.float32), rate)
