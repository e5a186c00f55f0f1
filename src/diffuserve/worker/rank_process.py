"""One of the processes that torchrun starts for a worker of several GPUs: the leading one, or a follower."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.models.base import Pipeline
from diffuserve.models.devices import choose_device, parse_dtype
from diffuserve.models.quiet import quiet_libraries
from diffuserve.models.registry import load_pipeline, read_spec
from diffuserve.parallel.plan import ParallelPlan
from diffuserve.parallel.ranks import Ranks, beats_of, join_ranks, leave_ranks
from diffuserve.worker.agent_link import AgentLink
from diffuserve.worker.config import ImageOptions
from diffuserve.worker.engine_host import EngineHost, introduce
from diffuserve.worker.lockstep import Follower, LeadRunner


@dataclass(frozen=True)
class RankOptions:
    """The same on every rank. `parallel` is a plan; by default all ranks share every sequence."""

    model: str
    device: str | None
    dtype: str | None
    parallel: str | None
    collective_seconds: float


def follow(options: RankOptions) -> None:
    """Until rank 0 closes; then this process ends."""
    with _member(options) as (pipeline, ranks):
        Follower(pipeline, ranks).run()


def lead(
    options: RankOptions,
    cost_fit: Path | None,
    images: ImageOptions,
    link: AgentLink,
    on_host: Callable[[EngineHost], None],
) -> None:
    """Serve the agent; `on_host` hears what answers it from now on. The other ranks see no image.

    This process ends with it.
    """
    desk = introduce(options.model, images, link)
    with _member(options) as (pipeline, ranks):
        # One thread steps: collectives of two threads would meet in any order.
        config = EngineConfig(cost_fit_path=cost_fit, num_threads=1)
        engine = Engine(pipeline, config, LeadRunner(pipeline, ranks))
        host = EngineHost(engine, link, desk.result(), link.black_box)
        on_host(host)
        host.run()


@contextmanager
def _member(options: RankOptions) -> Iterator[tuple[Pipeline, Ranks]]:
    """Loaded, and in the group, whose ranks hear one another's beats."""
    quiet_libraries()
    device = _own_device(options.device)
    if device.type == "cpu":
        torch.set_num_threads(1)  # the machine's cores are shared by its ranks
    plan = None if options.parallel is None else ParallelPlan.parse(options.parallel)
    has_passes = read_spec(options.model).has_negative_prompt
    ranks = join_ranks(plan, device, options.collective_seconds, has_passes=has_passes)
    pipeline = load_pipeline(options.model, device, parse_dtype(options.dtype), ranks=ranks)
    beats = beats_of(ranks)
    beats.start()
    yield pipeline, ranks
    beats.stop()
    leave_ranks()


def _own_device(name: str | None) -> torch.device:
    """Each rank of a machine has a GPU of its own."""
    kind = choose_device(name).type
    if kind == "cpu":
        return torch.device("cpu")
    device = choose_device(f"{kind}:{dist.get_node_local_rank(fallback_rank=0)}")
    torch.cuda.set_device(device)
    return device
