"""The shift μ of FLUX.1's noise schedules by the size of the image.

Reference implementation: `calculate_shift` of diffusers' `FluxPipeline`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, with_config

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.config import SCHEMA, parse_config

_MAX_TOKENS, _MAX_MU = 1 << 18, 88.0  # e^μ overflows in float32 above 88.7


@with_config(SCHEMA)
@dataclass(frozen=True)
class SizeShift:
    """A straight line through two points of image tokens and μ; names are those of the scheduler's config."""

    base_shift: Annotated[float, Field(ge=-20, le=20)] = 0.5
    max_shift: Annotated[float, Field(ge=-20, le=20)] = 1.15
    base_image_seq_len: Annotated[int, Field(ge=1, le=1 << 24)] = 256
    max_image_seq_len: Annotated[int, Field(ge=1, le=1 << 24)] = 4096

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "SizeShift":
        """Read `scheduler_config.json`. Raise `InvalidModel` if the shift of any image size is not finite."""
        shift = parse_config(cls, config, "scheduler_config.json")
        lengths = (shift.base_image_seq_len, shift.max_image_seq_len)
        if lengths[0] == lengths[1] or max(abs(shift.mu(tokens)) for tokens in (1, _MAX_TOKENS)) > _MAX_MU:
            raise InvalidModel(
                f"scheduler_config.json: base_shift={shift.base_shift} at base_image_seq_len={lengths[0]} "
                f"and max_shift={shift.max_shift} at max_image_seq_len={lengths[1]} are too steep"
            )
        return shift

    def mu(self, image_tokens: int) -> float:
        """Return μ of an image of so many tokens, without its prompt."""
        slope = (self.max_shift - self.base_shift) / (self.max_image_seq_len - self.base_image_seq_len)
        return image_tokens * slope + (self.base_shift - slope * self.base_image_seq_len)
