"""Loads weights from safetensors files directly to the memory in which they are used."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.dtypes import SAFETENSORS_DTYPES
from diffuserve.models.folders.folder import first_line
from diffuserve.models.layers.quantized.quantization import QuantizedWeight, quantize_weight
from diffuserve.models.layers.quantized.quantized_linear import QuantizedLinear
from diffuserve.models.layers.tensor_parallel import RowLinear, TensorShard
from diffuserve.models.weights.device_reader import ByteRange, bytes_of, read_to_device
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.part_reader import read_part
from diffuserve.models.weights.prepared import PreparedPart, describe_part
from diffuserve.models.weights.stored_groups import adopt_groups
from diffuserve.models.weights.stored_quantization import StoredWeight, is_companion, stored_weights
from diffuserve.models.weights.stored_tensors import StoredTensor, stored_tensors

_DTYPES: dict[str, torch.dtype] = {code: getattr(torch, name) for code, name in SAFETENSORS_DTYPES.items()}


@dataclass(frozen=True)
class Placement:
    """The place of a checkpoint's tensor: part `part` of `num_parts` equal row blocks of `parameter`.

    `dtype` is set if it differs from that of the other tensors. A convolution whose kernel sees each input
    once fits a linear layer over flattened patches; `patch` are the sides of its kernel. If ranks shard the
    parameter, this rank's parameter holds its `share` of the tensor, and only that is read.
    """

    parameter: str
    part: int = 0
    num_parts: int = 1
    dtype: torch.dtype | None = None
    patch: tuple[int, ...] = (1, 1)
    share: TensorShard | None = None


def tensor_names(files: Iterable[Path]) -> set[str]:
    """Return the names of all tensors of a checkpoint."""
    names: set[str] = set()
    for file in files:
        with safe_open(file, framework="pt") as reader:
            names.update(reader.keys())
    return names


def checkpoint_dtype(files: Sequence[Path]) -> torch.dtype:
    """Return the dtype of most numbers, which stands for all; float32 if none is known.

    Raise `InvalidModel` if the first file holds no tensor. Files of one component are of one kind.
    """
    sizes: dict[torch.dtype, int] = {}
    with safe_open(files[0], framework="pt") as reader:
        names = list(reader.keys())
        if not names:
            raise InvalidModel(f"{files[0]}: holds no tensors")
        for tensor in (reader.get_slice(name) for name in names if not is_companion(name)):
            if (dtype := _DTYPES.get(tensor.get_dtype())) is not None:
                sizes[dtype] = sizes.get(dtype, 0) + prod(tensor.get_shape())
    return max(sizes, key=lambda dtype: sizes[dtype], default=torch.float32)


def load_weights(
    module: nn.Module,
    files: Iterable[Path],
    placements: Mapping[str, Placement],
    plan: LoadPlan,
    ignored_prefixes: tuple[str, ...] = (),
    memory_format: torch.memory_format = torch.contiguous_format,
) -> None:
    """Fill a module that was built on the meta device; `placements` are by the checkpoint's names.

    One that is not wanted stays as it is, and nothing is read. Tensors whose names begin
    with one of `ignored_prefixes` belong to a part that is not loaded. The others are
    memory-mapped; where dtype and device already fit they stay so and cost no copy. Weights of quantized
    layers are quantized one by one, unless they are stored so; stored ones of other layers are unpacked.
    They come from the plan's copy, if that has them. Weights of four dimensions have the
    `memory_format`. Raise `InvalidModel` for tensors that are missing, unexpected or of another shape.
    """
    if not plan.is_wanted:
        return
    files = list(files)
    adopt_groups(module, files, {name: placement.parameter for name, placement in placements.items()})
    source = torch.device("cpu") if plan.stay_on_host else plan.device
    checkpoint = _Checkpoint(
        files, placements, plan.chosen_dtype, ignored_prefixes, memory_format, plan.on_read
    )
    if plan.copy is None:
        checkpoint.fill(module, source)
    elif not plan.copy.fill(module, part := checkpoint.part_of(module), source):
        checkpoint.fill(module, source)
        plan.copy.keep(module, part, source)
    for layer in module.modules():
        if isinstance(layer, QuantizedLinear):
            layer.prepare(plan.device)
        elif isinstance(layer, RowLinear):
            layer.prepare()


@dataclass(frozen=True)
class _Checkpoint:
    """The files of a module's weights, and how they are loaded: see `load_weights`."""

    files: Sequence[Path]
    placements: Mapping[str, Placement]
    dtype: torch.dtype
    ignored_prefixes: tuple[str, ...]
    memory_format: torch.memory_format
    on_read: Callable[[int], None] | None

    @cached_property
    def is_sharded(self) -> bool:
        """Return whether some of the weights are sharded over ranks."""
        return any(placement.share is not None for placement in self.placements.values())

    def part_of(self, module: nn.Module) -> PreparedPart:
        """Return the key of these weights in this module, which identifies them in prepared copies."""
        conditions = (
            self.dtype,
            [(name, self.placements[name]) for name in sorted(self.placements)],
            self.ignored_prefixes,
            self.memory_format,
        )
        return describe_part(module, self.files[0].parent.name, *conditions)

    def fill(self, module: nn.Module, device: torch.device) -> None:
        # Scales and zeros of a quantized weight are not weights of their own.
        missing = {name for name in self.placements if not is_companion(name)}
        spans: list[ByteRange] = []  # read together, in the end
        for file in self.files:
            with safe_open(file, framework="pt", device=str(device)) as reader:
                tensors = stored_tensors(file) if device.type == "cuda" or self.is_sharded else {}
                opened = _OpenFile(file, reader, tensors, device)
                for stored in stored_weights(reader.keys()):
                    if stored.name.startswith(self.ignored_prefixes):
                        continue
                    target = self._place(module, stored, opened)
                    if target is None:
                        self._put(module, stored, opened)
                    else:
                        share = self.placements[stored.name].share
                        spans += _spans(file, tensors[stored.tensor], target, share)
                    missing.discard(stored.name)
        if missing:
            names = ", ".join(sorted(missing)[:5])
            raise InvalidModel(f"{self.files[0].parent}: weights are incomplete; missing {names}")
        try:
            read_to_device(spans, device, self.on_read)
        except OSError as error:
            raise InvalidModel(f"{self.files[0].parent}: cannot be read ({error})") from error
        if self.memory_format is not torch.contiguous_format:
            module.to(memory_format=self.memory_format)  # type: ignore[call-overload]

    def _place(self, module: nn.Module, stored: StoredWeight, opened: "_OpenFile") -> Tensor | None:
        """Return the GPU memory of a parameter that takes a tensor unchanged; `None` for other tensors."""
        placement, tensor = self.placements.get(stored.name), opened.tensors.get(stored.tensor)
        if placement is None or tensor is None or stored.scale is not None or opened.device.type != "cuda":
            return None
        if placement.share is not None and placement.share.dim > 0:  # such a share has bytes of each row
            return None
        owner_name, _, attribute = placement.parameter.rpartition(".")
        owner, dtype = module.get_submodule(owner_name), placement.dtype or self.dtype
        if isinstance(owner, QuantizedLinear) and attribute == "weight":
            return None
        if _DTYPES.get(tensor.dtype) is not dtype or not _fits(owner, attribute, placement, tensor.shape):
            return None
        return bytes_of(_rows(owner, attribute, placement, dtype, opened.device))

    def _put(self, module: nn.Module, stored: StoredWeight, opened: "_OpenFile") -> None:
        origin = f"{opened.path}: {stored.name}"
        if stored.name not in self.placements:
            raise InvalidModel(f"{opened.path}: unexpected tensor {stored.name!r}")
        placement = self.placements[stored.name]
        if self.is_sharded:
            owner_name, _, attribute = placement.parameter.rpartition(".")
            shape = opened.tensors[stored.tensor].shape
            _check_shape(module.get_submodule(owner_name), attribute, placement, shape, origin)
            weight: Tensor | QuantizedWeight = opened.part(stored, placement.share)
            placement = replace(placement, share=None)
        else:
            weight = opened.weight(stored)
        _put(module, placement, weight, self.dtype, origin)
        if self.on_read is not None:
            self.on_read(weight.nbytes)


