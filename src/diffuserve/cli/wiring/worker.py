"""The worker, put together from the settings and the command line."""

import multiprocessing
import os
import shlex
import signal
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import FrameType

from diffuserve.cli.loading import cost_fit_path
from diffuserve.safety.image_filters import check_image_filter_name
from diffuserve.settings import Settings
from diffuserve.worker.agent_link import die_with_parent
from diffuserve.worker.config import ImageOptions, Nodes, WorkerConfig
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


def run_replicas(settings: Settings, options: WorkerOptions, count: int) -> int:
    """So many workers of one device each, until all have ended; gives the worst of their exit codes."""
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=_run_replica, args=replica(settings, options, number), name=f"worker-{number}")
        for number in range(count)
    ]

    def forward(number: int, _frame: FrameType | None) -> None:
        for one in workers:
            if one.pid is not None and one.is_alive():
                os.kill(one.pid, number)

    for one in workers:
        one.start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)
    for one in workers:
        one.join()
    return max(abs(one.exitcode or 0) for one in workers)


def replica(settings: Settings, options: WorkerOptions, number: int) -> tuple[Settings, WorkerOptions]:
    """What worker `number` of a machine is told: a device, a name and a port of its own."""
    device = "cpu" if settings.device == "cpu" else f"cuda:{number}"
    port = None if options.metrics_port is None else options.metrics_port + number
    name = f"{options.name or socket.gethostname()}-{number}"
    return settings.model_copy(update={"device": device}), replace(options, name=name, metrics_port=port)


def _run_replica(settings: Settings, options: WorkerOptions) -> None:
    from diffuserve.cli.logs import log_to_stderr

    os.setpgrp()  # a Ctrl-C comes from our parent, once
    die_with_parent()
    log_to_stderr()
    sys.exit(run(settings, options))


def image_options(settings: Settings) -> ImageOptions:
    """Raises `InvalidParams` before anything is loaded."""
    return ImageOptions(
        image_filter=check_image_filter_name(settings.image_filter),
        image_rules=settings.image_rules,
        has_metadata=settings.file_metadata,
    )


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
        images=image_options(settings),
        engine_command=tuple(shlex.split(options.engine_command or "")),
        cost_fit_path=cost_fit_path(settings.cache_dir, settings.model, settings.device, settings.dtype),
    )
