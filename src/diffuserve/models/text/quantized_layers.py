"""The layers of text encoders that may be quantized: all large products; no embedding, no norm.

Activations stay as they are: an encoder runs once for a prompt, and every step depends on its result.
"""

from diffuserve.models.layers.quantized.quantized_layers import QuantizedLayers

T5_LAYERS = QuantizedLayers(
    r"encoder\.block\.\d+\.layer\.\d\.(SelfAttention\.[qkvo]|DenseReluDense\.(wi|wi_[01]|wo))",
    is_weight_only=True,
)
CLIP_LAYERS = QuantizedLayers(
    r"(text_model\.)?encoder\.layers\.\d+\.(self_attn\.(q|k|v|out)_proj|mlp\.fc[12])", is_weight_only=True
)
QWEN_LAYERS = QuantizedLayers(
    r"((model|language_model)\.)*layers\.\d+\."
    r"(self_attn\.[qkvo]_proj|mlp\.(gate_proj|up_proj|down_proj|linear_in|linear_out))",
    is_weight_only=True,
)
