"""The worker, put together from the settings and the command line."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from diffuserve.cli.loading import cost_fit_path
from diffuserve.settings import Settings
from diffuserve.worker.config import Nodes, WorkerConfig
from diffuserve.worker.main import run_node, run_worker


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """What only the command line says."""

    name: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    price_per_hour: float | None = None
    is_spot: bool = False
    metrics_port: int | None = None
    heartbeat_seconds: float | None = None
    engine_restarts: int | None = None
    parent_fd: int | None = None
    engine_command: str | None = None
    gpus: int = 1
    nodes: Nodes | None = None
    parallel: str | None = None
    collective_seconds: float = 120.0


def run(settings: Settings, options: WorkerOptions) -> int:
    """Until the worker ends; gives its exit code."""
    config = worker_config(settings, options)
    if config.nodes is not None and config.nodes.rank > 0:
        return run_node(config)
    return run_worker(config)


def worker_config(settings: Settings, options: WorkerOptions) -> WorkerConfig:
    return WorkerConfig(
        server=settings.server,
        api_key=settings.api_key,
        model=settings.model,
        device=settings.device,
        dtype=settings.dtype,
        name=options.name,
        labels=options.labels,
        price_per_hour=options.price_per_hour,
        is_spot=options.is_spot,
        metrics_port=options.metrics_port,
        heartbeat_seconds=options.heartbeat_seconds,
        engine_restarts=options.engine_restarts,
        drain_seconds=settings.drain_seconds,
        stall_seconds=settings.stall_seconds,
        max_jobs=settings.max_jobs,
        parent_fd=options.parent_fd,
        gpus=options.gpus,
        nodes=options.nodes,
        parallel=options.parallel,
        collective_seconds=options.collective_seconds,
        engine_command=tuple(shlex.split(options.engine_command or "")),
        cost_fit_path=cost_fit_path(settings.cache_dir, settings.model, settings.device, settings.dtype),
    )
