"""The model and the engine of a configuration in this process, with no agent and no other ranks."""

from dataclasses import replace
from typing import TYPE_CHECKING

from diffuserve.engine_process.model.prepared_model import prepared_copy
from diffuserve.models.folders.companions import companions_of
from diffuserve.protocol.config import EngineProcessConfig

if TYPE_CHECKING:
    from diffuserve.engine.engine import Engine
    from diffuserve.engine.loading import LoadedModel


def lone_engine(config: EngineProcessConfig) -> "Engine":
    """Return an engine with its model; it imports torch. Raise what `Engine.load` raises."""
    from diffuserve.engine.engine import Engine
    from diffuserve.engine.loading import adapters_of

    adapters = adapters_of(config.model, config.adapter_files)
    return Engine.of(lone_model(config), config.engine, adapters)


def lone_model(config: EngineProcessConfig) -> "LoadedModel":
    """Return the model alone, from the prepared copy if there is one. Raise as above."""
    from diffuserve.engine.loading import load_model, parse_plan

    kept = (config.quantization, config.offload)
    plan = parse_plan(config.device, config.dtype, *kept, config.engine.deterministic)
    companions = companions_of(config.controlnets, config.image_prompter)
    return load_model(config.model, replace(plan, copy=prepared_copy(config), companions=companions))
