"""Which layers of a model are quantized: a pure rule from their full names. Importing this loads no torch."""

import re
from dataclasses import dataclass

from diffuserve.domain.models.quantization import Quantization


@dataclass(frozen=True)
class QuantizedLayers:
    """The layers of a component whose weights may be quantized: those whose full names match `pattern`.

    Full names are matched, since the last product of a block may have the same name as the model's. The
    pattern has the names in checkpoints and, for fused products, in modules. With `is_weight_only`
    activations stay as they are.
    """

    pattern: str
    is_weight_only: bool = False

    def kind_of(self, layer: str, quantization: Quantization) -> Quantization:
        """Return the number format of a layer's weight.

        If activations are not quantized it is 8-bit integers, which are closest to the weight: no kernel is
        faster with other formats then.
        """
        if quantization is Quantization.NONE or not re.fullmatch(self.pattern, layer):
            return Quantization.NONE
        return Quantization.INT8 if self.is_weight_only else quantization
