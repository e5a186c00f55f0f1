"""Control planes, agents and engines as processes, and the faults to inject into them."""

import asyncio
import random
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from benchmarks.chaos.balancer import BadNetwork, Balancer
from benchmarks.chaos.bucket import ResultStore
from benchmarks.chaos.clock import SqliteClock
from benchmarks.chaos.tenants import Keys
from benchmarks.chaos.workers import StoredModel, ledger_of, several_models_command
from benchmarks.control.database import Database
from benchmarks.control.processes import (
    DIFFUSERVE,
    Program,
    api_command,
    free_port,
    null_agent_command,
    serving_environment,
)
from support.valkey import ValkeyServer

JOB_SECONDS = (0.3, 0.6, 1.0)
MAX_JOBS = 3
_FENCED = "diffusion_fenced_writes_total "
_READ_EVERY = 0.3
_SERVING_SECONDS = 180.0
_ROLES = ("decode", "denoise", "denoise")  # of agents, beside their seconds: every job has two phases
_CLOCKED_API = (sys.executable, "-m", "benchmarks.chaos.api")


@dataclass
class FenceCounter:
    """Refused writes by the control plane's metric, summed over the restarts of a server.

    It is read often: a server's counts since the last reading are lost with it.
    """

    earlier: int = 0
    latest: int = 0

    @property
    def total(self) -> int:
        return self.earlier + self.latest

    def server_died(self) -> None:
        self.earlier, self.latest = self.total, 0


class Server(Program):
    """A control plane that keeps its port over restarts."""

    def __init__(self, name: str, folder: Path, database: Database, settings: dict[str, str]) -> None:
        self.port = free_port()
        self.fenced = FenceCounter()
        command = api_command(self.port, folder / "data", database.url)
        if isinstance(database.clock, SqliteClock):
            command[: len(DIFFUSERVE)] = [*_CLOCKED_API, str(database.clock.file)]
        super().__init__(name, command, settings, folder / f"{name}.log")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def kill(self) -> None:
        super().kill()
        self.fenced.server_died()

    def fill_disk(self) -> None:
        """Let no file of the process grow, or be written at all, as on a disk that is full."""
        _, self._max_bytes = psutil.Process(self.pid).rlimit(psutil.RLIMIT_FSIZE)
        self._limit_files(0)

    def empty_disk(self) -> None:
        self._limit_files(self._max_bytes)

    def _limit_files(self, num_bytes: int) -> None:
        psutil.Process(self.pid).rlimit(psutil.RLIMIT_FSIZE, (num_bytes, self._max_bytes))

    async def read_fenced(self, client: httpx.AsyncClient) -> None:
        with suppress(httpx.HTTPError):
            answer = (await client.get(f"{self.url}/metrics")).raise_for_status()
            counts = [line for line in answer.text.splitlines() if line.startswith(_FENCED)]
            self.fenced.latest = int(float(counts[0].removeprefix(_FENCED)))


class Agent(Program):
    """A worker's agent; its only child is the engine."""

    def __init__(
        self, name: str, command: Sequence[str], key: str, folder: Path, environment: Mapping[str, str] = {}
    ) -> None:
        super().__init__(name, command, {"DIFFUSERVE_API_KEY": key, **environment}, folder / f"{name}.log")

    @property
    def decodes(self) -> bool:
        """True for an agent that only decodes."""
        return self.name.startswith("decode")

    def kill(self) -> None:
        """Kill the agent. An engine that was suspended with it goes on, and is to notice that by itself."""
        children = self.children()
        super().kill()
        _signal(children, signal.SIGCONT)

    def freeze_all(self) -> None:
        """Suspend the agent and its engine."""
        self.freeze()
        _signal(self.children(), signal.SIGSTOP)

    def wake_all(self) -> None:
        _signal(self.children(), signal.SIGCONT)
        self.wake()

    async def wake_with_results(self) -> None:
        """Continue the engine first, for the length of a job.

        The agent then has results to report before it learns that their leases are lost.
        """
        _signal(self.children(), signal.SIGCONT)
        await asyncio.sleep(max(JOB_SECONDS))
        self.wake_all()


