"""The halves of FLUX.2's blocks for the compiler compute what its blocks do."""

import pytest
import torch
from torch import Tensor

from diffuserve.models.families.flux2.compiled import flux2_halves
from diffuserve.models.families.flux2.config import Flux2Config
from diffuserve.models.families.flux2.positions import layout_rules
from diffuserve.models.families.flux2.transformer import Flux2Transformer
from diffuserve.models.families.packed_images.compiled import use_compiled
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.models.layers.joint.packing import Grid, PackedInput, SequenceShape, pack_layout
from diffuserve.testing.checkpoints import redraw_weights
from support.compiled_halves import decibels, exported

CPU = torch.device("cpu")
SMALL = Flux2Config(
    in_channels=8,
    num_layers=1,
    num_single_layers=2,
    attention_head_dim=16,
    num_attention_heads=2,
    joint_attention_dim=12,
    axes_dims_rope=(4, 4, 4, 4),
)
BATCHES = (
    (SequenceShape(5, Grid(3, 4), (Grid(2, 2),)),),
    (SequenceShape(7, Grid(4, 4), (Grid(1, 1), Grid(3, 2))), SequenceShape(2, Grid(1, 3))),
)
"""Batches of other numbers of tokens than blocks are traced with."""


@pytest.mark.parametrize(
    ("dtype", "min_db"), [(torch.float32, 110), pytest.param(torch.bfloat16, 38, marks=pytest.mark.slow)]
)
def test_exported_halves_compute_what_blocks_do(dtype: torch.dtype, min_db: float) -> None:
    transformer = Flux2Transformer(SMALL, choose_kernel(CPU, dtype)).to(dtype)
    redraw_weights(transformer, torch.Generator().manual_seed(0))
    eager = [_velocity(transformer, shapes) for shapes in BATCHES]
    halves = {name: exported(half) for name, half in flux2_halves(SMALL, CPU, dtype).items()}
    use_compiled(transformer.transformer_blocks, transformer.single_transformer_blocks, halves)
    for shapes, expected in zip(BATCHES, eager, strict=True):
        assert decibels(_velocity(transformer, shapes), expected) > min_db


@torch.inference_mode()
def _velocity(transformer: Flux2Transformer, shapes: tuple[SequenceShape, ...]) -> Tensor:
    generator, dtype = torch.Generator().manual_seed(1), transformer.proj_out.weight.dtype

    def draw(rows: int, channels: int) -> Tensor:
        return torch.randn(rows, channels, generator=generator).to(dtype)

    packed = PackedInput(
        image=draw(sum(shape.image_tokens for shape in shapes), SMALL.in_channels),
        text=draw(sum(shape.text for shape in shapes), SMALL.joint_attention_dim),
        factors=transformer.factors(4.0, (), [100.0 * number for number in range(len(shapes))]),
        layout=pack_layout(shapes, layout_rules(SMALL.axes_dims_rope, SMALL.rope_theta), CPU),
    )
    velocity: Tensor = transformer(packed)
    return velocity
