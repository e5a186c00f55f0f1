"""Loads the components of a checked folder, one by one, and puts the pipeline together."""

from importlib import import_module
from typing import Any

import torch

from diffuserve.models.any_pipeline.components import Component, Kind, read_components
from diffuserve.models.any_pipeline.modular_loading import assemble
from diffuserve.models.any_pipeline.signature import Signature
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.folders.pretrained import load_module, load_processor
from diffuserve.models.weights.load_plan import LoadPlan


def load_pipe(folder: ModelFolder, signature: Signature, plan: LoadPlan) -> Any:
    """Return a pipeline of diffusers on the plan's device. Raise `InvalidModel` for a broken component."""
    import diffusers

    parts = {each.name: _load(folder, each, plan) for each in read_components(folder, signature)}
    if signature.is_modular:
        return assemble(signature, parts, folder.index)
    missing = dict.fromkeys(signature.components)
    settings = {name: folder.index[name] for name in signature.settings if name in folder.index}
    return getattr(diffusers, signature.name)(**{**missing, **parts, **settings})


def _load(folder: ModelFolder, component: Component, plan: LoadPlan) -> Any:
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
    return module.to(plan.device)


def _class_of(component: Component) -> Any:
    """Return a class of diffusers, of transformers, or of the module of one of diffusers' pipelines."""
    is_room = component.library not in ("diffusers", "transformers")
    library = f"diffusers.pipelines.{component.library}" if is_room else component.library
    return getattr(import_module(library), component.class_name)
