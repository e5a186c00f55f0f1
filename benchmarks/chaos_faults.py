"""Random faults from a seed: processes are killed, suspended and restarted."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from chaos_audit import Holding, Records
from chaos_cluster import Agent, Cluster, Server, kill_engine, restart_later
from chaos_outages import ClockSteps, fill_disk, freeze_in_transaction
from control_database import Database

_TARGETS = ("agent", "agent", "engine", "engine", "server")
_HOLDS_SOMETHING_SECONDS = 60.0
_VALKEY_AWAY = (1.0, 5.0)
_SERVER_FROZEN = (0.5, 1.5)  # in lease times

Special = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The faults of a run: at least `num_kills` over at least `seconds`, the others evenly among them.

    `kill_pause` is the mean time between kills. A blackout kills all control planes at once; `num_freezes`
    are of workers. After `longest_seconds` no more faults are injected, and no more jobs submitted.
    While a control plane is frozen with the lock, another one must write within `goes_on_seconds`.
    """

    num_kills: int
    kill_pause: float
    seconds: float
    num_freezes: int
    num_server_freezes: int
    num_transaction_freezes: int
    goes_on_seconds: float
    num_blackouts: int
    num_valkey_kills: int
    num_database_restarts: int
    num_full_disks: int
    num_clock_steps: int
    has_bad_network: bool
    longest_seconds: float
    lease_seconds: float
    webhook_grace_seconds: float
    seed: int


@dataclass
class InjectedFaults:
    """The injected faults. `hurt` are the leases of an agent or engine when it was killed or suspended.

    `transaction_freezes` are the seconds until another control plane wrote, for each freeze.
    """

    kills: dict[str, int] = field(default_factory=dict)
    running_when_killed: int = 0
    running_when_server_killed: int = 0
    freezes: int = 0
    running_when_frozen: int = 0
    server_freezes: int = 0
    transaction_freezes: list[float] = field(default_factory=list)
    blackouts: int = 0
    valkey_kills: int = 0
    database_restarts: int = 0
    full_disks: int = 0
    clock_steps: int = 0
    hurt: list[Holding] = field(default_factory=list)

    def count_kill(self, target: str) -> None:
        self.kills[target] = self.kills.get(target, 0) + 1

    @property
    def num_kills(self) -> int:
        return sum(self.kills.values())

    @property
    def num_faults(self) -> int:
        """All faults, without those of the network. The kills of a blackout are counted one by one."""
        freezes = self.freezes + self.server_freezes + len(self.transaction_freezes)
        outages = self.valkey_kills + self.database_restarts + self.full_disks + self.clock_steps
        return self.num_kills + freezes + outages