def _signal(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


class Cluster:
    """Two replicas of the control plane with a Valkey, else a single one.

    Clients reach them at `url`, through the balancer, and agents through one of their own, over `network`.
    """

    def __init__(  # noqa: PLR0913 (what a cluster is made of)
        self,
        folder: Path,
        database: Database,
        valkey: ValkeyServer | None,
        lease_seconds: float,
        keys: Keys,
        network: BadNetwork | None,
        results: ResultStore,
    ) -> None:
        self.valkey, self.network, self._keys, self.results = valkey, network, keys, results
        self.failed_starts, self.ledger = 0, ledger_of(folder)
        settings = {**_settings(valkey, lease_seconds), **results.environment}
        names = ["server-1", "server-2"] if valkey else ["server-1"]
        self.servers = [Server(name, folder, database, settings) for name in names]
        ports = [server.port for server in self.servers]
        self._balancer, self._agents_balancer = Balancer(ports), Balancer(ports, network)
        self.stored_model = StoredModel(folder)
        self.agents = self._agents(folder)
        self._watch: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return self._balancer.url

    def _agents(self, folder: Path) -> list[Agent]:
        """Return agents of two phases, then those that fetch their model and that have several."""
        url, key = self._agents_balancer.url, self._keys.worker
        agents, ledger = [], ("--ledger", str(ledger_of(folder)))
        for index, (role, seconds) in enumerate(zip(_ROLES, JOB_SECONDS, strict=True)):
            name = f"{role}-{index + 1}"
            command = null_agent_command(url, name, MAX_JOBS, seconds, 1, role, engine_options=ledger)
            agents.append(Agent(name, command, key, folder))
        seconds, stored = JOB_SECONDS[0], self.stored_model
        command = stored.command(url, "fetching", MAX_JOBS, seconds)
        self.fetching = Agent("fetching", command, key, folder, stored.environment)
        command = several_models_command(url, "several", MAX_JOBS, seconds, folder)
        self.several = Agent("several", command, key, folder)
        return [*agents, self.fetching, self.several]

    @property
    def fenced_writes(self) -> int:
        return sum(server.fenced.total for server in self.servers)

    async def start(self) -> None:
        await self.results.start()
        await self._balancer.start()
        await self._agents_balancer.start()
        for server in self.servers:
            server.start()
        await asyncio.gather(*(self.serving(server) for server in self.servers))
        for agent in self.agents:
            agent.start()
        self._watch = asyncio.create_task(self._read_fenced_for_ever())

    async def serving(self, server: Server) -> None:
        """Wait until it responds; restart it if it ends, as it does while its database is unavailable."""
        async with httpx.AsyncClient(trust_env=False) as client, asyncio.timeout(_SERVING_SECONDS):
            while True:
                with suppress(httpx.HTTPError):
                    if (await client.get(f"{server.url}/healthz")).is_success:
                        return
                if not server.is_alive:
                    self.failed_starts += 1
                    server.start()
                await asyncio.sleep(0.1)

    async def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        for agent in self.agents:
            if agent.is_alive:
                agent.wake_all()
        for program in (*self.agents, *self.servers):
            await asyncio.to_thread(program.stop)
        self._balancer.stop()
        self._agents_balancer.stop()
        await self.results.stop()

    async def read_fenced(self) -> None:
        """Read all at the same time: a suspended server must not delay the others."""
        headers = {"authorization": f"Bearer {self._keys.monitor}"}
        async with httpx.AsyncClient(trust_env=False, timeout=2.0, headers=headers) as client:
            live = [server for server in self.servers if server.is_alive]
            await asyncio.gather(*(server.read_fenced(client) for server in live))

    async def _read_fenced_for_ever(self) -> None:
        while True:
            await self.read_fenced()
            await asyncio.sleep(_READ_EVERY)


def _settings(valkey: ValkeyServer | None, lease_seconds: float) -> dict[str, str]:
    return {
        **serving_environment(lease_seconds, lease_seconds / 3),
        "DIFFUSERVE_WEBHOOK_ALLOWED_NETWORKS": '["127.0.0.0/8"]',
        "DIFFUSERVE_WEBHOOK_ALLOWED_PORTS": '["1-65535"]',
        **({"DIFFUSERVE_VALKEY_URL": valkey.url} if valkey else {}),
    }


def kill_engine(agent: Agent) -> bool:
    """Kill the agent's engine with SIGKILL; return `False` if it has none at the moment."""
    engines = [child for child in agent.children() if _is_engine(child)]
    for engine in engines:
        with suppress(psutil.NoSuchProcess):
            engine.kill()
    return bool(engines)


def _is_engine(process: psutil.Process) -> bool:
    """Tell an engine from the process that reads what models are."""
    with suppress(psutil.NoSuchProcess):
        return "--socket" in process.cmdline()
    return False


async def restart_later(program: Program, dice: random.Random) -> None:
    """Restart a process shortly after its end, as a supervisor does."""
    await asyncio.sleep(dice.uniform(0.1, 1.0))
    program.start()
