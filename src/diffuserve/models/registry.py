"""From a model's name to a loaded pipeline. Importing this file loads no family and no torch."""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from diffuserve.domain.errors import InvalidModel

if TYPE_CHECKING:
    import torch

    from diffuserve.domain.model_spec import ModelSpec
    from diffuserve.models.base import Pipeline
    from diffuserve.models.folder import ModelFolder
    from diffuserve.parallel.ranks import Ranks

# The `_class_name` of a model_index.json, and who serves it.
PIPELINES: Mapping[str, str] = {
    "FluxPipeline": "diffuserve.models.flux.pipeline:FluxPipeline",
}


def load_pipeline(
    model: str,
    device: "torch.device",
    dtype: "torch.dtype | None" = None,
    deterministic: bool = False,
    ranks: "Ranks | None" = None,
) -> "Pipeline":
    """Load a bundled model, a diffusers folder or a hub id onto `device`.

    With `ranks` the same is loaded on each of them, and every denoising step is shared.
    `dtype=None` takes the family's choice for the checkpoint and the device. Raises `ModelNotFound`
    or `InvalidModel` before any weight is read.
    """
    folder, family = _open(model)
    pipeline: Pipeline = family.load(folder, device, dtype, deterministic, ranks)
    return pipeline


def read_spec(model: str) -> "ModelSpec":
    """What a model can do, from its folder's configs: no weight is read. Raises as `load_pipeline`."""
    folder, family = _open(model)
    spec: ModelSpec = family.read_spec(folder)
    return spec


def _open(model: str) -> "tuple[ModelFolder, Any]":
    """The model's folder, and the class that serves it."""
    from diffuserve.models.folder import open_model

    folder = open_model(model)
    if folder.pipeline_class not in PIPELINES:
        known = ", ".join(sorted(PIPELINES))
        raise InvalidModel(
            f"{folder.path}: model_index.json names {folder.pipeline_class!r}, "
            f"which is not served; known: {known}"
        )
    module_name, class_name = PIPELINES[folder.pipeline_class].split(":")
    return folder, getattr(import_module(module_name), class_name)
