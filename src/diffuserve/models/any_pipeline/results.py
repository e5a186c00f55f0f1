"""What a pipeline returns, as frames: images and clips of any class."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.frames import Frames

_FIELDS = ("images", "frames", "videos", "video", "image")


def frames_of(result: Any) -> Frames:
    """Return the frames of a pipeline's only image or clip. Raise `FloatingPointError` if one is not finite.

    Levels are rounded as diffusers' own `numpy_to_pil` does.
    """
    found = next(value for name in _FIELDS if (value := getattr(result, name, None)) is not None)
    levels = np.asarray(found[0], dtype=np.float32)
    if not np.isfinite(levels).all():
        raise FloatingPointError("the image is not finite")
    clip = levels if levels.ndim == 4 else levels[None]
    return [_picture(frame) for frame in clip]


def size_warnings(frames: Sequence[Image.Image], params: GenerationParams) -> tuple[str, ...]:
    """Return warnings about a size or a length that the pipeline chose by itself."""
    warnings = []
    if frames[0].size != (params.width, params.height):
        got = "x".join(map(str, frames[0].size))
        warnings.append(f"this model made {got} of the requested {params.width}x{params.height}")
    if len(frames) != (params.num_frames or 1):
        warnings.append(f"this model made {len(frames)} frames of the requested {params.num_frames}")
    return tuple(warnings)


def _picture(levels: NDArray[np.float32]) -> Image.Image:
    eight_bits = (levels.clip(0, 1) * 255).round().astype(np.uint8)
    return Image.fromarray(eight_bits[..., 0] if eight_bits.shape[-1] == 1 else eight_bits)
