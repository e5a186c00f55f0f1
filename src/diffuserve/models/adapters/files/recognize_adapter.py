"""Recognizes which families an adapter file may be for, by its header. Importing this loads no torch."""

from diffuserve.domain.errors import InvalidAdapter
from diffuserve.models.adapters.files.adapter_plan import check_method, plan_adapter
from diffuserve.models.adapters.files.layouts import LAYOUTS, AdapterLayout
from diffuserve.models.adapters.files.tensor_names import part_of
from diffuserve.models.checkpoint_files.checkpoint_file import CheckpointFile


def recognize_adapter(file: CheckpointFile) -> tuple[str, ...]:
    """Return the families that have every layer which an adapter changes, by their names in `LAYOUTS`.

    Families share names: an adapter of attention alone may be for several, and the model's shapes tell for
    which. Raise `InvalidAdapter`, with the tensor that the likeliest family cannot take.
    """
    check_method(file)
    counts = {family: num_known(file, layout) for family, layout in LAYOUTS.items()}
    most = max(counts.values())
    if most == 0:
        first = next(iter(file.tensors))
        titles = ", ".join(layout.title for layout in LAYOUTS.values())
        raise InvalidAdapter(f"{file.path}: {first}: no LoRA for a model that takes adapters: {titles}")
    likely = [family for family, count in counts.items() if count == most]
    fitting = tuple(family for family in likely if _fits(file, family))
    if not fitting:
        plan_adapter(file, likely[0])
    return fitting


def num_known(file: CheckpointFile, layout: AdapterLayout) -> int:
    """Return how many of the layers that a file changes are known to a layout."""
    parts = (part_of(name) for name in file.tensors)
    modules = {part.module for part in parts if part is not None}
    return sum(layout.locate(module) is not None for module in modules)


def _fits(file: CheckpointFile, family: str) -> bool:
    try:
        plan_adapter(file, family)
    except InvalidAdapter:
        return False
    return True