@dataclass(frozen=True)
class _OpenFile:
    """A checkpoint's file that safetensors has opened for a device; `tensors` has their offsets.

    Offsets are known only if some tensors are not read by safetensors.
    """

    path: Path
    reader: Any
    tensors: Mapping[str, StoredTensor]
    device: torch.device

    def weight(self, stored: StoredWeight) -> Tensor | QuantizedWeight:
        """Return a whole weight, memory-mapped on a CPU. Raise `InvalidModel`."""
        if stored.scale is None:
            return _floating(self._tensor(stored.tensor), stored.tensor, self.path)
        codes, scale = self._tensor(stored.tensor), self._tensor(stored.scale)
        zero = None if stored.zero is None else self._tensor(stored.zero)
        try:
            return QuantizedWeight.of(codes, scale, zero)
        except ValueError as error:
            raise self._unreadable(stored.tensor, error) from error

    def part(self, stored: StoredWeight, share: TensorShard | None) -> Tensor:
        """Return a rank's share of a weight, or all of it, reading little else. Raise `InvalidModel`."""
        assert stored.scale is None, "quantized weights are not cut"
        tensor = self.tensors[stored.tensor]
        if (dtype := _DTYPES.get(tensor.dtype)) is None:
            whole = _floating(self._tensor(stored.tensor), stored.tensor, self.path)
            return whole if share is None else share.of(whole)
        try:
            return read_part(self.path, tensor, dtype, share).to(self.device)
        except OSError as error:
            raise self._unreadable(stored.tensor, error) from error

    def _tensor(self, name: str) -> Tensor:
        try:
            tensor: Tensor = self.reader.get_tensor(name)
        except (SafetensorError, TypeError, ValueError) as error:  # a dtype that torch does not have, for one
            raise self._unreadable(name, error) from error
        return tensor

    def _unreadable(self, name: str, error: Exception) -> InvalidModel:
        return InvalidModel(f"{self.path}: {name} cannot be read ({first_line(error)})")


