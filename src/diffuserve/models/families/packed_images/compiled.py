"""Halves of blocks for the compiler, of those with two streams and with one, and blocks that run them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor, nn

from diffuserve.models.compiled.halves import BlockHalf, Compiled, weights_of
from diffuserve.models.layers.joint.double_stream import DoubleStream
from diffuserve.models.layers.joint.modulation import FACTORS, mods_of_tokens
from diffuserve.models.layers.joint.packing import PackedLayout
from diffuserve.models.layers.joint.single_stream import SingleStream

_QKV = ("attn.to_qkv.", "attn.add_qkv_proj.", "attn.norm_")
_TEXT, _IMAGE, _SEQUENCES = 24, 40, 2  # rows to trace with
Block = TypeVar("Block", bound=nn.Module)
DOUBLE_HALVES = ("double_start", "double_end")
SINGLE_HALVES = ("single_start", "single_end")


class _DoubleStart(nn.Module):
    """A block with two streams until attention; text without rotation is given none."""

    def __init__(self, block: DoubleStream) -> None:
        super().__init__()
        self.attn = block.attn

    def forward(  # noqa: PLR0913 (an exported module has tensors for arguments)
        self,
        image: Float[Tensor, "image d"],
        text: Float[Tensor, "text d"],
        factors: Float[Tensor, "rows six d"],
        text_factors: Float[Tensor, "text_rows six d"],
        image_owner: Int[Tensor, "image"],
        text_owner: Int[Tensor, "text"],
        image_at: Int[Tensor, "image"],
        text_at: Int[Tensor, "text"],
        rotation: Float32[Tensor, "image half 2"],
        text_rotation: Float32[Tensor, "text half 2"] | None = None,
    ) -> tuple[Float[Tensor, "joint 3 heads dim"]]:
        image_mod, _ = mods_of_tokens(factors, image_owner)
        text_mod, _ = mods_of_tokens(text_factors, text_owner)
        image_qkv = self.attn.raw_image_qkv(image_mod.normalize(image), None).prepared(rotation)
        text_qkv = self.attn.raw_text_qkv(text_mod.normalize(text), None).prepared(text_rotation)
        joint = text_qkv.new_empty(image.shape[0] + text.shape[0], *text_qkv.shape[1:])
        return (joint.index_copy(0, text_at, text_qkv).index_copy(0, image_at, image_qkv),)


class _DoubleEnd(nn.Module):
    """A block with two streams from attention on."""

    def __init__(self, block: DoubleStream) -> None:
        super().__init__()
        self._block = (block,)
        self.attn = block.attn
        for name in block.networks:
            self.register_module(name, block.get_submodule(name))

    def forward(  # noqa: PLR0913 (an exported module has tensors for arguments)
        self,
        image: Float[Tensor, "image d"],
        text: Float[Tensor, "text d"],
        attended: Float[Tensor, "joint d"],
        factors: Float[Tensor, "rows six d"],
        text_factors: Float[Tensor, "text_rows six d"],
        image_owner: Int[Tensor, "image"],
        text_owner: Int[Tensor, "text"],
        image_at: Int[Tensor, "image"],
        text_at: Int[Tensor, "text"],
    ) -> tuple[Float[Tensor, "image d"], Float[Tensor, "text d"]]:
        [block] = self._block
        image_mods = mods_of_tokens(factors, image_owner)
        text_mods = mods_of_tokens(text_factors, text_owner)
        return (
            block.finish_image(image, attended.index_select(0, image_at), image_mods),
            block.finish_text(text, attended.index_select(0, text_at), text_mods),
        )


class HalfOf(nn.Module, Generic[Block]):
    """A half of a block, which has the block's submodules under their names."""

    def __init__(self, block: Block) -> None:
        super().__init__()
        self._block = (block,)  # no submodule
        for name, module in block.named_children():
            self.register_module(name, module)


class _SingleStart(HalfOf[SingleStream]):
    """A block with a single stream until attention, and its feed-forward network if that begins there."""

    def forward(
        self,
        joint: Float[Tensor, "joint d"],
        factors: Float[Tensor, "rows three d"],
        owner: Int[Tensor, "joint"],
        rotation: Float32[Tensor, "joint half 2"],
    ) -> tuple[Tensor, ...]:
        [block], [mod] = self._block, mods_of_tokens(factors, owner)
        raw, rest = block.start(mod.normalize(joint), None)
        return (raw.prepared(rotation), *([rest] if block.starts_both else []))


class _SingleEnd(HalfOf[SingleStream]):
    """A single-stream block from attention on.

    A feed-forward network that has not begun reads normalized tokens: computing the norm again costs less
    than keeping it.
    """

    def forward(
        self,
        joint: Float[Tensor, "joint d"],
        attended: Float[Tensor, "joint own_d"],
        factors: Float[Tensor, "rows three d"],
        owner: Int[Tensor, "joint"],
        rest: Float[Tensor, "joint features"] | None = None,
    ) -> tuple[Float[Tensor, "joint d"]]:
        [block], [mod] = self._block, mods_of_tokens(factors, owner)
        return (block.finish(joint, mod.normalize(joint) if rest is None else rest, attended, mod),)


