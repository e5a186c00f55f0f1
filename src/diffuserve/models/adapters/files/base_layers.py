"""Checks that an adapter fits a model, by the headers of both: before anything loads, and without torch."""

from diffuserve.domain.errors import InvalidAdapter, InvalidModel
from diffuserve.models.adapters.files.adapter_plan import AdapterPlan, PlannedPair, Shape, plan_adapter
from diffuserve.models.adapters.files.recognize_adapter import recognize_adapter
from diffuserve.models.checkpoint_files.checkpoint_file import CheckpointFile
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.weights.stored_quantization import stored_weights
from diffuserve.models.weights.stored_tensors import stored_tensors

_PACKED = "U8"


def plan_for(file: CheckpointFile, base: ModelFolder) -> AdapterPlan:
    """Return what an adapter changes in a model, whose layers all have its shapes.

    Raise `InvalidAdapter` with the first tensor that does not fit, for the likeliest family of the file.
    """
    plans = [plan_adapter(file, family) for family in recognize_adapter(file)]
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


def _weight_shapes(base: ModelFolder, component: str, plan: AdapterPlan) -> dict[str, Shape]:
    """Return the shapes of a component's weights by name; of those with packed numbers the outputs alone."""
    shapes: dict[str, Shape] = {}
    try:
        files = base.weights(component)
    except InvalidModel as error:
        raise InvalidAdapter(
            f"{plan.file.path}: made for {plan.layout.title}, and changes {component}: {error}"
        ) from error
    for file in files:
        stored = stored_tensors(file)
        for weight in stored_weights(stored):
            tensor = stored[weight.tensor]
            shapes[_with_module(component, weight.name)] = (
                tensor.shape[:1] if tensor.dtype == _PACKED else tensor.shape
            )
    return shapes


def _with_module(component: str, name: str) -> str:
    """Return a weight's name as adapters have it: newer checkpoints of text encoders leave a module out."""
    is_short = component.startswith("text_encoder") and name.startswith("encoder.layers.")
    return f"text_model.{name}" if is_short else name
