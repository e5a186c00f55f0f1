"""FLUX.1's blocks for the compiler."""

from collections.abc import Mapping

import torch

from diffuserve.models.compiled.halves import BlockHalf, CompilableBlocks
from diffuserve.models.families.flux.config import FluxConfig
from diffuserve.models.families.flux.transformer import DoubleBlock, SingleBlock
from diffuserve.models.families.packed_images.compiled import Tracing, double_halves, made, single_halves
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.models.machine.devices import default_dtype
from diffuserve.models.weights.loading import checkpoint_dtype


def block_shape(config: FluxConfig) -> str:
    """Return the values that the blocks of a checkpoint depend on."""
    return f"flux-{config.num_attention_heads}x{config.attention_head_dim}"


def compilable_flux(folder: ModelFolder, device: torch.device, dtype: torch.dtype | None) -> CompilableBlocks:
    """Return the blocks of a folder for the compiler, in the dtype in which it is loaded there."""
    config = FluxConfig.read(folder)
    chosen = dtype or default_dtype(checkpoint_dtype(folder.weights("transformer")), device)
    return CompilableBlocks(block_shape(config), chosen, flux_halves(config, device, chosen))


def flux_halves(config: FluxConfig, device: torch.device, dtype: torch.dtype) -> Mapping[str, BlockHalf]:
    """Return the halves of a block of each kind, with placeholder weights."""
    attention = choose_kernel(torch.device("cpu"), torch.float32)  # halves have none
    tracing = Tracing(config.dim, config.attention_head_dim, device, dtype)
    double = made(lambda: DoubleBlock(config, attention), tracing)
    single = made(lambda: SingleBlock(config, attention), tracing)
    return {**double_halves(double, tracing, rotates_text=False), **single_halves(single, tracing)}
