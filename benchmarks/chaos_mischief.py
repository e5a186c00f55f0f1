"""Killing, freezing and restarting, at random but from a seed."""

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from sqlalchemy.exc import SQLAlchemyError

from chaos_audit import Holding, Records
from chaos_cluster import Agent, Cluster, Server, kill_engine, restart_later

_TARGETS = ("agent", "agent", "engine", "engine", "server")
_KILL_PAUSE = (1.0, 3.0)
_HOLDS_SOMETHING_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """At least `num_kills`, over at least `seconds`; freezes and database restarts lie evenly among them."""

    num_kills: int
    seconds: float
    num_freezes: int
    num_database_restarts: int
    lease_seconds: float
    seed: int


@dataclass
class Toll:
    """What was done. `hurt` are the leases held by an agent or engine when it was killed or frozen."""

    kills: dict[str, int] = field(default_factory=dict)
    running_when_killed: int = 0
    running_when_server_killed: int = 0
    freezes: int = 0
    running_when_frozen: int = 0
    database_restarts: int = 0
    hurt: list[Holding] = field(default_factory=list)

    def count_kill(self, target: str) -> None:
        self.kills[target] = self.kills.get(target, 0) + 1

    @property
    def num_kills(self) -> int:
        return sum(self.kills.values())


class Mischief:
    """Owns the dice; the processes are the cluster's, and the database is `restart_database`'s."""

    def __init__(
        self, cluster: Cluster, records: Records, plan: Plan, restart_database: Callable[[], None] | None
    ) -> None:
        self.toll = Toll()
        self._cluster, self._records, self._plan = cluster, records, plan
        self._restart_database = restart_database
        self._dice = random.Random(plan.seed)
        self._busy: set[str] = set()  # frozen, or dead and not yet started again
        self._under_way: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        started, specials = time.monotonic(), self._specials()
        done = 0
        while self.toll.num_kills < self._plan.num_kills or time.monotonic() - started < self._plan.seconds:
            await asyncio.sleep(self._dice.uniform(*_KILL_PAUSE))
            share = self._share_done(started)
            while done < len(specials) and specials[done][0] <= share:
                self._spawn(specials[done][1]())
                done += 1
            await self._kill_one()
        for _, special in specials[done:]:
            await special()
        await asyncio.gather(*self._under_way)

    def _specials(self) -> list[tuple[float, Callable[[], Awaitable[None]]]]:
        """Each at its share of the run."""
        plan = self._plan
        freezes = [((i + 0.3) / plan.num_freezes, self._freeze_one) for i in range(plan.num_freezes)]
        restarts = [
            ((i + 0.6) / plan.num_database_restarts, self._kill_database)
            for i in range(plan.num_database_restarts if self._restart_database else 0)
        ]
        return sorted([*freezes, *restarts], key=lambda special: special[0])

    def _share_done(self, started: float) -> float:
        by_kills = self.toll.num_kills / max(1, self._plan.num_kills)
        by_time = (time.monotonic() - started) / self._plan.seconds
        return min(by_kills, by_time)

    async def _kill_one(self) -> None:
        target = self._dice.choice(_TARGETS)
        if target == "server":
            await self._kill_server()
        elif (agent := self._any_agent()) is not None:
            held = await self._held_by(agent)
            if target == "agent":
                agent.kill()
                self._start_again(agent)
            elif not kill_engine(agent):
                return
            self.toll.count_kill(target)
            self.toll.running_when_killed += len(held)
            self.toll.hurt += held

    async def _kill_server(self) -> None:
        servers = [one for one in self._cluster.servers if one.name not in self._busy]
        if not servers:
            return
        victim: Server = self._dice.choice(servers)
        self.toll.running_when_server_killed += await self._num_running()
        await self._cluster.read_fenced()
        victim.kill()
        self.toll.count_kill("server")
        self._start_again(victim)

    async def _freeze_one(self) -> None:
        """SIGSTOP agent and engine until their leases are lost, then wake both."""
        agent = self._any_agent()
        if agent is None:
            return
        self._busy.add(agent.name)
        held = await self._wait_for_work(agent)
        agent.signal_all(signal.SIGSTOP)
        await self._until_lost(held)
        agent.signal_all(signal.SIGCONT)
        self._busy.discard(agent.name)
        self.toll.freezes += 1
        self.toll.running_when_frozen += len(held)
        self.toll.hurt += held

    async def _kill_database(self) -> None:
        assert self._restart_database is not None
        await asyncio.to_thread(self._restart_database)
        self.toll.database_restarts += 1

    async def _wait_for_work(self, agent: Agent) -> list[Holding]:
        deadline = time.monotonic() + _HOLDS_SOMETHING_SECONDS
        while not (held := await self._held_by(agent)) and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        return held

    async def _until_lost(self, held: list[Holding]) -> None:
        """Past the lease, and until none of them is held under its old token (the reaper may be down)."""
        await asyncio.sleep(self._plan.lease_seconds)
        deadline = time.monotonic() + 10 * self._plan.lease_seconds
        while time.monotonic() < deadline:
            try:
                if not await self._records.live(held):
                    return
            except (SQLAlchemyError, OSError):
                pass  # the database is being restarted
            await asyncio.sleep(0.1)

    def _any_agent(self) -> Agent | None:
        agents = [one for one in self._cluster.agents if one.name not in self._busy and one.is_alive]
        return self._dice.choice(agents) if agents else None

    def _start_again(self, program: Agent | Server) -> None:
        self._busy.add(program.name)

        async def start() -> None:
            await restart_later(program, self._dice)
            self._busy.discard(program.name)

        self._spawn(start())

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._under_way.add(task)

    async def _held_by(self, agent: Agent) -> list[Holding]:
        try:
            return await self._records.held_by(agent.name)
        except (SQLAlchemyError, OSError):
            return []  # the database is being restarted

    async def _num_running(self) -> int:
        try:
            return await self._records.num_running()
        except (SQLAlchemyError, OSError):
            return 0
