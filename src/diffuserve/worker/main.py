"""Running an agent until it is told to stop."""

import asyncio
import logging
import os
import signal

from diffuserve.backoff import Backoff, RestartPolicy, supervise
from diffuserve.client.http import HttpTransport
from diffuserve.client.leases import LeaseClient
from diffuserve.worker.agent import WorkerAgent
from diffuserve.worker.config import WorkerConfig

log = logging.getLogger(__name__)

# After 15 seconds the first node has missed this node's heartbeats too: its old group has ended, and
# cannot be joined by mistake.
_NODE_RESTARTS = RestartPolicy(Backoff(first_seconds=15.0, longest_seconds=60.0), healthy_seconds=60.0)
_PATIENCE_SECONDS = 6 * 3600.0
"""A running job is not given up because the control plane is away for a while."""


def run_worker(config: WorkerConfig) -> int:
    """Gives the exit code: 0 after a drain, 1 when the engine is beyond help, 2 when it cannot start."""
    return asyncio.run(_run(config))


def run_node(config: WorkerConfig) -> int:
    """A node beside the first one: its ranks, started anew whenever their group was broken.

    Gives 0 once it was told to stop.
    """
    return asyncio.run(_run_node(config))


async def _run_node(config: WorkerConfig) -> int:
    stop = asyncio.Event()

    async def run() -> int:
        return await _until_stopped(await asyncio.create_subprocess_exec(*config.command), stop)

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await supervise(run, _NODE_RESTARTS, on_restart=_log_restart, stop=stop)
    return 0


def _log_restart(code: int, pause_seconds: float) -> None:
    log.warning(
        "the ranks of this node ended (exit code %d); they start again in %.0f s", code, pause_seconds
    )


async def _until_stopped(process: asyncio.subprocess.Process, stop: asyncio.Event) -> int:
    """Its exit code, also where that is because we were told to stop."""
    ended = asyncio.ensure_future(process.wait())
    stopped = asyncio.ensure_future(stop.wait())
    await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not ended.done():
        process.terminate()
    return await ended


async def _run(config: WorkerConfig) -> int:
    transport = HttpTransport(config.server, config.api_key, patience_seconds=_PATIENCE_SECONDS)
    agent = WorkerAgent(config, LeaseClient(transport))
    _listen_to_signals(agent)
    if config.parent_fd is not None:
        asyncio.get_running_loop().add_reader(config.parent_fd, _die_with_parent, config.parent_fd)
    return await agent.run()


def _listen_to_signals(agent: WorkerAgent) -> None:
    """The first asks for a drain; a second Ctrl-C does not wait for it."""
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        loop.add_signal_handler(signal.SIGINT, os._exit, 130)
        agent.drain()

    loop.add_signal_handler(signal.SIGTERM, agent.drain)
    loop.add_signal_handler(signal.SIGINT, interrupt)


def _die_with_parent(descriptor: int) -> None:
    if not os.read(descriptor, 1):
        os._exit(1)  # the engine sees the end of its pipe, and goes too
