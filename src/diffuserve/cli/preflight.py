"""Refusals before anything starts: no torch is imported, no port opened, no folder made.

What is checked here would be refused by the engine as well, but after the seconds that torch takes.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace

from diffuserve.cli.display.console import Console
from diffuserve.domain.errors import InvalidModel, InvalidParams
from diffuserve.domain.extras import check_installed
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.costs.memory import check_memory, cpu_memory_budget
from diffuserve.engine_process.model.model_description import check_encoder
from diffuserve.models.adapters.named_files import check_adapters
from diffuserve.models.folders.companions import companions_of
from diffuserve.models.folders.folder import find_local_model
from diffuserve.models.machine.hardware import check_device, check_dtype, check_num_gpus, is_cpu
from diffuserve.models.registry import CheckedModel, check_model
from diffuserve.modelstore.manifest import Manifest
from diffuserve.modelstore.store import check_stored, is_stored, open_stored
from diffuserve.parallel.plan import ParallelPlan, check_group
from diffuserve.protocol.config import EngineProcessConfig
from diffuserve.safety.image_filters import check_image_filter
from diffuserve.settings import Settings
from diffuserve.wiring.safety import check_prompt_filter


def model_spec(config: EngineProcessConfig) -> ModelSpec:
    """Return the abilities of a model, which is downloaded if need be. Raise as `check_requests`."""
    from diffuserve.cli.store.pull import pull_if_missing  # servers start faster without its progress bars

    _check_engine(config)
    pull_if_missing(config.model)
    return _checked(config).spec


def fetched(config: EngineProcessConfig) -> EngineProcessConfig:
    """Return the configuration with the folder of a model that a store has, which is fetched if need be.

    Raise as `open_stored` does.
    """
    if not is_stored(config.model, config.stored):
        return config
    from diffuserve.cli.store.transfers import transfers

    _check_engine(config)
    with transfers(Console(stderr=True, highlight=False, soft_wrap=True)) as shown:

        def on_fetch(found: Manifest) -> Callable[[int], None]:
            return shown.begin(found.name, found.num_bytes)

        held = open_stored(config.model, config.stored, on_fetch)
    return config if held is None else replace(config, model=str(held.folder))


def check_requests(config: EngineProcessConfig, requests: Sequence[GenerationParams]) -> None:
    """Check an engine of this process, its model, which is downloaded if need be, and its requests.

    Raise `InvalidParams`, `ModelNotFound`, `InvalidModel` or `DeviceUnavailable`.
    """
    from diffuserve.cli.store.pull import pull_if_missing  # servers start faster without its progress bars

    _check_engine(config)
    pull_if_missing(config.model)
    model, budget = _checked(config), _memory_budget(config)
    check_encoder(config.model, model.spec)
    _check_adapters(config, requests)
    for request in requests:
        resolved = model.spec.resolve(request, seed=0)
        if budget is not None:
            check_memory(model.spec, resolved, model.min_bytes, budget)


def _check_adapters(config: EngineProcessConfig, requests: Sequence[GenerationParams]) -> None:
    uses = [use for request in requests for use in request.adapters or ()]
    if uses or config.adapter_files:
        check_adapters(config.model, config.adapter_files, uses)


def check_worker(
    configs: Sequence[EngineProcessConfig], num_gpus: int, num_replicas: int = 1, num_nodes: int = 1
) -> None:
    """Check what the engine processes of a worker, or of its replicas, are to load: one model each.

    Raise as `check_requests` does. A model of the hub or of a store is downloaded, and then checked, by those
    processes. Of several, those that are broken are left out by the worker, which serves the others.
    """
    config = configs[0]
    _check_engine(config)
    check_num_gpus(config.device, num_gpus)
    if num_replicas > 1 and config.device != "cpu":
        check_device(f"cuda:{num_replicas - 1}")  # they are on cuda:0, cuda:1, …
    _check_models(configs, num_gpus * num_nodes)


def check_worker_elsewhere(configs: Sequence[EngineProcessConfig], num_gpus: int) -> None:
    """Check as `check_worker`, for a machine that has the same software and models, and other GPUs."""
    _check_software(configs[0])
    _check_models(configs, num_gpus)


def _check_models(configs: Sequence[EngineProcessConfig], num_ranks: int) -> None:
    names = [each.model for each in configs]
    for each in configs:
        if names.count(each.model) > 1:
            raise InvalidParams("model", each.model, "is named twice")
        plan = _plan(each, num_ranks)
        with nullcontext() if len(configs) == 1 else suppress(InvalidModel):
            _check_served(each, plan)


def _plan(config: EngineProcessConfig, num_ranks: int) -> ParallelPlan | None:
    """Return the plan of an engine's ranks; `None` for a single one. Raise `InvalidParams`."""
    plan = ParallelPlan(num_ranks) if config.parallel is None else ParallelPlan.parse(config.parallel)
    check_group(plan, num_ranks)
    return plan if num_ranks > 1 else None


def _check_served(config: EngineProcessConfig, plan: ParallelPlan | None) -> None:
    if is_stored(config.model, config.stored):
        check_stored(config.model, config.stored)
    elif find_local_model(config.model) is not None:
        _checked(config, plan)
        _check_adapters(config, ())


def _checked(config: EngineProcessConfig, plan: ParallelPlan | None = None) -> CheckedModel:
    companions = companions_of(config.controlnets, config.image_prompter)
    return check_model(config.model, config.quantization, config.offload, plan, companions)


def check_server(settings: Settings, engine_command: str | None = None) -> None:
    """Check a server with a worker of its own, whose engine `engine_command` may replace. Raise as above."""
    if engine_command is None:
        check_worker(settings.worker.engine_processes, settings.worker.gpus)
    check_prompt_filter(settings)


def _check_engine(config: EngineProcessConfig) -> None:
    _check_software(config)
    check_device(config.device)


def _check_software(config: EngineProcessConfig) -> None:
    check_installed(config.model)
    check_image_filter(config.images.image_filter, config.images.image_rules)
    check_dtype(config.dtype)


def _memory_budget(config: EngineProcessConfig) -> int | None:
    """Return the bytes that a step may take; `None` on a GPU, whose memory torch alone can tell."""
    if config.engine.memory_budget_bytes is not None:
        return config.engine.memory_budget_bytes
    return cpu_memory_budget() if is_cpu(config.device) else None
