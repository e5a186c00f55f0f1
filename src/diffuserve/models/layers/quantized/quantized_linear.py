"""Linear layers whose weights are stored in 8 or 4 bits."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from diffuserve.domain.models.quantization import Quantization
from diffuserve.models.layers.adapted.adapters import RowAdapters
from diffuserve.models.layers.linear import Linear
from diffuserve.models.layers.quantized.quantization import QuantizedWeight, can_quantize, quantize_weight
from diffuserve.models.layers.quantized.quantized_layers import QuantizedLayers
from diffuserve.models.layers.quantized.quantized_products import Product, choose_product


class QuantizedLinear(Linear):
    """`y = activation(x Wᵀ + b)` as in `Linear`, with a quantized weight.

    With `is_weight_only` activations stay as they are. `dtype` is that of inputs, outputs, bias and adapters.
    Where rows have several positions each, adapters are those of the rows.
    """

    def __init__(self, layer: nn.Linear | Linear, kind: Quantization, is_weight_only: bool) -> None:
        """Quantize the weight of `layer`; on the meta device set only the shapes."""
        nn.Module.__init__(self)
        self.is_weight_only = is_weight_only
        self.out_features, self.in_features = layer.weight.shape
        self.gelu, self.tiling = getattr(layer, "gelu", False), getattr(layer, "tiling", None)
        self.name = ""
        self.bias = layer.bias
        self.dtype = layer.weight.dtype
        self._product_of: Product | None = None
        self.keep(quantize_weight(layer.weight, kind))

    @property
    def quantized(self) -> QuantizedWeight:
        """The weight, until a kernel has converted it to its own layout."""
        return QuantizedWeight(self.weight.data, self.weight_scale.data, self.weight_zero)

    def keep(self, weight: QuantizedWeight) -> None:
        """Take over another weight, whose kind and groups are this layer's then."""
        self.kind, self.group = weight.kind, weight.group
        self.weight = _parameter(weight.codes)
        self.weight_scale = _parameter(weight.scale)
        self.weight_zero = None if weight.zero is None else _parameter(weight.zero)

    def prepare(self, device: torch.device | None = None) -> None:
        """Choose the kernel for a device, by default the weight's device."""
        product = choose_product(self.quantized, self.is_weight_only, device or self.weight.device)
        self.weight = _parameter(product.packed(self.quantized))
        self._product_of = product

    @property
    def num_packed(self) -> int:
        """Scalars of the weight beyond one for each of its codes: a byte may hold two."""
        return self.out_features * self.in_features - self.weight.numel()

    def forward(
        self, x: Float[Tensor, "*rows in"], adapters: RowAdapters | None = None
    ) -> Float[Tensor, "*rows out"]:
        of_all = None if adapters is None else adapters.times(x.shape[1:-1].numel())
        return super().forward(x.flatten(0, -2), of_all).unflatten(0, x.shape[:-1])

    def of_parts(
        self,
        first: Float[Tensor, "rows first_in"],
        second: Float[Tensor, "rows second_in"],
        adapters: RowAdapters | None = None,
    ) -> Float[Tensor, "rows out"]:
        """Return the product of rows in two tensors, side by side: a token has one scale for both."""
        return self(torch.cat([first, second], dim=-1), adapters)

    def _fill(
        self, result: Float[Tensor, "rows out"], tile: Float[Tensor, "rows in"], padding: int, gelu: bool
    ) -> None:
        result.copy_(self._product(F.pad(tile, (0, 0, 0, padding)), gelu)[: len(tile)])

    def _fuses_gelu(self, x: Tensor) -> bool:
        return False

    def _product(self, x: Tensor, gelu: bool) -> Tensor:
        assert self._product_of is not None, "the layer was not prepared"
        y = self._product_of(x, self.quantized, self.bias)
        return F.gelu(y, approximate="tanh") if gelu else y


def input_dtype(layer: nn.Module) -> torch.dtype:
    """Return the dtype that a linear layer reads."""
    if isinstance(layer, QuantizedLinear):
        return layer.dtype
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return weight.dtype


def quantize_layers(
    module: nn.Module,
    layers: QuantizedLayers,
    quantization: Quantization,
    place: torch.device | None = None,
    device: torch.device | None = None,
) -> None:
    """Replace the linear layers of `module` that may be quantized, one by one.

    Their weights are quantized, brought to a `place` before, and computed with on a `device`; by default all
    where they are. On the meta device they are empty, and `load_weights` fills them.
    """
    for name, layer in list(module.named_modules()):
        if not isinstance(layer, nn.Linear | Linear) or isinstance(layer, QuantizedLinear):
            continue
        kind = layers.kind_of(name, quantization)
        if kind is Quantization.NONE or not can_quantize(kind, layer.weight.shape[1]):
            continue
        owner, _, attribute = name.rpartition(".")
        quantized = QuantizedLinear(layer.to(place), kind, layers.is_weight_only)
        module.get_submodule(owner).register_module(attribute, quantized)
        if not layer.weight.is_meta:
            quantized.prepare(device)


def _parameter(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor, requires_grad=False)
