"""Actors of Ray that are workers. Their module is imported on the nodes.

The agent runs inside the actor: Ray would kill it as an actor's child, without a drain, and leave its engine
on the GPU. An actor starts itself, so that no other process need be there when Ray starts it anew elsewhere,
and it frees its place when it has ended.
"""

import asyncio
import socket
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import ray
from ray.util import get_current_placement_group, get_node_ip_address, remove_placement_group

from diffuserve.agent.agent import WorkerAgent
from diffuserve.agent.config import WorkerConfig
from diffuserve.agent.exit_codes import CANNOT_START
from diffuserve.agent.main import keep_ranks, open_agent
from diffuserve.domain.errors import DiffuserveError, InvalidParams
from diffuserve.fleet.launcher import FAILED_SECONDS, WorkerSetup
from diffuserve.modelstore.adapters.adapter_store import AdapterStore
from diffuserve.private_files import private_umask
from diffuserve.protocol.nodes import Nodes
from diffuserve.settings import Settings
from diffuserve.telemetry.logs import configure_logs
from diffuserve.version import __version__
from diffuserve.wiring.worker import checked

_LOOK_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class RayWorkerSetup(WorkerSetup):
    """What each worker of a fleet on Ray is.

    `settings` say the same as `arguments`, and hold no key. `cpus` are those of each of its `nodes`, and
    `node_secret_file` is on each. `idle_seconds`, `least` and `engine_command` are those of `WorkerConfig`.
    `version` is the fleet's.
    """

    settings: Mapping[str, object] = field(default_factory=dict)
    cpus: float = 1.0
    nodes: int = 1
    node_secret_file: Path | None = None
    idle_seconds: float | None = None
    least: int = 0
    engine_command: tuple[str, ...] = ()
    version: str = __version__


@dataclass(frozen=True)
class FleetFailure:
    """Why a worker ended, and whether no other start would help."""

    reason: str
    cannot_start: bool


class RayWorker:
    """A worker, or the first node of one. Its name is that of its actor and of its placement group."""

    def __init__(self, name: str, setup: RayWorkerSetup) -> None:
        self._name, self._setup = name, setup
        self._agent: WorkerAgent | None = None
        self._is_told_to_drain = False
        self._failure: FleetFailure | None = None
        self._address = (get_node_ip_address(), _free_port()) if setup.nodes > 1 else None
        _run_current_actor()

    async def run(self) -> None:
        """Work until drained. After a failure, wait until somebody has asked for it; then end this actor."""
        try:
            code = await self._work()
        except DiffuserveError as error:
            self._failure = FleetFailure(str(error), cannot_start=True)
        else:
            if code:
                reason = f"ended with exit code {code}; the actor's log in Ray's dashboard has the reason"
                self._failure = FleetFailure(reason, code == CANNOT_START)
        if self._failure is not None:
            await asyncio.sleep(FAILED_SECONDS)
        remove_placement_group(get_current_placement_group())  # with this actor, and those of other nodes

    async def drain(self) -> None:
        """Have the worker finish what it can in its time, and end."""
        self._is_told_to_drain = True
        if self._agent is not None:
            self._agent.drain()

    async def failure(self) -> FleetFailure | None:
        """Return why the worker has failed; `None` while it works."""
        return self._failure

    async def address(self) -> tuple[str, int] | None:
        """Return where the nodes of this worker meet."""
        return self._address

    async def _work(self) -> int:
        if complaint := complaint_of_version(self._setup.version):  # a node that came later was not asked
            raise InvalidParams("fleet", f"node {get_node_ip_address()}", complaint)
        config = _config(self._name, self._setup, rank=0, address=self._address)
        fetch = AdapterStore(config.engine_process.stored).fetch
        with private_umask():
            async with open_agent(config, fetch) as self._agent:
                if self._is_told_to_drain:
                    self._agent.drain()
                return await self._agent.run()


class RayNode:
    """A further node of a worker: the ranks on its GPUs, which meet those of the first node."""

    def __init__(self, name: str, rank: int, setup: RayWorkerSetup) -> None:
        self._name, self._rank, self._setup = name, rank, setup
        _run_current_actor()

    async def run(self) -> None:
        """Keep the ranks running, at a new address when the first node has moved."""
        while True:
            address = await self._first_address()
            if address is None:
                await asyncio.sleep(_LOOK_SECONDS)
                continue
            stop = asyncio.Event()
            config = _config(self._name, self._setup, self._rank, address)
            ranks = asyncio.create_task(keep_ranks(config, stop))
            while await self._first_address() in (address, None):
                await asyncio.sleep(_LOOK_SECONDS)
            stop.set()
            await ranks

    async def _first_address(self) -> tuple[str, int] | None:
        """Return where the first node is; `None` while it does not respond."""
        with suppress(ray.exceptions.RayError, ValueError):
            address: tuple[str, int] | None = await ray.get_actor(self._name).address.remote()
            return address
        return None


def complaint_of_version(version: str) -> str:
    """Return what this node objects to in a fleet of another version, "" for its own."""
    if version == __version__:
        return ""
    return f"has diffuserve {__version__}, and the fleet is of {version}; install the same on both"


def _config(name: str, setup: RayWorkerSetup, rank: int, address: tuple[str, int] | None) -> WorkerConfig:
    """Return a worker's configuration by this node's environment, which has its key. Raise as `checked`."""
    settings = Settings.with_options(**setup.settings)
    configure_logs(settings.logs)
    config = settings.worker
    nodes = None
    if address is not None:
        assert setup.node_secret_file is not None
        nodes = Nodes(setup.nodes, rank, *address, setup.node_secret_file)
    return replace(
        config,
        engine_process=checked(config.engine_process),
        further=tuple(map(checked, config.further)),
        name=name.replace("/", "-"),
        idle_seconds=setup.idle_seconds,
        idle_least=setup.least,
        engine_command=setup.engine_command,
        nodes=nodes,
    )


def _run_current_actor() -> None:
    """Have the actor run that is being made; one that is made anew first refuses its own calls."""
    ray.get_runtime_context().current_actor.run.options(max_task_retries=-1).remote()


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
