"""Loads the components of a checked folder, one by one, and puts the pipeline together."""

from importlib import import_module
from typing import Any

import torch

from diffuserve.models.families.any_pipeline.modular_loading import assemble
from diffuserve.models.families.any_pipeline.reading.components import (
    Kind,
    PipelineComponent,
    read_components,
)
from diffuserve.models.families.any_pipeline.reading.quantized_layers import quantized_layers
from diffuserve.models.families.any_pipeline.reading.signature import Signature
from diffuserve.models.families.any_pipeline.residency import may_wait
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.folders.pretrained import load_module, load_processor
from diffuserve.models.layers.quantized.quantized_layers import QuantizedLayers
from diffuserve.models.layers.quantized.quantized_linear import quantize_layers
from diffuserve.models.weights.load_plan import LoadPlan


def load_pipe(folder: ModelFolder, signature: Signature, plan: LoadPlan) -> Any:
    """Return a pipeline of diffusers on the plan's device. Raise `InvalidModel` for a broken component."""
    import diffusers

    components = read_components(folder, signature)
    layers = quantized_layers(components)
    parts = {each.name: _load(folder, each, plan, layers.get(each.name)) for each in components}
    if signature.is_modular:
        return assemble(signature, parts, folder.index)
    missing = dict.fromkeys(signature.components)
    settings = {name: folder.index[name] for name in signature.settings if name in folder.index}
    return getattr(diffusers, signature.name)(**{**missing, **parts, **settings})


def _load(
    folder: ModelFolder, component: PipelineComponent, plan: LoadPlan, layers: QuantizedLayers | None
) -> Any:
    kind, path = _class_of(component), folder.component(component.name)
    if component.kind is not Kind.MODEL:
        return load_processor(kind, path)
    overflows = folder.config(component.name)[0].get("force_upcast") is True
    is_precise = overflows and plan.chosen_dtype is torch.float16
    module = load_module(kind, path, dtype=torch.float32 if is_precise else plan.chosen_dtype)
    if overflows:  # a pipeline would cast it to and fro, while others' runs use it
        module.register_to_config(force_upcast=False)
    if plan.on_read is not None:
        plan.on_read(folder.num_weight_bytes([component.name]))
    place = None if plan.stay_on_host and may_wait(component.name) else plan.device
    if layers is not None:
        quantize_layers(module, layers, plan.kept_in, place, plan.device)
    return module if place is None else module.to(place)


def _class_of(component: PipelineComponent) -> Any:
    """Return a class of diffusers, of transformers, or of the module of one of diffusers' pipelines."""
    is_room = component.library not in ("diffusers", "transformers")
    library = f"diffusers.pipelines.{component.library}" if is_room else component.library
    return getattr(import_module(library), component.class_name)
