"""Loads the model that an engine runs; several engines may share a loaded model."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.models.offload import parse_offload
from diffuserve.domain.models.parts import ALL_PARTS, Parts
from diffuserve.domain.models.quantization import parse_quantization
from diffuserve.engine.model_runner import enough_memory
from diffuserve.models.adapters.files.adapter_file import open_adapter
from diffuserve.models.adapters.files.base_layers import plan_for
from diffuserve.models.adapters.files.read_adapter import read_adapter
from diffuserve.models.adapters.pool import LoadAdapter
from diffuserve.models.base import Pipeline
from diffuserve.models.folders.folder import open_model
from diffuserve.models.layers.adapters import Adapter
from diffuserve.models.layers.lora_pair import Components
from diffuserve.models.machine.devices import choose_device, is_emulated, parse_dtype
from diffuserve.models.machine.host import keep_freed_memory, one_thread
from diffuserve.models.registry import load_pipeline
from diffuserve.models.weights.load_plan import LoadPlan

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedModel:
    """A pipeline, and the name or folder that it was loaded from."""

    name: str
    pipeline: Pipeline


def parse_plan(
    device: str | None,
    dtype: "str | torch.dtype | None",
    quantization: str | None,
    offload: str | None,
    deterministic: bool = False,
    parts: Parts = ALL_PARTS,
) -> LoadPlan:
    """Return a plan from the caller's words. Raise `DeviceUnavailable`, `InvalidParams`."""
    return LoadPlan(
        choose_device(device),
        parse_dtype(dtype),
        deterministic,
        parts=parts,
        quantization=parse_quantization(quantization),
        offload=parse_offload(offload),
    )


def adapter_readers(
    model: str | Path, files: Mapping[str, str | Path]
) -> Mapping[str, Callable[[], Components]]:
    """Return what reads each adapter from its safetensors file, by the name that requests use.

    Raise `InvalidAdapter` for one that does not fit the model, by the file's header alone.
    """
    if not files:
        return {}
    folder = open_model(model_name(model))
    plans = {name: plan_for(open_adapter(Path(file)), folder) for name, file in files.items()}
    return {name: partial(read_adapter, plan) for name, plan in plans.items()}


def adapter_loaders(
    pipeline: Pipeline, readers: Mapping[str, Callable[[], Components]]
) -> Mapping[str, LoadAdapter]:
    """Return what reads each adapter and brings it to the pipeline's device.

    Raise `InvalidParams` for a model that takes none.
    """
    if not readers:
        return {}
    if not pipeline.spec.max_adapters:
        raise InvalidParams("adapters", ", ".join(readers), f"{pipeline.spec.name} takes no adapters")
    return {
        name: partial(_load_adapter, pipeline.place_adapter, name, reader) for name, reader in readers.items()
    }


def _load_adapter(
    place: Callable[[str, Components], Adapter], name: str, read: Callable[[], Components]
) -> Adapter:
    return place(name, read())


def model_name(model: str | Path) -> str:
    """Return the name of a model, or the absolute path of its folder."""
    return str(model.expanduser().absolute()) if isinstance(model, Path) else model


def load_model(model: str | Path, plan: LoadPlan) -> LoadedModel:
    """Load a bundled model, a diffusers folder or a hub id; a `Path` is always a folder.

    It starts no threads. Raise `ModelNotFound`, `InvalidModel`, `DeviceUnavailable`.
    """
    if plan.dtype is not None and is_emulated(plan.dtype, plan.device):
        log.warning("%s is slow here: this CPU has no instructions for it, as for float32", plan.dtype)
    if plan.device.type == "cpu":
        keep_freed_memory()
    name = model_name(model)
    with one_thread(), enough_memory(name, plan.device):
        return LoadedModel(name, load_pipeline(name, plan))
