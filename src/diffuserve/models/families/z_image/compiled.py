"""Z-Image's blocks for the compiler, and blocks that run the compiled halves."""

from collections.abc import Iterable, Mapping
from functools import partial

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

from diffuserve.models.compiled.halves import BlockHalf, CompilableBlocks, Compiled, weights_of
from diffuserve.models.families.packed_images.compiled import HalfOf, Tracing, made, several
from diffuserve.models.families.z_image.config import ZImageConfig
from diffuserve.models.families.z_image.transformer import FACTORS, Row, ZImageBlock, halves
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.models.machine.devices import default_dtype
from diffuserve.models.weights.loading import checkpoint_dtype

HALVES = ("start", "end")
_ROWS = 64  # tokens to trace with


class _Start(HalfOf[ZImageBlock]):
    """A block until attention."""

    def forward(
        self,
        x: Float[Tensor, "tokens d"],
        factors: Float[Tensor, "rows 4 d"],
        owner: Int[Tensor, "tokens"],
        rotation: Float32[Tensor, "tokens half 2"],
    ) -> tuple[Float[Tensor, "tokens 3 heads dim"]]:
        [block], (first, _) = self._block, halves(factors, owner)
        return (block.raw_qkv(x, first, None).prepared(rotation),)


class _End(HalfOf[ZImageBlock]):
    """A block from attention on."""

    def forward(
        self,
        x: Float[Tensor, "tokens d"],
        attended: Float[Tensor, "tokens own_d"],
        factors: Float[Tensor, "rows 4 d"],
        owner: Int[Tensor, "tokens"],
    ) -> tuple[Float[Tensor, "tokens d"]]:
        [block], both = self._block, halves(factors, owner)
        return (block.finish(x, attended, *both),)


def block_shape(config: ZImageConfig) -> str:
    """Return the values that the blocks of a checkpoint depend on."""
    return f"z-image-{config.n_heads}x{config.head_dim}-eps-{config.norm_eps:g}"


def compilable_z_image(
    folder: ModelFolder, device: torch.device, dtype: torch.dtype | None
) -> CompilableBlocks:
    """Return the blocks of a folder for the compiler, in the dtype in which it is loaded there."""
    config = ZImageConfig.read(folder)
    chosen = dtype or default_dtype(
        checkpoint_dtype(folder.weights("transformer")), device, half=torch.bfloat16
    )
    return CompilableBlocks(block_shape(config), chosen, block_halves(config, device, chosen))


def block_halves(config: ZImageConfig, device: torch.device, dtype: torch.dtype) -> Mapping[str, BlockHalf]:
    """Return the halves of a block, with placeholder weights; those of all blocks are alike."""
    attend = choose_kernel(torch.device("cpu"), torch.float32)  # halves have none
    tracing = Tracing(config.dim, config.head_dim, device, dtype)
    block = made(lambda: ZImageBlock(config, attend), tracing)
    tokens, factors, owner = tracing.tokens(_ROWS), tracing.factors(FACTORS), tracing.indices(_ROWS)
    start = (tokens, factors, owner, tracing.rotation(_ROWS))
    return {
        "start": BlockHalf(_Start(block), block.start_weights, start),
        "end": BlockHalf(_End(block), block.end_weights, (tokens, tokens, factors, owner)),
    }


def use_compiled(blocks: Iterable[ZImageBlock], compiled: Mapping[str, Compiled]) -> None:
    """Have blocks run by compiled halves, which are named as those of `block_halves`."""
    for block in blocks:
        block.compiled = _CompiledBlock(block, compiled)


class _CompiledBlock:
    def __init__(self, block: ZImageBlock, compiled: Mapping[str, Compiled]) -> None:
        self._attend = block.attend
        self._start = partial(compiled["start"], weights_of(block, block.start_weights))
        self._end = partial(compiled["end"], weights_of(block, block.end_weights))

    def __call__(self, x: Tensor, factors: Tensor, row: Row) -> Tensor:
        factors = several(factors)
        [qkv] = self._start(x, factors, row.owner, torch.view_as_real(row.rotation))
        attended = self._attend(qkv, row.segments).flatten(1)
        [x] = self._end(x, attended, factors, row.owner)
        return x
