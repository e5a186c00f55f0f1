"""Engine process of one rank, where the launcher starts several for a worker of several GPUs."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

import torch

from diffuserve.engine.costs.memory import memory_budget
from diffuserve.engine.engine import Engine
from diffuserve.engine.loading import adapter_pool, adapters_of
from diffuserve.engine.model_runner import enough_memory
from diffuserve.engine_process.agent_link import AgentLink
from diffuserve.engine_process.engine_host import EngineHost, warm_host, weights_hash_of
from diffuserve.engine_process.model.load_reporter import LoadReporter
from diffuserve.engine_process.output.image_output import in_background, open_image_output
from diffuserve.engine_process.ranks.lockstep import FollowerRank, LeadRunner, rank_parts
from diffuserve.engine_process.ranks.rank_adapters import RankAdapters
from diffuserve.models.folders.companions import companions_of
from diffuserve.models.machine.devices import choose_device, parse_dtype
from diffuserve.models.pipelines.base import PackedPipeline, packed
from diffuserve.models.registry import load_pipeline
from diffuserve.models.vocabulary import read_vocabulary
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.modelstore.adapters.adapter_store import AdapterStore
from diffuserve.parallel.plan import ParallelPlan
from diffuserve.parallel.rank_place import own_place
from diffuserve.parallel.ranks import Ranks, join_ranks, leave_ranks, rank_heartbeats
from diffuserve.protocol.config import EngineProcessConfig


def follow(config: EngineProcessConfig) -> None:
    """Do what rank 0 does until it closes the group; then this process ends."""
    with _member(config) as (pipeline, ranks):
        sources = adapters_of(config.model, config.adapter_files)
        pool = adapter_pool(pipeline, sources, config.engine.adapter_bytes)
        adapters = RankAdapters(pool, sources, AdapterStore(config.stored).fetch)
        FollowerRank(pipeline, ranks, adapters).run()


def lead(config: EngineProcessConfig, link: AgentLink, on_host: Callable[[EngineHost], None]) -> None:
    """Run the engine of rank 0 until the agent stops it; then this process ends.

    `on_host` receives the host that handles the agent's messages from then on. Only this rank handles
    images.
    """
    loading = LoadReporter(link)
    image_output = in_background(partial(open_image_output, config.model, config.images))
    with ExitStack() as stack:
        plan = _plan(config)
        num_sharing = 1 if plan is None else plan.tensor
        loading.begin_weights(config.model, config.parts, num_sharing)
        pipeline, ranks = stack.enter_context(_member(config, loading.add))
        # One thread steps: ranks must enter collectives in the same order.
        adapter_bytes = config.engine.adapter_bytes if pipeline.spec.max_adapters else 0
        budget = _rank_budget(pipeline.device, config.engine.memory_budget_bytes, adapter_bytes)
        engine_config = replace(config.engine, num_threads=1, memory_budget_bytes=budget)
        companions = companions_of(config.controlnets, config.image_prompter)
        read_hash = weights_hash_of(pipeline, image_output, companions)
        adapters = adapters_of(config.model, config.adapter_files)
        words = read_vocabulary(config.model)
        engine = Engine(pipeline, engine_config, LeadRunner(pipeline, ranks), read_hash, adapters, words)
        host = warm_host(engine, image_output, link, loading)
        on_host(host)
        host.run()


@contextmanager
def _member(
    config: EngineProcessConfig, on_read: Callable[[int], None] | None = None
) -> Iterator[tuple[PackedPipeline, Ranks]]:
    """Yield the loaded pipeline in the group of ranks, which watch one another's heartbeats."""
    device = _own_device(config.device)
    if device.type == "cpu":
        torch.set_num_threads(1)  # the machine's cores are shared by its ranks
    ranks = join_ranks(_plan(config), device, config.collective_seconds)
    with enough_memory(config.model, device):
        plan = LoadPlan(
            device,
            parse_dtype(config.dtype),
            config.engine.deterministic,
            ranks,
            rank_parts(config.parts, ranks),
            config.quantization,
            config.offload,
            on_read=on_read,
            companions=companions_of(config.controlnets, config.image_prompter),
        )
        pipeline = packed(load_pipeline(config.model, plan))  # others refuse ranks
    heartbeats = rank_heartbeats(ranks)
    heartbeats.start()
    yield pipeline, ranks
    heartbeats.stop()
    leave_ranks()


def _plan(config: EngineProcessConfig) -> ParallelPlan | None:
    return None if config.parallel is None else ParallelPlan.parse(config.parallel)


def _rank_budget(device: torch.device, configured_bytes: int | None, adapter_bytes: int) -> int:
    """Return the bytes that a step may take on each rank: those on CPUs share their machine's memory."""
    if device.type == "cuda" or configured_bytes is not None:
        return memory_budget(device, configured_bytes, adapter_bytes)
    place = own_place()
    return memory_budget(device, None) // (1 if place is None else place.size_here)


def _own_device(name: str | None) -> torch.device:
    """Return the GPU of this rank: each rank of a machine has its own."""
    kind = choose_device(name).type
    if kind == "cpu":
        return torch.device("cpu")
    place = own_place()
    device = choose_device(f"{kind}:{0 if place is None else place.rank_here}")
    torch.cuda.set_device(device)
    return device
