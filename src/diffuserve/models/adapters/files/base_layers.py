"""Checks that an adapter fits a model, by the headers of both: before anything loads, and without torch."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from diffuserve.domain.errors import InvalidAdapter, InvalidModel
from diffuserve.models.adapters.files.adapter_plan import (
    AdapterPlan,
    PlannedPair,
    Shape,
    plan_adapter,
    plan_in_layout,
)
from diffuserve.models.adapters.files.layouts import AdapterLayout, layout_of_own_names
from diffuserve.models.adapters.files.recognize_adapter import num_known, recognize_adapter
from diffuserve.models.adapters.files.tensor_names import part_of
from diffuserve.models.checkpoint_files.checkpoint_file import CheckpointFile
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.weights.stored_quantization import stored_weights
from diffuserve.models.weights.stored_tensors import stored_tensors

OWN_NAMES: Final = "any_pipeline"
"""The family of models without a layout, in files with diffusers' names of layers."""
_DENOISERS = ("transformer", "unet")
_PACKED, _WEIGHT = "U8", ".weight"


def plan_for(file: CheckpointFile, base: ModelFolder) -> AdapterPlan:
    """Return what an adapter changes in a model, whose layers all have its shapes.

    Files for models without a layout of their own name layers as diffusers does. Raise `InvalidAdapter` with
    the first tensor that does not fit, for the likeliest family of the file.
    """
    try:
        plans = [plan_adapter(file, family) for family in recognize_adapter(file)]
        return _fitting(plans, base)
    except InvalidAdapter:
        own = _own_layout(base)
        if own is None or not num_known(file, own):
            raise
    return _fitting([plan_in_layout(file, OWN_NAMES, own)], base)


def plan_without_base(file: CheckpointFile) -> tuple[tuple[str, ...], AdapterPlan]:
    """Return the families that an adapter may be for, and what it changes there.

    Layers that no family has are of a model that diffusers runs, if they are named as diffusers does: whether
    it has them is known with the model. Raise `InvalidAdapter` with a tensor that cannot be applied.
    """
    try:
        families = recognize_adapter(file)
        return families, plan_adapter(file, families[0])
    except InvalidAdapter:
        named = _layout_of_file(file)
        if named is None:
            raise
    return (OWN_NAMES,), plan_in_layout(file, OWN_NAMES, named)


def _fitting(plans: Sequence[AdapterPlan], base: ModelFolder) -> AdapterPlan:
    """Return the first plan that fits a model. Raise what the first does not fit by."""
    for plan in plans:
        try:
            check_base(plan, base)
        except InvalidAdapter:
            continue
        return plan
    check_base(plans[0], base)
    raise AssertionError("the first plan did not fit before")


def check_base(plan: AdapterPlan, base: ModelFolder) -> None:
    """Raise `InvalidAdapter` if a model lacks a layer that an adapter changes, or has it in another shape."""
    for component, pairs in plan.pairs.items():
        shapes = _weight_shapes(base, component, plan)
        for layer, pair in pairs.items():
            _check(plan, base, f"{component}.{layer}", pair, shapes.get(f"{layer}.weight"))


def _check(plan: AdapterPlan, base: ModelFolder, layer: str, pair: PlannedPair, shape: Shape | None) -> None:
    made_for = (
        f"{plan.file.path}: {pair.down}: made for another model of {plan.layout.title} than {base.name}"
    )
    if shape is None:
        raise InvalidAdapter(f"{made_for}, which has no {layer}")
    if pair.shape[: len(shape)] != shape:
        raise InvalidAdapter(f"{made_for}: it changes {pair.shape} numbers of {layer}, which has {shape}")


def _own_layout(base: ModelFolder) -> AdapterLayout | None:
    """Return a layout of the names of a model's own layers; `None` if it has no denoiser."""
    denoiser = next((name for name in _DENOISERS if base.index.get(name)), None)
    if denoiser is None:
        return None
    try:
        files = base.weights(denoiser)
    except InvalidModel:
        return None
    weights = (name for name, shape in _shapes(denoiser, files) if len(shape) > 1)
    layers = [name.removesuffix(_WEIGHT) for name in weights if name.endswith(_WEIGHT)]
    return layout_of_own_names(base.pipeline_class, denoiser, layers)


def _layout_of_file(file: CheckpointFile) -> AdapterLayout | None:
    """Return a layout of the layers that a file names as diffusers does; `None` if there are none."""
    modules = [part.module for part in map(part_of, file.tensors) if part is not None]
    for denoiser in _DENOISERS:
        prefix = f"{denoiser}."
        if layers := [name.removeprefix(prefix) for name in modules if name.startswith(prefix)]:
            return layout_of_own_names("a model that diffusers runs", denoiser, layers)
    return None


def _weight_shapes(base: ModelFolder, component: str, plan: AdapterPlan) -> dict[str, Shape]:
    """Return the shapes of a component's weights by name; of those with packed numbers the outputs alone."""
    try:
        return dict(_shapes(component, base.weights(component)))
    except InvalidModel as error:
        raise InvalidAdapter(
            f"{plan.file.path}: made for {plan.layout.title}, and changes {component}: {error}"
        ) from error


def _shapes(component: str, files: Sequence[Path]) -> Iterator[tuple[str, Shape]]:
    for file in files:
        stored = stored_tensors(file)
        for weight in stored_weights(stored):
            tensor = stored[weight.tensor]
            shape = tensor.shape[:1] if tensor.dtype == _PACKED else tensor.shape
            yield _with_module(component, weight.name), shape


def _with_module(component: str, name: str) -> str:
    """Return a weight's name as adapters have it: newer checkpoints of text encoders leave a module out."""
    is_short = component.startswith("text_encoder") and name.startswith("encoder.layers.")
    return f"text_model.{name}" if is_short else name
