"""A control plane, its agents and engines as processes, and the ways to hurt them."""

import asyncio
import random
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from control_processes import Program, api_command, free_port, null_agent_command, serving_environment

JOB_SECONDS = (0.3, 0.6, 1.0)
MAX_JOBS = 3
_FENCED = "diffusion_fenced_writes_total "
_READ_EVERY = 0.3


@dataclass
class FenceCounter:
    """Refused writes as the control plane counts them, summed over the lives of one server.

    Read often: what a server counted after the last reading dies with it.
    """

    earlier: int = 0
    latest: int = 0

    @property
    def total(self) -> int:
        return self.earlier + self.latest

    def server_died(self) -> None:
        self.earlier, self.latest = self.total, 0


class Server(Program):
    """A control plane on a port that stays its own."""

    def __init__(self, name: str, folder: Path, database_url: str | None, settings: dict[str, str]) -> None:
        self.port = free_port()
        self.fenced = FenceCounter()
        command = api_command(self.port, folder / "data", database_url)
        super().__init__(name, command, settings, folder / f"{name}.log")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def kill(self) -> None:
        super().kill()
        self.fenced.server_died()

    async def read_fenced(self, client: httpx.AsyncClient) -> None:
        with suppress(httpx.HTTPError):
            answer = await client.get(f"{self.url}/metrics")
            counts = [line for line in answer.text.splitlines() if line.startswith(_FENCED)]
            self.fenced.latest = int(float(counts[0].removeprefix(_FENCED)))


class Agent(Program):
    """A worker's agent; its one child is the engine."""

    def __init__(self, name: str, server: Server, seconds: float, folder: Path) -> None:
        command = null_agent_command(server.url, name, MAX_JOBS, seconds, files=1)
        super().__init__(name, command, {}, folder / f"{name}.log")

    def signal_all(self, number: signal.Signals) -> None:
        """The agent first when it is to stop, the engine first when it is to go on.

        So the engine's results are there before the agent can hear that its leases are lost.
        """
        processes = [psutil.Process(self.pid), *self.children()]
        for process in processes if number is signal.SIGSTOP else reversed(processes):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)


class Cluster:
    """On PostgreSQL two replicas of the control plane share the work, on SQLite there is one."""

    def __init__(self, folder: Path, database_url: str | None, lease_seconds: float, num_agents: int) -> None:
        settings = serving_environment(lease_seconds, lease_seconds / 3)
        names = ["server-1", "server-2"] if database_url else ["server-1"]
        self.servers = [Server(name, folder, database_url, settings) for name in names]
        self.agents = [
            Agent(
                f"agent-{index + 1}",
                self.servers[index % len(self.servers)],
                JOB_SECONDS[index % len(JOB_SECONDS)],
                folder,
            )
            for index in range(num_agents)
        ]
        self._watch: asyncio.Task[None] | None = None

    @property
    def fenced_writes(self) -> int:
        return sum(server.fenced.total for server in self.servers)

    async def start(self) -> None:
        for server in self.servers:
            server.start()
            await self.answering(server)
        for agent in self.agents:
            agent.start()
        self._watch = asyncio.create_task(self._read_fenced_for_ever())

    async def answering(self, server: Server, timeout: float = 30.0) -> None:
        async with httpx.AsyncClient(trust_env=False) as client, asyncio.timeout(timeout):
            while True:
                with suppress(httpx.HTTPError):
                    if (await client.get(f"{server.url}/healthz")).is_success:
                        return
                assert server.is_alive, f"{server.name} ended; see its log"
                await asyncio.sleep(0.05)

    async def stop(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        for agent in self.agents:
            if agent.is_alive:
                agent.signal_all(signal.SIGCONT)
        for program in (*self.agents, *self.servers):
            await asyncio.to_thread(program.stop)

    async def read_fenced(self) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=2.0) as client:
            for server in self.servers:
                if server.is_alive:
                    await server.read_fenced(client)

    async def _read_fenced_for_ever(self) -> None:
        while True:
            await self.read_fenced()
            await asyncio.sleep(_READ_EVERY)


def kill_engine(agent: Agent) -> bool:
    """`kill -9` the agent's engine; False when it has none at the moment."""
    engines = agent.children()
    for engine in engines:
        with suppress(psutil.NoSuchProcess):
            engine.kill()
    return bool(engines)


async def restart_later(program: Program, dice: random.Random) -> None:
    """As a supervisor does: a moment after the death."""
    await asyncio.sleep(dice.uniform(0.1, 1.0))
    program.start()
