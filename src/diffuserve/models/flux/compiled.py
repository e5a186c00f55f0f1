"""Halves of FLUX.1's blocks for the compiler, and blocks that run the compiled halves."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor, nn

from diffuserve.models.compiled.halves import BlockHalf, CompilableBlocks, Compiled, weights_of
from diffuserve.models.flux.config import FluxConfig
from diffuserve.models.flux.modulation import FACTORS, mods_of_tokens
from diffuserve.models.flux.packing import PackedLayout
from diffuserve.models.flux.transformer import DoubleBlock, FluxTransformer, SingleBlock
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.models.machine.devices import default_dtype
from diffuserve.models.weights.loading import checkpoint_dtype

_QKV = ("attn.to_qkv.", "attn.add_qkv_proj.", "attn.norm_")
_DOUBLE_END = ("attn.to_out.", "attn.to_add_out.", "ff.", "ff_context.")
_SINGLE_END = ("proj_mlp.", "proj_out.")
HALVES = ("double_start", "double_end", "single_start", "single_end")
_TEXT, _IMAGE, _SEQUENCES = 24, 40, 2  # rows to trace with


class _DoubleStart(nn.Module):
    """A double block until attention."""

    def __init__(self, block: DoubleBlock) -> None:
        super().__init__()
        self.attn = block.attn

    def forward(  # noqa: PLR0913 (an exported module has tensors for arguments)
        self,
        image: Float[Tensor, "image d"],
        text: Float[Tensor, "text d"],
        factors: Float[Tensor, "seq six d"],
        context_factors: Float[Tensor, "seq six d"],
        image_owner: Int[Tensor, "image"],
        text_owner: Int[Tensor, "text"],
        image_at: Int[Tensor, "image"],
        text_at: Int[Tensor, "text"],
        rotation: Float32[Tensor, "image half 2"],
    ) -> tuple[Float[Tensor, "joint 3 heads dim"]]:
        image_mod, _ = mods_of_tokens(factors, image_owner)
        text_mod, _ = mods_of_tokens(context_factors, text_owner)
        image_qkv = self.attn.raw_image_qkv(image_mod.normalize(image), None).prepared(rotation)
        text_qkv = self.attn.raw_text_qkv(text_mod.normalize(text)).prepared(None)
        joint = text_qkv.new_empty(image.shape[0] + text.shape[0], *text_qkv.shape[1:])
        return (joint.index_copy(0, text_at, text_qkv).index_copy(0, image_at, image_qkv),)


class _DoubleEnd(nn.Module):
    """A double block from attention on."""

    def __init__(self, block: DoubleBlock) -> None:
        super().__init__()
        self._block = (block,)
        self.attn, self.ff, self.ff_context = block.attn, block.ff, block.ff_context

    def forward(  # noqa: PLR0913 (an exported module has tensors for arguments)
        self,
        image: Float[Tensor, "image d"],
        text: Float[Tensor, "text d"],
        attended: Float[Tensor, "joint d"],
        factors: Float[Tensor, "seq six d"],
        context_factors: Float[Tensor, "seq six d"],
        image_owner: Int[Tensor, "image"],
        text_owner: Int[Tensor, "text"],
        image_at: Int[Tensor, "image"],
        text_at: Int[Tensor, "text"],
    ) -> tuple[Float[Tensor, "image d"], Float[Tensor, "text d"]]:
        [block] = self._block
        image_mods = mods_of_tokens(factors, image_owner)
        text_mods = mods_of_tokens(context_factors, text_owner)
        return (
            block.finish_image(image, attended.index_select(0, image_at), image_mods),
            block.finish_text(text, attended.index_select(0, text_at), text_mods),
        )


class _SingleStart(nn.Module):
    """A single block until attention."""

    def __init__(self, block: SingleBlock) -> None:
        super().__init__()
        self.attn = block.attn

    def forward(
        self,
        joint: Float[Tensor, "joint d"],
        factors: Float[Tensor, "seq three d"],
        owner: Int[Tensor, "joint"],
        rotation: Float32[Tensor, "joint half 2"],
    ) -> tuple[Float[Tensor, "joint 3 heads dim"]]:
        [mod] = mods_of_tokens(factors, owner)
        return (self.attn.raw_qkv(mod.normalize(joint), None).prepared(rotation),)


class _SingleEnd(nn.Module):
    """A single block from attention on; it computes the norm again, which costs less than keeping it."""

    def __init__(self, block: SingleBlock) -> None:
        super().__init__()
        self._block = (block,)
        self.proj_mlp, self.proj_out = block.proj_mlp, block.proj_out

    def forward(
        self,
        joint: Float[Tensor, "joint d"],
        attended: Float[Tensor, "joint d"],
        factors: Float[Tensor, "seq three d"],
        owner: Int[Tensor, "joint"],
    ) -> tuple[Float[Tensor, "joint d"]]:
        [block], [mod] = self._block, mods_of_tokens(factors, owner)
        return (block.finish(joint, mod.normalize(joint), attended, mod),)


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
    with torch.device(device):
        double, single = DoubleBlock(config, attention), SingleBlock(config, attention)
    for block in (double, single):
        block.to(dtype).requires_grad_(False)
    rows = _Rows(config, device, dtype)
    image, text, joint = rows.tokens(_IMAGE), rows.tokens(_TEXT), rows.tokens(_IMAGE + _TEXT)
    six, three = rows.factors(2 * len(FACTORS)), rows.factors(len(FACTORS))
    places = (rows.indices(_IMAGE), rows.indices(_TEXT))
    owners = (rows.indices(_IMAGE), rows.indices(_TEXT))
    joint_owner = rows.indices(_IMAGE + _TEXT)
    return {
        "double_start": BlockHalf(
            _DoubleStart(double),
            _QKV,
            (image, text, six, six, *owners, *places, rows.rotation(_IMAGE)),
        ),
        "double_end": BlockHalf(
            _DoubleEnd(double), _DOUBLE_END, (image, text, joint, six, six, *owners, *places)
        ),
        "single_start": BlockHalf(
            _SingleStart(single), _QKV, (joint, three, joint_owner, rows.rotation(_IMAGE + _TEXT))
        ),
        "single_end": BlockHalf(_SingleEnd(single), _SINGLE_END, (joint, joint, three, joint_owner)),
    }


@dataclass(frozen=True)
class _Rows:
    """Makes the tensors that halves are traced with; their values do not matter."""

    config: FluxConfig
    device: torch.device
    dtype: torch.dtype

    def tokens(self, rows: int) -> Tensor:
        return torch.zeros(rows, self.config.dim, device=self.device, dtype=self.dtype)

    def factors(self, number: int) -> Tensor:
        return torch.zeros(_SEQUENCES, number, self.config.dim, device=self.device, dtype=self.dtype)

    def indices(self, rows: int) -> Tensor:
        return torch.zeros(rows, device=self.device, dtype=torch.int64)

    def rotation(self, rows: int) -> Tensor:
        return torch.zeros(rows, self.config.attention_head_dim // 2, 2, device=self.device)


def use_compiled(transformer: FluxTransformer, halves: Mapping[str, Compiled]) -> None:
    """Have the blocks run by the compiled halves, which are named as those of `flux_halves`."""
    for block in transformer.transformer_blocks:
        assert isinstance(block, DoubleBlock)
        block.compiled = _CompiledDouble(block, halves["double_start"], halves["double_end"])
    for block in transformer.single_transformer_blocks:
        assert isinstance(block, SingleBlock)
        block.compiled = _CompiledSingle(block, halves["single_start"], halves["single_end"])


class _CompiledDouble:
    def __init__(self, block: DoubleBlock, start: Compiled, end: Compiled) -> None:
        self._attention = block.attention
        self._start = partial(start, weights_of(block, _QKV))
        self._end = partial(end, weights_of(block, _DOUBLE_END))

    def __call__(
        self, image: Tensor, text: Tensor, factors: Tensor, context_factors: Tensor, layout: PackedLayout
    ) -> tuple[Tensor, Tensor]:
        mods = (_several(factors), _several(context_factors))
        places = (layout.image_owner, layout.text_owner, layout.image_at, layout.text_at)
        [qkv] = self._start(image, text, *mods, *places, torch.view_as_real(layout.image_rotation))
        attended = self._attention(qkv, layout.segments).flatten(1)
        image, text = self._end(image, text, attended, *mods, *places)
        return image, text


class _CompiledSingle:
    def __init__(self, block: SingleBlock, start: Compiled, end: Compiled) -> None:
        self._attention = block.attention
        self._start = partial(start, weights_of(block, _QKV))
        self._end = partial(end, weights_of(block, _SINGLE_END))

    def __call__(self, joint: Tensor, factors: Tensor, layout: PackedLayout) -> Tensor:
        mods, owner = _several(factors), layout.joint_owner
        [qkv] = self._start(joint, mods, owner, torch.view_as_real(layout.joint_rotation))
        attended = self._attention(qkv, layout.segments).flatten(1)
        [joint] = self._end(joint, attended, mods, owner)
        return joint


def _several(factors: Tensor) -> Tensor:
    """Return the factors with at least two rows: compilers treat a size of 1 as a constant."""
    return factors if len(factors) > 1 else factors.expand(2, -1, -1)