class FaultInjector:
    """Injects faults into the cluster's processes and its database.

    `write_to` has a control plane write; the time is taken that one needs while another one is frozen.
    """

    def __init__(
        self,
        cluster: Cluster,
        records: Records,
        plan: Plan,
        database: Database,
        write_to: Callable[[str], Awaitable[float]],
    ) -> None:
        self.toll = InjectedFaults()
        self._cluster, self._records, self._plan = cluster, records, plan
        self._database, self._write_to = database, write_to
        self._random = random.Random(plan.seed)
        self._clock = ClockSteps(database.clock, self._random)
        self._is_database_hurt = asyncio.Lock()
        self._busy: set[str] = set()  # suspended, or killed and not restarted yet
        self._under_way = asyncio.TaskGroup()

    async def run(self) -> None:
        """Inject all faults, and return once every process runs again."""
        started, specials = time.monotonic(), self._specials()
        async with self._under_way:
            while self._goes_on(time.monotonic() - started):
                await asyncio.sleep(self._plan.kill_pause * self._random.uniform(0.5, 1.5))
                share = self._share_done(started)
                while specials and specials[0][0] <= share:
                    self._under_way.create_task(specials.pop(0)[1]())
                await self._kill_one()
            for _, special in specials:
                self._under_way.create_task(special())

    def _goes_on(self, seconds: float) -> bool:
        is_done = self.toll.num_kills >= self._plan.num_kills and seconds >= self._plan.seconds
        return seconds < self._plan.longest_seconds and not is_done

    def _specials(self) -> list[tuple[float, Special]]:
        """Return the faults other than kills, each with the share of the run at which it is due."""
        plan = self._plan
        wanted: list[tuple[int, float, Special]] = [
            (plan.num_server_freezes, 0.1, self._freeze_server),
            (plan.num_transaction_freezes, 0.2, self._freeze_in_transaction),
            (plan.num_freezes, 0.3, self._freeze_agent),
            (plan.num_full_disks, 0.4, self._fill_disk),
            (plan.num_valkey_kills, 0.45, self._kill_valkey),
            (plan.num_database_restarts, 0.6, self._kill_database),
            (plan.num_clock_steps, 0.7, self._step_clock),
            (plan.num_blackouts, 0.8, self._kill_all_servers),
        ]
        specials = [((i + first) / count, special) for count, first, special in wanted for i in range(count)]
        return sorted(specials, key=lambda special: special[0])

    def _share_done(self, started: float) -> float:
        by_kills = self.toll.num_kills / max(1, self._plan.num_kills)
        by_time = (time.monotonic() - started) / self._plan.seconds
        return min(by_kills, by_time)

    async def _kill_one(self) -> None:
        target = self._random.choice(_TARGETS)
        if target == "server":
            await self._kill_one_server()
        elif (agent := self._any_agent()) is not None:
            await self._kill_worker(agent, target)

    async def _kill_worker(self, agent: Agent, target: str) -> None:
        """Kill an agent, or its engine alone."""
        self._busy.add(agent.name)  # a frozen engine would outlive its agent
        held = await self._held_by(agent)
        if target == "agent":
            agent.kill()
            self._start_again(agent)
        else:
            is_killed = kill_engine(agent)
            self._busy.discard(agent.name)
            if not is_killed:
                return
        self.toll.count_kill(target)
        self.toll.running_when_killed += len(held)
        self.toll.hurt += held

    async def _kill_one_server(self) -> None:
        """Kill a server, but never the last: another replica keeps serving."""
        servers = self._unhurt_servers()
        if len(servers) == len(self._cluster.servers):
            await self._kill_servers([self._random.choice(servers)])

    async def _kill_all_servers(self) -> None:
        """Kill all servers at once."""
        await self._kill_servers(await self._servers_to_hurt(len(self._cluster.servers)))
        self.toll.blackouts += 1

    async def _kill_servers(self, victims: Sequence[Server]) -> None:
        self._busy |= {victim.name for victim in victims}
        self.toll.running_when_server_killed += await self._num_running()
        await self._cluster.read_fenced()
        for victim in victims:
            victim.kill()
        for victim in victims:
            self.toll.count_kill("server")
            self._start_again(victim)

    async def _freeze_server(self) -> None:
        """Suspend a process with SIGSTOP, and continue it about a lease's duration later."""
        (victim,) = await self._servers_to_hurt(1)
        self._busy.add(victim.name)
        victim.freeze()
        await asyncio.sleep(self._plan.lease_seconds * self._random.uniform(*_SERVER_FROZEN))
        victim.wake()
        self._busy.discard(victim.name)
        self.toll.server_freezes += 1

    async def _freeze_in_transaction(self) -> None:
        """Suspend one control plane inside a transaction, and leave the others alone meanwhile."""
        async with self._is_database_hurt:
            victim, *others = servers = await self._servers_to_hurt(len(self._cluster.servers))
            names = {server.name for server in servers}
            self._busy |= names
            seconds = await freeze_in_transaction(
                victim, self._records, self._random, lambda: self._write_to(others[0].url)
            )
            self._busy -= names
        if seconds is not None:
            self.toll.transaction_freezes.append(seconds)

    async def _fill_disk(self) -> None:
        """Fill the disk of one control plane for a while."""
        (victim,) = await self._servers_to_hurt(1)
        self._busy.add(victim.name)
        await fill_disk(victim, self._random)
        self._busy.discard(victim.name)
        self.toll.full_disks += 1

    async def _step_clock(self) -> None:
        async with self._is_database_hurt:
            await self._clock.step()
        self.toll.clock_steps += 1

    async def _servers_to_hurt(self, count: int) -> list[Server]:
        while len(servers := self._unhurt_servers()) < count:
            await asyncio.sleep(0.05)
        return self._random.sample(servers, count)

    def _unhurt_servers(self) -> list[Server]:
        return [server for server in self._cluster.servers if server.name not in self._busy]

    async def _freeze_agent(self) -> None:
        """Suspend agent and engine until their leases are lost, then continue both."""
        agent = self._any_agent()
        if agent is None:
            return
        self._busy.add(agent.name)
        held = await self._wait_for_work(agent)
        agent.freeze_all()
        await self._until_lost(held)
        await agent.wake_with_results()
        self._busy.discard(agent.name)
        self.toll.freezes += 1
        self.toll.running_when_frozen += len(held)
        self.toll.hurt += held

    async def _kill_valkey(self) -> None:
        """Kill Valkey and restart it, on this thread: a child ends with the thread that started it."""
        assert self._cluster.valkey is not None
        self._cluster.valkey.kill()
        await asyncio.sleep(self._random.uniform(*_VALKEY_AWAY))
        self._cluster.valkey.start()
        self.toll.valkey_kills += 1

    async def _kill_database(self) -> None:
        assert self._database.restart is not None
        async with self._is_database_hurt:
            await asyncio.to_thread(self._database.restart)
        self.toll.database_restarts += 1

    async def _wait_for_work(self, agent: Agent) -> list[Holding]:
        deadline = time.monotonic() + _HOLDS_SOMETHING_SECONDS
        while not (held := await self._held_by(agent)) and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        return held

    async def _until_lost(self, held: list[Holding]) -> None:
        """Wait until the leases have expired and none is valid under its token (the reaper may be down)."""
        await asyncio.sleep(self._plan.lease_seconds)
        deadline = time.monotonic() + 60 * self._plan.lease_seconds
        while time.monotonic() < deadline:
            try:
                if not await self._records.live(held):
                    return
            except (SQLAlchemyError, OSError):
                pass  # the database is being restarted
            await asyncio.sleep(0.1)

    def _any_agent(self) -> Agent | None:
        agents = [agent for agent in self._cluster.agents if agent.name not in self._busy and agent.is_alive]
        return self._random.choice(agents) if agents else None

    def _start_again(self, program: Agent | Server) -> None:
        self._busy.add(program.name)

        async def start() -> None:
            await restart_later(program, self._random)
            if isinstance(program, Server):
                await self._cluster.serving(program)
            self._busy.discard(program.name)

        self._under_way.create_task(start())

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
