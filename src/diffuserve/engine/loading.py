"""Loads the model that an engine runs; several engines may share a loaded model."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.models.known_words import Vocabulary
from diffuserve.domain.models.offload import parse_offload
from diffuserve.domain.models.parts import ALL_PARTS, Parts
from diffuserve.domain.models.quantization import parse_quantization
from diffuserve.engine.model_runner import enough_memory
from diffuserve.models.adapters.pool import AdapterPool, OnRoom, unheard
from diffuserve.models.adapters.sources import AdapterSources, adapter_sources
from diffuserve.models.folders.folder import ALONE, Companions
from diffuserve.models.machine.devices import choose_device, is_emulated, parse_dtype
from diffuserve.models.machine.host import keep_freed_memory, one_thread
from diffuserve.models.pipelines.base import Pipeline
from diffuserve.models.registry import load_pipeline
from diffuserve.models.vocabulary import read_vocabulary
from diffuserve.models.weights.load_plan import LoadPlan

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedModel:
    """A pipeline, the name or folder that it was loaded from, and what was loaded beside it.

    `vocabulary` are the words that it knows, `None` if its folder declares none.
    """

    name: str
    pipeline: Pipeline
    companions: Companions = ALONE
    vocabulary: Vocabulary | None = None


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


def adapters_of(model: str | Path, files: Mapping[str, str | Path]) -> AdapterSources:
    """Return the adapters of a model; those of the safetensors `files` have names.

    Raise `InvalidAdapter` for one that does not fit the model, by its file's header alone.
    """
    return adapter_sources(model_name(model), files)


def adapter_pool(
    pipeline: Pipeline, sources: AdapterSources, max_bytes: int, on_room: OnRoom = unheard
) -> AdapterPool:
    """Return a pool that loads adapters to a pipeline's device, and tells `on_room` whose it loads.

    Raise `InvalidParams` if some have names and the model takes none.
    """
    if sources.named and not pipeline.spec.max_adapters:
        raise InvalidParams("adapters", ", ".join(sources.named), f"{pipeline.spec.name} takes no adapters")
    return AdapterPool(pipeline.place_adapter, max_bytes, pipeline.dtype.itemsize, on_room)


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
        return LoadedModel(name, load_pipeline(name, plan), plan.companions, read_vocabulary(name))