@dataclass(frozen=True)
class Tracing:
    """Makes the tensors that halves are traced with; their values do not matter."""

    dim: int
    head_dim: int
    device: torch.device
    dtype: torch.dtype

    def tokens(self, rows: int) -> Tensor:
        return torch.zeros(rows, self.dim, device=self.device, dtype=self.dtype)

    def factors(self, number: int) -> Tensor:
        return torch.zeros(_SEQUENCES, number, self.dim, device=self.device, dtype=self.dtype)

    def indices(self, rows: int) -> Tensor:
        return torch.zeros(rows, device=self.device, dtype=torch.int64)

    def rotation(self, rows: int) -> Tensor:
        return torch.zeros(rows, self.head_dim // 2, 2, device=self.device)


def made(make: Callable[[], Block], tracing: Tracing) -> Block:
    """Return a block with placeholder weights."""
    with torch.device(tracing.device):
        block = make()
    return block.to(tracing.dtype).requires_grad_(False)


def double_halves(block: DoubleStream, tracing: Tracing, rotates_text: bool) -> Mapping[str, BlockHalf]:
    """Return the halves of a block with two streams."""
    image, text, joint = tracing.tokens(_IMAGE), tracing.tokens(_TEXT), tracing.tokens(_IMAGE + _TEXT)
    six = tracing.factors(2 * len(FACTORS))
    indices = [tracing.indices(rows) for rows in (_IMAGE, _TEXT, _IMAGE, _TEXT)]
    turns = [tracing.rotation(_IMAGE), *([tracing.rotation(_TEXT)] if rotates_text else [])]
    return {
        "double_start": BlockHalf(_DoubleStart(block), _QKV, (image, text, six, six, *indices, *turns)),
        "double_end": BlockHalf(
            _DoubleEnd(block), _double_end(block), (image, text, joint, six, six, *indices)
        ),
    }


def single_halves(block: SingleStream, tracing: Tracing) -> Mapping[str, BlockHalf]:
    """Return the halves of a block with a single stream."""
    joint, three = tracing.tokens(_IMAGE + _TEXT), tracing.factors(len(FACTORS))
    owner, rotation = tracing.indices(_IMAGE + _TEXT), tracing.rotation(_IMAGE + _TEXT)
    start = _SingleStart(block)
    rest = start(joint, three, owner, rotation)[1:]
    return {
        "single_start": BlockHalf(start, block.start_weights, (joint, three, owner, rotation)),
        "single_end": BlockHalf(_SingleEnd(block), block.end_weights, (joint, joint, three, owner, *rest)),
    }


def use_compiled(
    double: Iterable[nn.Module], single: Iterable[nn.Module], halves: Mapping[str, Compiled]
) -> None:
    """Have blocks run by compiled halves, which are named as those of `double_halves` and `single_halves`."""
    for block in double:
        assert isinstance(block, DoubleStream)
        block.compiled = _CompiledDouble(block, halves)
    for block in single:
        assert isinstance(block, SingleStream)
        block.compiled = _CompiledSingle(block, halves)


def _double_end(block: DoubleStream) -> tuple[str, ...]:
    """Return the prefixes of the weights after attention."""
    return ("attn.to_out.", "attn.to_add_out.", *(f"{name}." for name in block.networks))


class _CompiledDouble:
    def __init__(self, block: DoubleStream, halves: Mapping[str, Compiled]) -> None:
        self._attention = block.attention
        self._start = partial(halves["double_start"], weights_of(block, _QKV))
        self._end = partial(halves["double_end"], weights_of(block, _double_end(block)))

    def __call__(
        self, image: Tensor, text: Tensor, factors: Tensor, text_factors: Tensor, layout: PackedLayout
    ) -> tuple[Tensor, Tensor]:
        mods = (several(factors), several(text_factors))
        places = (layout.image_owner, layout.text_owner, layout.image_at, layout.text_at)
        turns = [each for each in (layout.image_rotation, layout.text_rotation) if each is not None]
        [qkv] = self._start(image, text, *mods, *places, *map(torch.view_as_real, turns))
        attended = self._attention(qkv, layout.segments).flatten(1)
        image, text = self._end(image, text, attended, *mods, *places)
        return image, text


class _CompiledSingle:
    def __init__(self, block: SingleStream, halves: Mapping[str, Compiled]) -> None:
        self._attention = block.attention
        self._start = partial(halves["single_start"], weights_of(block, block.start_weights))
        self._end = partial(halves["single_end"], weights_of(block, block.end_weights))

    def __call__(self, joint: Tensor, factors: Tensor, layout: PackedLayout) -> Tensor:
        mods, owner = several(factors), layout.joint_owner
        qkv, *rest = self._start(joint, mods, owner, torch.view_as_real(layout.joint_rotation))
        attended = self._attention(qkv, layout.segments).flatten(1)
        [joint] = self._end(joint, attended, mods, owner, *rest)
        return joint


def several(factors: Tensor) -> Tensor:
    """Return the factors with at least two rows: compilers treat a size of 1 as a constant."""
    return factors if len(factors) > 1 else factors.expand(2, -1, -1)
