"""Qwen-Image's blocks for the compiler."""

from collections.abc import Mapping

import torch

from diffuserve.models.compiled.halves import BlockHalf, CompilableBlocks
from diffuserve.models.families.packed_images.compiled import Tracing, double_halves, made
from diffuserve.models.families.qwen_image.config import QwenImageConfig
from diffuserve.models.families.qwen_image.transformer import QwenImageBlock
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.models.machine.devices import default_dtype
from diffuserve.models.weights.loading import checkpoint_dtype


def block_shape(config: QwenImageConfig) -> str:
    """Return the values that the blocks of a checkpoint depend on."""
    return f"qwen-image-{config.num_attention_heads}x{config.attention_head_dim}"


def compilable_qwen_image(
    folder: ModelFolder, device: torch.device, dtype: torch.dtype | None
) -> CompilableBlocks:
    """Return the blocks of a folder for the compiler, in the dtype in which it is loaded there."""
    config = QwenImageConfig.read(folder)
    chosen = dtype or default_dtype(checkpoint_dtype(folder.weights("transformer")), device)
    return CompilableBlocks(block_shape(config), chosen, qwen_image_halves(config, device, chosen))


def qwen_image_halves(
    config: QwenImageConfig, device: torch.device, dtype: torch.dtype
) -> Mapping[str, BlockHalf]:
    """Return the halves of a block, with placeholder weights."""
    attention = choose_kernel(torch.device("cpu"), torch.float32)  # halves have none
    tracing = Tracing(config.dim, config.attention_head_dim, device, dtype)
    block = made(lambda: QwenImageBlock(config, attention), tracing)
    return double_halves(block, tracing, rotates_text=True)
