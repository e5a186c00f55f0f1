"""The number format of a model's weights: its own, or one of fewer bits."""

from enum import StrEnum

from diffuserve.domain.errors import InvalidParams


class Quantization(StrEnum):
    """The number format of the weights of large products; `NONE` leaves them in the model's dtype.

    `INT8` and `FP8` have one scale for each row of a weight, `INT4` a scale and an offset for each group of
    numbers in a row.
    """

    NONE = "none"
    INT8 = "int8"
    FP8 = "fp8"
    INT4 = "int4"


SMALL_GROUP = 32
"""Numbers that share a scale in weights which others have quantized, such as those of GGUF files."""


def parse_quantization(name: str | None) -> Quantization | None:
    """Return the quantization of this name, or `None` for `None`. Raise `InvalidParams` if it is unknown."""
    try:
        return None if name is None else Quantization(name)
    except ValueError:
        remedy = f"must be one of {', '.join(Quantization)}"
        raise InvalidParams("quantization", name, remedy) from None
