"""FLUX.2's blocks for the compiler."""

from collections.abc import Mapping

import torch

from diffuserve.models.compiled.halves import BlockHalf, CompilableBlocks
from diffuserve.models.families.flux2.config import Flux2Config
from diffuserve.models.families.flux2.transformer import Flux2DoubleBlock, Flux2SingleBlock
from diffuserve.models.families.packed_images.compiled import Tracing, double_halves, made, single_halves
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.models.machine.devices import default_dtype
from diffuserve.models.weights.loading import checkpoint_dtype


def block_shape(config: Flux2Config) -> str:
    """Return the values that the blocks of a checkpoint depend on."""
    return f"flux2-{config.num_attention_heads}x{config.attention_head_dim}"


def compilable_flux2(
    folder: ModelFolder, device: torch.device, dtype: torch.dtype | None
) -> CompilableBlocks:
    """Return the blocks of a folder for the compiler, in the dtype in which it is loaded there."""
    config = Flux2Config.read(folder)
    chosen = dtype or default_dtype(checkpoint_dtype(folder.weights("transformer")), device)
    return CompilableBlocks(block_shape(config), chosen, flux2_halves(config, device, chosen))


def flux2_halves(config: Flux2Config, device: torch.device, dtype: torch.dtype) -> Mapping[str, BlockHalf]:
    """Return the halves of a block of each kind, with placeholder weights."""
    attention = choose_kernel(torch.device("cpu"), torch.float32)  # halves have none
    tracing = Tracing(config.dim, config.attention_head_dim, device, dtype)
    double = made(lambda: Flux2DoubleBlock(config, attention), tracing)
    single = made(lambda: Flux2SingleBlock(config, attention), tracing)
    return {**double_halves(double, tracing, rotates_text=True), **single_halves(single, tracing)}
