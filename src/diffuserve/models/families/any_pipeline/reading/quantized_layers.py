"""The layers of diffusers' and transformers' modules that may be quantized: the products in their blocks.

Importing this loads no torch.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from diffuserve.models.families.any_pipeline.reading.components import Kind, PipelineComponent
from diffuserve.models.layers.quantized.quantized_layers import QuantizedLayers

_IN_A_BLOCK: Final = r"(.+\.)?\w+\.\d+\..+"  # blocks are numbered
DENOISER_LAYERS: Final = QuantizedLayers(rf"(?!.*(norm|modulation|embed|time_|guidance)){_IN_A_BLOCK}")
"""All products of the blocks, but the modulations and embedders, on which everything depends."""
ENCODER_LAYERS: Final = QuantizedLayers(rf"(?!.*embed){_IN_A_BLOCK}", is_weight_only=True)
_DENOISERS, _ENCODERS = ("transformer", "unet"), ("text_encoder",)  # and their numbered siblings


def quantized_layers(components: Iterable[PipelineComponent]) -> Mapping[str, QuantizedLayers]:
    """Return the layers of each component that may be quantized; none where no denoiser is known."""
    models = [each for each in components if each.kind is Kind.MODEL]
    denoisers = {each.name: DENOISER_LAYERS for each in models if each.name.startswith(_DENOISERS)}
    encoders = {each.name: ENCODER_LAYERS for each in models if each.name.startswith(_ENCODERS)}
    return denoisers | encoders if denoisers else {}