def _floating(tensor: Tensor, name: str, file: Path) -> Tensor:
    if not tensor.is_floating_point():
        raise InvalidModel(f"{file}: {name} holds {tensor.dtype}, not floating-point numbers")
    return tensor


def empty_embedding(num_embeddings: int, dim: int) -> nn.Embedding:
    """Return an embedding to be filled by `load_weights`.

    `nn.Embedding` draws its weights, which on the meta device imports torch's compiler: two seconds.
    """
    return nn.Embedding(num_embeddings, dim, _weight=torch.empty(num_embeddings, dim))


def num_parameters(module: nn.Module) -> int:
    """Return the number of scalars in the module's parameters."""
    packed = sum(layer.num_packed for layer in module.modules() if isinstance(layer, QuantizedLinear))
    return packed + sum(parameter.numel() for parameter in module.parameters())


def _put(
    module: nn.Module,
    placement: Placement,
    weight: Tensor | QuantizedWeight,
    dtype: torch.dtype,
    origin: str,
) -> None:
    owner_name, _, attribute = placement.parameter.rpartition(".")
    owner = module.get_submodule(owner_name)
    dtype = placement.dtype or dtype
    if isinstance(owner, QuantizedLinear) and attribute == "weight":
        owner.dtype = dtype
        _put_quantized(owner, placement, weight, origin)
    else:
        tensor = weight if isinstance(weight, Tensor) else weight.unpacked(dtype)
        _put_part(owner, attribute, placement, tensor, dtype, origin)


