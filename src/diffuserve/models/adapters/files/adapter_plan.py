"""Plans which tensors of an adapter file change which layer, by its header. Importing this loads no torch."""

import math
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

    `shape` is that of the weight that the pair changes: outputs, inputs, and a kernel's sides.
    """

    down: str
    up: str
    alpha: str | None
    target: Target
    rank: int
    shape: Shape


@dataclass(frozen=True)
class AdapterPlan:
    """What an adapter changes: pairs by component and by layer, and tensors that are left out.

    `ignored` are those that diffusers ignores too, or that say again what others say.
    """

    file: CheckpointFile = field(repr=False)
    family: str
    pairs: Mapping[str, Mapping[str, PlannedPair]]
    ignored: tuple[str, ...]
    scales: Mapping[str, StatedScale]

    @property
    def layout(self) -> AdapterLayout:
        return LAYOUTS[self.family]

    @property
    def rank(self) -> int:
        """The largest rank of a layer."""
        return max(pair.rank for layers in self.pairs.values() for pair in layers.values())

    @property
    def num_values(self) -> int:
        """The numbers of all matrices, as the layers have them: those that share one have it each."""
        pairs = (pair for layers in self.pairs.values() for pair in layers.values())
        return sum(pair.rank * (pair.shape[0] + math.prod(pair.shape[1:])) for pair in pairs)


def plan_adapter(file: CheckpointFile, family: str) -> AdapterPlan:
    """Return what an adapter file changes in a family's models, one of `LAYOUTS`.

    Raise `InvalidAdapter` with the name of a tensor that cannot be applied.
    """
    layout = LAYOUTS[family]
    modules, dropped = _modules(file, layout)
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
    return AdapterPlan(file, family, dict(pairs), tuple(sorted(dropped)), stated_scales(file))


_Parts = dict[TensorRole, str]


class _Sorted(NamedTuple):
    modules: dict[str, _Parts]
    dropped: list[str]


def _modules(file: CheckpointFile, layout: AdapterLayout) -> _Sorted:
    """Return the names of tensors by layer and role, and those that are dropped."""
    modules, dropped = defaultdict[str, _Parts](dict), list[str]()
    for name in file.tensors:
        part = part_of(name)
        if (method := other_method(name)) is not None:
            raise InvalidAdapter(f"{file.path}: {name} is {method}, which cannot be applied; {_MERGE}")
        if layout.drops(name):
            dropped.append(name)
        elif part is None:
            raise InvalidAdapter(f"{file.path}: {name} is no part of a LoRA that is known")
        elif part.role in _UNSUPPORTED:
            raise InvalidAdapter(
                f"{file.path}: {name} {_UNSUPPORTED[part.role]}, which is not applied; {_MERGE}"
            )
        else:
            modules[part.module][part.role] = name
    return _Sorted(modules, dropped)


_MERGE = "merge it into its model with the tool that made it"
_UNSUPPORTED = {TensorRole.BIAS: "adds to a bias", TensorRole.CHANGE: "changes a whole weight"}


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
    for role in (TensorRole.DOWN, TensorRole.UP):
        if role not in parts:
            raise InvalidAdapter(f"{file.path}: {module} has no {role.name.lower()} matrix")
    down, up, alpha = parts[TensorRole.DOWN], parts[TensorRole.UP], parts.get(TensorRole.ALPHA)
    rank = _rank(file, down, up)
    if alpha is not None and file.tensors[alpha].shape not in ((), (1,)):
        raise InvalidAdapter(
            f"{file.path}: {alpha} has the shape {file.tensors[alpha].shape}; it is one number"
        )
    try:
        rows = target.rows(file.tensors[up].shape[0])
    except ValueError as error:
        raise InvalidAdapter(f"{file.path}: {up}: {error}") from error
    outputs = sum(piece.stop - piece.start for piece in rows)
    return PlannedPair(down, up, alpha, target, rank, (outputs, *file.tensors[down].shape[1:]))


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
