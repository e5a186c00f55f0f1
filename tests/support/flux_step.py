"""A denoising step of FLUX.1 at full size, counted on tensors that have no memory."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from diffuserve.models.flux.config import FluxConfig
from diffuserve.models.flux.positions import layout_rules
from diffuserve.models.flux.transformer import FluxTransformer
from diffuserve.models.layers.attention import (
    AttentionKernel,
    varlen_flash,
    varlen_flash_across,
    varlen_flash_causal,
)
from diffuserve.models.layers.fused_ops import is_fused
from diffuserve.models.layers.joint.packing import Grid, PackedInput, PackedLayout, SequenceShape, pack_layout
from support.kernel_counter import KernelCounter, fake_cuda

SCHNELL = FluxConfig()  # 12 billion parameters
# 1360×768 pixels: 85×48 tokens of 16×16 pixels, after the 256 of the prompt.
LANDSCAPE = SequenceShape(256, Grid(48, 85))
_CUDA = torch.device("cuda:0")


def count_step(shapes: Sequence[SequenceShape], config: FluxConfig = SCHNELL) -> KernelCounter:
    """Count the transformer's pass over sequences of these shapes, in bf16 on CUDA."""
    on_cpu = pack_layout(shapes, layout_rules(config.axes_dims_rope), torch.device("cpu"))
    with fake_cuda() as fake, torch.no_grad():  # in inference mode a linear layer would arrive whole
        layout = _moved(on_cpu, lambda tensor: fake.from_tensor(tensor).to(_CUDA))
        transformer = _transformer(config)
        packed = PackedInput(
            image=_empty(len(layout.image_at), config.in_channels),
            text=_empty(len(layout.text_at), config.joint_attention_dim),
            factors=_empty(len(shapes), transformer.num_factors, config.dim),
            layout=layout,
        )
        assert is_fused(packed.image), "kernels of Triton take part"
        with KernelCounter() as counter:
            transformer(packed)
    return counter


def attention_flops(shapes: Sequence[SequenceShape], config: FluxConfig = SCHNELL) -> int:
    """Return the operations of both products of all attentions of a step."""
    layers = config.num_layers + config.num_single_layers
    return sum(4 * shape.tokens**2 * config.dim * layers for shape in shapes)


def _transformer(config: FluxConfig) -> FluxTransformer:
    torch.set_default_dtype(torch.bfloat16)
    try:
        with _CUDA:
            return FluxTransformer(
                config,
                AttentionKernel("varlen-flash", varlen_flash, varlen_flash_across, varlen_flash_causal),
            )
    finally:
        torch.set_default_dtype(torch.float32)


def _moved(layout: PackedLayout, move: Callable[[Tensor], Tensor]) -> PackedLayout:
    tensors: Any = {name: move(value) for name, value in vars(layout).items() if isinstance(value, Tensor)}
    segments = replace(layout.segments, cu_seqlens=move(layout.segments.cu_seqlens))
    return replace(layout, segments=segments, **tensors)


def _empty(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.bfloat16, device=_CUDA)