def _put_quantized(
    owner: QuantizedLinear, placement: Placement, weight: Tensor | QuantizedWeight, origin: str
) -> None:
    """Put codes, with their scales and zeros, into the same rows."""
    if isinstance(weight, Tensor):
        if weight.ndim != 2 or weight.shape[1] != owner.in_features:  # else groups may not come out even
            raise InvalidModel(f"{origin} has shape {tuple(weight.shape)}, expected (…, {owner.in_features})")
        weight = quantize_weight(weight, owner.kind, owner.group)
    elif (weight.kind, weight.group) != (owner.kind, owner.group):
        # Text encoders of others may be in numbers that ours are not in, and parts of one product in several.
        weight = quantize_weight(weight.unpacked(torch.float32), owner.kind, owner.group)
    for name, part in weight.tensors.items():
        _put_part(owner, f"weight{name}", placement, part, part.dtype, origin)


def _put_part(
    owner: nn.Module, attribute: str, placement: Placement, tensor: Tensor, dtype: torch.dtype, origin: str
) -> None:
    _check_shape(owner, attribute, placement, tuple(tensor.shape), origin)
    if placement.num_parts == 1:
        tensor = tensor.view(_expected(owner, attribute, placement))
        setattr(owner, attribute, nn.Parameter(tensor.to(dtype), requires_grad=False))
    else:
        rows = _rows(owner, attribute, placement, dtype, tensor.device)
        rows.copy_(tensor.view(rows.shape))


def _check_shape(
    owner: nn.Module, attribute: str, placement: Placement, shape: tuple[int, ...], origin: str
) -> None:
    """Raise `InvalidModel` for a tensor, of a file's `origin`, whose shape has no place."""
    if not _fits(owner, attribute, placement, shape):
        expected = _expected(owner, attribute, placement)
        raise InvalidModel(f"{origin} has shape {shape}, expected {expected}")


def _expected(owner: nn.Module, attribute: str, placement: Placement) -> tuple[int, ...]:
    """Return the shape of the tensor for a placement's part of its parameter."""
    shape: torch.Size = getattr(owner, attribute).shape
    own = (shape[0] // placement.num_parts, *shape[1:])
    return own if placement.share is None else placement.share.whole_shape(own)


def _fits(owner: nn.Module, attribute: str, placement: Placement, shape: tuple[int, ...]) -> bool:
    """Return whether a tensor of this shape has a place; the kernel of a convolution over patches may."""
    expected = _expected(owner, attribute, placement)
    if len(expected) == 2 and shape[2:] == placement.patch:
        shape = (shape[0], prod(shape[1:]))
    return shape == expected


def _rows(
    owner: nn.Module, attribute: str, placement: Placement, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return a placement's part of its parameter, allocating the parameter for the first part."""
    target: nn.Parameter = getattr(owner, attribute)
    if target.is_meta:
        target = nn.Parameter(torch.empty(target.shape, dtype=dtype, device=device), requires_grad=False)
        setattr(owner, attribute, target)
    rows = target.shape[0] // placement.num_parts
    return target.data[placement.part * rows : (placement.part + 1) * rows]


def _spans(
    file: Path, tensor: StoredTensor, target: Tensor, share: TensorShard | None
) -> Iterator[ByteRange]:
    """Yield the bytes of a tensor that go to `target`, its rows that are in `share`."""
    if share is None:
        yield ByteRange(file, tensor.offset, target)
        return
    row_bytes = tensor.num_bytes // share.whole
    parts = target.split([(end - start) * row_bytes for start, end in share.ranges])
    for (start, _), part in zip(share.ranges, parts, strict=True):
        yield ByteRange(file, tensor.offset + start * row_bytes, part)
