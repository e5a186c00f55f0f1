"""Running an agent until it is told to stop."""

import asyncio
import logging
import os
import signal

from diffuserve.client.http import HttpTransport
from diffuserve.client.leases import LeaseClient
from diffuserve.worker.agent import WorkerAgent
from diffuserve.worker.config import WorkerConfig

log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 6 * 3600.0
"""A running job is not given up because the control plane is away for a while."""


def run_worker(config: WorkerConfig) -> int:
    """Gives the exit code: 0 after a drain, 1 when the engine is beyond help, 2 when it cannot start."""
    return asyncio.run(_run(config))


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
