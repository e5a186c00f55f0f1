"""The halves of Qwen-Image's blocks for the compiler compute what its blocks do."""

import pytest
import torch
from torch import Tensor

from diffuserve.models.families.packed_images.compiled import use_compiled
from diffuserve.models.families.qwen_image.compiled import qwen_image_halves
from diffuserve.models.families.qwen_image.config import QwenImageConfig
from diffuserve.models.families.qwen_image.positions import layout_rules
from diffuserve.models.families.qwen_image.transformer import QwenImageTransformer
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.models.layers.joint.packing import Grid, PackedInput, SequenceShape, pack_layout
from diffuserve.testing.checkpoints import redraw_weights
from support.compiled_halves import decibels, exported

CPU = torch.device("cpu")
SMALL = QwenImageConfig(
    in_channels=8,
    out_channels=2,
    num_layers=2,
    attention_head_dim=16,
    num_attention_heads=2,
    joint_attention_dim=12,
    axes_dims_rope=(4, 6, 6),
    zero_cond_t=True,
)
BATCHES = (
    (SequenceShape(5, Grid(3, 4), (Grid(2, 2),)),),
    (SequenceShape(7, Grid(4, 4), (Grid(1, 1), Grid(3, 2))), SequenceShape(2, Grid(1, 3), (Grid(5, 5),))),
)
"""Batches of other numbers of tokens than blocks are traced with; references have factors of their own."""


@pytest.mark.parametrize(("dtype", "min_db"), [(torch.float32, 110), (torch.bfloat16, 38)])
def test_exported_halves_compute_what_blocks_do(dtype: torch.dtype, min_db: float) -> None:
    transformer = QwenImageTransformer(SMALL, choose_kernel(CPU, dtype)).to(dtype)
    redraw_weights(transformer, torch.Generator().manual_seed(0))
    eager = [_velocity(transformer, shapes) for shapes in BATCHES]
    halves = {name: exported(half) for name, half in qwen_image_halves(SMALL, CPU, dtype).items()}
    use_compiled(transformer.transformer_blocks, (), halves)
    for shapes, expected in zip(BATCHES, eager, strict=True):
        assert decibels(_velocity(transformer, shapes), expected) > min_db


@torch.inference_mode()
def _velocity(transformer: QwenImageTransformer, shapes: tuple[SequenceShape, ...]) -> Tensor:
    generator, dtype = torch.Generator().manual_seed(1), transformer.proj_out.weight.dtype

    def draw(rows: int, channels: int) -> Tensor:
        return torch.randn(rows, channels, generator=generator).to(dtype)

    timesteps = torch.arange(2 * len(shapes)) * 100.0
    rules = layout_rules(SMALL.axes_dims_rope, SMALL.zero_cond_t)
    packed = PackedInput(
        image=draw(sum(shape.image_tokens for shape in shapes), SMALL.in_channels),
        text=draw(sum(shape.text for shape in shapes), SMALL.joint_attention_dim),
        factors=transformer.factors(timesteps),
        layout=pack_layout(shapes, rules, CPU),
    )
    velocity: Tensor = transformer(packed)
    return velocity
