"""Plans which tensors of an adapter file change which layer, by its header. Importing this loads no torch."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from diffuserve.domain.errors import InvalidAdapter
from diffuserve.models.adapters.files.adapter_file import MAX_RANK
from diffuserve.models.adapters.files.layer_table import Target
from diffuserve.models.adapters.files.layouts import LAYOUTS, AdapterLayout, Located
from diffuserve.models.adapters.files.stated_scales import StatedScale, stated_scales
from diffuserve.models.adapters.files.tensor_names import TensorRole, other_method, part_of
from diffuserve.models.checkpoint_files.checkpoint_file import CheckpointFile

Shape = tuple[int, ...]
_MATRIX, _KERNEL = 2, 4


@dataclass(frozen=True)
class PlannedPair:
    """The tensors of a layer's change, by their names in the file; `target` has its rows of `up`.

    Without `up` it is the identity. Only a `bias` that `is_scaled` counts as alpha says, like the matrices.
    `shape` is that of the weight that the pair changes: outputs, inputs, and a kernel's sides.
    """

    down: str
    up: str | None
    alpha: str | None
    target: Target
    rank: int
    shape: Shape
    bias: str | None = None
    is_scaled: bool = True


@dataclass(frozen=True)
class AdapterPlan:
    """What an adapter changes: pairs by component and by layer, and tensors that are left out.

    `ignored` are those that diffusers ignores too, or that say again what others say.
    """

    file: CheckpointFile = field(repr=False)
    family: str
    layout: AdapterLayout = field(repr=False)
    pairs: Mapping[str, Mapping[str, PlannedPair]]
    ignored: tuple[str, ...]
    scales: Mapping[str, StatedScale]

    @property
    def rank(self) -> int:
        """The largest rank of a layer."""
        return max(pair.rank for layers in self.pairs.values() for pair in layers.values())

    @property
    def num_values(self) -> int:
        """The numbers of all matrices as layers have them: layers that share one have it each."""
        pairs = (pair for layers in self.pairs.values() for pair in layers.values())
        return sum(pair.rank * (pair.shape[0] + math.prod(pair.shape[1:])) for pair in pairs)


def plan_adapter(file: CheckpointFile, family: str) -> AdapterPlan:
    """Return what an adapter file changes in a family's models, one of `LAYOUTS`.

    Raise `InvalidAdapter` with the name of a tensor that cannot be applied.
    """
    return plan_in_layout(file, family, LAYOUTS[family])


def check_method(file: CheckpointFile) -> None:
    """Raise `InvalidAdapter` for an adapter of another method, by its first tensor that no LoRA has."""
    for name in file.tensors:
        if (method := other_method(name)) is not None:
            raise InvalidAdapter(f"{file.path}: {name} is {method}, and LoRA alone is applied; {_MERGE}")


def plan_in_layout(file: CheckpointFile, family: str, layout: AdapterLayout) -> AdapterPlan:
    """Return what an adapter file changes in models whose layers it names as a layout does.

    Raise `InvalidAdapter` with the name of a tensor that cannot be applied.
    """
    modules, dropped = _modules(file, layout)
    for module in [module for module, parts in modules.items() if _is_lone_bias(layout, module, parts)]:
        dropped += modules.pop(module).values()
    located = {module: _locate(file, layout, module, parts) for module, parts in modules.items()}
    repeated = set(_repeated(located))
    pairs = defaultdict[str, dict[str, PlannedPair]](dict)
    for module, (component, found) in located.items():
        if module in repeated:
            dropped += modules[module].values()
            continue
        for target in found.targets:
            if target.layer in pairs[component]:
                raise InvalidAdapter(f"{file.path}: {module}: {target.layer} is changed twice")
            pairs[component][target.layer] = _pair(file, module, modules[module], target)
    if not pairs:
        raise InvalidAdapter(f"{file.path}: changes no layer of {layout.title}")
    return AdapterPlan(file, family, layout, dict(pairs), tuple(sorted(dropped)), stated_scales(file))


_Parts = dict[TensorRole, str]


class _Sorted(NamedTuple):
    modules: dict[str, _Parts]
    dropped: list[str]


def _modules(file: CheckpointFile, layout: AdapterLayout) -> _Sorted:
    """Return the names of tensors by layer and role, and those that are dropped."""
    check_method(file)
    modules, dropped = defaultdict[str, _Parts](dict), list[str]()
    for name in file.tensors:
        part = part_of(name)
        if layout.drops(name):
            dropped.append(name)
        elif part is None:
            raise InvalidAdapter(f"{file.path}: {name} is no part of a LoRA that is known")
        elif part.role in _CHANGES and not (layout.takes_changes and part.role in _TAKEN):
            raise InvalidAdapter(f"{file.path}: {name} {_CHANGES[part.role]}, which is not applied; {_MERGE}")
        else:
            modules[part.module][part.role] = name
    return _Sorted(modules, dropped)


_MERGE = "merge it into its model with the tool that made it"
_CHANGES = {
    TensorRole.DOWN_BIAS: "adds to what is between two matrices",
    TensorRole.BIAS_CHANGE: "adds to a bias",
    TensorRole.CHANGE: "changes a whole weight",
}
_TAKEN = (TensorRole.BIAS_CHANGE, TensorRole.CHANGE)


def _is_lone_bias(layout: AdapterLayout, module: str, parts: _Parts) -> bool:
    """Return whether a layer has nothing but a bias, which diffusers leaves out."""
    return [*parts] == [TensorRole.BIAS_CHANGE] and bool(re.fullmatch(layout.dropped_alone, module))


def _locate(file: CheckpointFile, layout: AdapterLayout, module: str, parts: _Parts) -> Located:
    located = layout.locate(module)
    if located is None:
        name = next(iter(parts.values()))
        raise InvalidAdapter(f"{file.path}: {name}: {layout.title} has no such layer")
    return located


def _repeated(located: Mapping[str, Located]) -> Iterator[str]:
    """Yield layers under the authors' names that the file has under diffusers' names as well."""
    own = {
        (place.component, target.layer)
        for place in located.values()
        for target in place.found.targets
        if place.found.is_own
    }
    for module, (component, found) in located.items():
        if not found.is_own and all((component, target.layer) in own for target in found.targets):
            yield module


def _pair(file: CheckpointFile, module: str, parts: _Parts, target: Target) -> PlannedPair:
    down, up = _matrices(file, module, parts)
    alpha, bias = (
        parts.get(TensorRole.ALPHA),
        parts.get(TensorRole.UP_BIAS, parts.get(TensorRole.BIAS_CHANGE)),
    )
    rank = file.tensors[down].shape[0] if up is None else _rank(file, down, up)
    num_outputs = rank if up is None else file.tensors[up].shape[0]
    _check_shape(file, alpha, ((), (1,)), "it is one number")
    _check_shape(file, bias, ((num_outputs,),), f"its layer has {num_outputs:,} outputs")
    try:
        rows = target.rows(num_outputs)
    except ValueError as error:
        raise InvalidAdapter(f"{file.path}: {up or down}: {error}") from error
    shape = (sum(piece.stop - piece.start for piece in rows), *file.tensors[down].shape[1:])
    return PlannedPair(down, up, alpha, target, rank, shape, bias, TensorRole.UP_BIAS in parts)


def _check_shape(file: CheckpointFile, name: str | None, allowed: tuple[Shape, ...], remedy: str) -> None:
    if name is not None and file.tensors[name].shape not in allowed:
        raise InvalidAdapter(f"{file.path}: {name} has the shape {file.tensors[name].shape}; {remedy}")


def _matrices(file: CheckpointFile, module: str, parts: _Parts) -> tuple[str, str | None]:
    """Return the names of the two matrices; the second is the identity for a change of a whole weight."""
    change = parts.get(TensorRole.CHANGE)
    if change is not None and not {TensorRole.DOWN, TensorRole.UP} & {*parts}:
        _check_change(file, change)
        return change, None
    for role in (TensorRole.DOWN, TensorRole.UP):
        if role not in parts:
            raise InvalidAdapter(f"{file.path}: {module} has no {role.name.lower()} matrix")
    if change is not None:
        raise InvalidAdapter(f"{file.path}: {change} changes a weight that two matrices change too; {_MERGE}")
    return parts[TensorRole.DOWN], parts[TensorRole.UP]


def _check_change(file: CheckpointFile, change: str) -> None:
    shape = file.tensors[change].shape
    if len(shape) != _MATRIX or not 0 < shape[0] <= MAX_RANK or not shape[1]:
        raise InvalidAdapter(
            f"{file.path}: {change} has the shape {shape}, where matrices of 1 to {MAX_RANK:,} rows are read"
        )


def _rank(file: CheckpointFile, down: str, up: str) -> int:
    """Return the rank of two matrices, or of two kernels of which the second is 1 x 1."""
    first, second = file.tensors[down].shape, file.tensors[up].shape
    fits = len(first) == len(second) and len(first) in (_MATRIX, _KERNEL) and first[0] == second[1]
    if not fits or second[2:] not in ((), (1, 1)):
        raise InvalidAdapter(f"{file.path}: {down} {first} and {up} {second} are no pair")
    if not 0 < first[0] <= MAX_RANK or not all((*first, *second)):
        raise InvalidAdapter(
            f"{file.path}: {down} has the rank {first[0]:,}, where 1 to {MAX_RANK:,} are read"
        )
    return first[0]
