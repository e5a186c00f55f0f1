"""What a pipeline returns: an image, a clip with or without its sound, or a sound, of any class."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.frames import Frames, Media, Sound

_PICTURES = ("images", "frames", "videos", "video", "image")
_SOUNDS = ("audios", "audio")


def media_of(result: Any, sample_rate: int) -> Media:
    """Return a pipeline's only result. Raise `FloatingPointError` if some of it is not finite.

    Levels are rounded as diffusers' own `numpy_to_pil` does. `sample_rate` is that of sounds, in Hz.
    """
    pictures, samples = _first(result, _PICTURES), _first(result, _SOUNDS)
    return Media(
        [] if pictures is None else _frames(pictures[0]),
        None if samples is None else Sound(_samples(samples[0]), sample_rate),
    )


def layers_of(result: Any) -> list[Media]:
    """Return the layers of a pipeline's only picture, one image each, in RGBA.

    Raise `FloatingPointError` if some of it is not finite.
    """
    return [Media([layer]) for layer in _frames(_first(result, _PICTURES)[0])]


def _first(result: Any, names: Sequence[str]) -> Any:
    return next((value for name in names if (value := getattr(result, name, None)) is not None), None)


def _frames(pictures: Any) -> Frames:
    levels = np.asarray(pictures, dtype=np.float32)
    if not np.isfinite(levels).all():
        raise FloatingPointError("the image is not finite")
    return [_picture(frame) for frame in (levels if levels.ndim == 4 else levels[None])]


def _samples(sound: Any) -> NDArray[np.float32]:
    """Return samples of the shape (channels, samples); a single channel may come without that axis."""
    values = sound.float().cpu().numpy() if isinstance(sound, torch.Tensor) else np.asarray(sound, np.float32)
    if not np.isfinite(values).all():
        raise FloatingPointError("the sound is not finite")
    return np.ascontiguousarray(np.atleast_2d(values))


def size_warnings(frames: Sequence[Image.Image], params: GenerationParams) -> tuple[str, ...]:
    """Return warnings about a size or a length that the pipeline chose by itself."""
    warnings: list[str] = []
    if not frames:
        return ()
    if frames[0].size != (params.width, params.height):
        got = "x".join(map(str, frames[0].size))
        warnings.append(f"this model made {got} of the requested {params.width}x{params.height}")
    if len(frames) != (params.num_frames or 1):
        warnings.append(f"this model made {len(frames)} frames of the requested {params.num_frames}")
    return tuple(warnings)


def _picture(levels: NDArray[np.float32]) -> Image.Image:
    eight_bits = (levels.clip(0, 1) * 255).round().astype(np.uint8)
    return Image.fromarray(eight_bits[..., 0] if eight_bits.shape[-1] == 1 else eight_bits)
