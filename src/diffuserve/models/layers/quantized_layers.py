"""Which layers of a model are quantized: a pure rule from their full names. Importing this loads no torch."""

import re
from dataclasses import dataclass

from diffuserve.domain.models.quantization import Quantization


@dataclass(frozen=True)
class QuantizedLayers:
    """The layers of a component whose weights may be quantized: those whose full names match `pattern`.

    Names are matched whole, since the last product of a block may be called as that of the model: the pattern
    names layers as checkpoints do, and as modules do, where several are one product. With `is_weight_only`
    activations stay as they are.
    """

    pattern: str
    is_weight_only: bool = False

    def kind_of(self, layer: str, quantization: Quantization) -> Quantization:
        """Return what a layer's weight is stored in.

        Where activations stay as they are, it is 8-bit integers, which are nearest to the weight: no kernel
        gains by other numbers there.
        """
        if quantization is Quantization.NONE or not re.fullmatch(self.pattern, layer):
            return Quantization.NONE
        return Quantization.INT8 if self.is_weight_only else quantization
