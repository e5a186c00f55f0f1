"""Starting a worker, or several beside each other."""

import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from types import FrameType

from diffuserve.agent.config import WorkerConfig
from diffuserve.agent.main import check_server, run_node, run_worker
from diffuserve.domain.errors import DiffuserveError
from diffuserve.engine_process.agent_link import die_with_parent
from diffuserve.models.machine.hardware import see_only, torch_build, visible_device
from diffuserve.modelstore.adapters.adapter_store import AdapterStore
from diffuserve.parallel.plan import ParallelPlan
from diffuserve.protocol.config import EngineProcessConfig
from diffuserve.safety.image_filters import check_image_filter_name
from diffuserve.settings import Settings
from diffuserve.stop_signals import INTERRUPTED
from diffuserve.telemetry.logs import configure_logs
from diffuserve.tuning.applying import with_tuning


def run(config: WorkerConfig) -> int:
    """Run a worker until it ends; return its exit code."""
    if config.nodes is not None and config.nodes.rank > 0:
        return run_node(config)
    return run_worker(config, AdapterStore(config.engine_process.stored).fetch)


def checked(config: EngineProcessConfig) -> EngineProcessConfig:
    """Return `config`, with its plan in canonical form, and with what tuning has found for its model.

    Raise `InvalidParams` for an unknown image filter or plan, before anything is loaded.
    """
    check_image_filter_name(config.images.image_filter)
    plan = None if config.parallel is None else str(ParallelPlan.parse(config.parallel))
    return with_tuning(replace(config, parallel=plan))


def replica(config: WorkerConfig, settings: Settings, number: int) -> WorkerConfig:
    """Return the configuration of worker `number` of a machine: its own device, name and metrics port.

    It sees no other GPU, on which it might leave a context of half a gigabyte.
    AMD's driver has other names for them, and hides none here.
    Raise `DeviceUnavailable` if this process does not see so many.
    """
    device = "cpu" if config.engine_process.device == "cpu" else f"cuda:{number}"
    on_device = settings.model_copy(update={"device": device})  # each device has its own cost fit
    processes, visible = [checked(process) for process in on_device.worker.engine_processes], None
    if device != "cpu" and not torch_build("hip"):
        processes = [replace(process, device="cuda:0") for process in processes]
        visible = visible_device(number)
    return replace(
        config,
        engine_process=processes[0],
        further=tuple(processes[1:]),
        visible_device=visible,
        name=f"{config.name or socket.gethostname()}-{number}",
        metrics_port=None if config.metrics_port is None else config.metrics_port + number,
        shares_machine=True,
    )


def run_replicas(replicas: Sequence[WorkerConfig]) -> int:
    """Run each worker in a child process until all have ended; return the worst of their exit codes.

    Raise `Forbidden` or `ServerRefused`, before any starts, if the server will not accept them.
    """
    check_server(replicas[0])
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_run_replica, args=(config,), name=config.name) for config in replicas]

    def drain(number: int, _frame: FrameType | None) -> None:
        """Drain them by SIGTERM: a Ctrl-C may have reached them too, and a second one would end them."""
        if number == signal.SIGINT:
            signal.signal(number, kill)
        for worker in workers:
            worker.terminate()

    def kill(_number: int, _frame: FrameType | None) -> None:
        for worker in workers:
            worker.kill()
        os._exit(INTERRUPTED)

    for worker in workers:
        worker.start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, drain)
    for worker in workers:
        worker.join()
    return max(abs(worker.exitcode or 0) for worker in workers)


def _run_replica(config: WorkerConfig) -> None:
    os.setpgrp()  # the parent passes on Ctrl-C; the terminal must not send it a second time
    die_with_parent()
    if config.visible_device is not None:
        see_only(config.visible_device)
    configure_logs(config.engine_process.logs)
    try:
        code = run(config)
    except DiffuserveError as error:
        sys.exit(f"error: {config.name}: {error}")
    sys.exit(code)
