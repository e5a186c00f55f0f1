"""Random faults from a seed: processes are killed, suspended and restarted."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from benchmarks.chaos.audit import Holding, Records
from benchmarks.chaos.bucket import BucketStore, Door
from benchmarks.chaos.cluster import Agent, Cluster, Server, kill_engine, restart_later
from benchmarks.chaos.outages import ClockSteps, fill_disk, freeze_in_transaction
from benchmarks.chaos.plan import InjectedFaults, Plan
from benchmarks.control.database import Database

_TARGETS = ("agent", "agent", "engine", "engine", "server")
_HOLDS_SOMETHING_SECONDS = 60.0
_IN_FLIGHT_SECONDS = 0.1  # in which a claim that the server has read is granted
_LATE_GRANT_SECONDS = 0.5
_AGAIN_SECONDS = 1.0
_VALKEY_AWAY = (1.0, 5.0)
_SERVER_FROZEN = (0.5, 1.5)  # in lease times

Special = Callable[[], Coroutine[Any, Any, None]]


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
        self._is_database_hurt, self._is_bucket_hurt = asyncio.Lock(), asyncio.Lock()
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
            (plan.num_download_kills, 0.15, self._kill_in_download),
            (plan.num_decode_kills, 0.25, self._kill_decoder),
            (plan.num_bucket_outages, 0.35, self._shut_bucket),
            (plan.num_several_kills, 0.5, self._kill_several),
            (plan.num_decode_freezes, 0.55, self._freeze_decoder),
            (plan.num_cut_uploads, 0.65, self._cut_upload),
            (plan.num_database_outages, 0.75, self._stop_database),
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
            await self._kill_and_count(agent, target)

    async def _kill_worker(self, agent: Agent, target: str) -> bool:
        """Kill an agent, or its engine alone; return whether it was, and the database knows what it held."""
        self._busy.add(agent.name)  # a frozen engine would outlive its agent
        held = await self._pin(agent)
        is_killed = held is not None and (target == "agent" or kill_engine(agent))
        if is_killed and held is not None:
            self.toll.running_when_killed += len(held)
            self.toll.hurt += held
        if is_killed and target == "agent":
            agent.kill()
            self._start_again(agent)
        else:
            agent.wake_all()
            self._busy.discard(agent.name)
        return is_killed

    async def _kill_and_count(self, agent: Agent, target: str) -> None:
        if await self._kill_worker(agent, target):
            self.toll.count_kill(target)

    async def _pin(self, agent: Agent) -> list[Holding] | None:
        """Suspend an agent and its engine, and return what it holds; `None` if the database is away.

        What it is granted in this moment, by a claim that is under way, is excused later.
        """
        agent.freeze_all()
        await asyncio.sleep(_IN_FLIGHT_SECONDS)
        try:
            worker_ids = await self._records.ids_of(agent.name)
            held = await self._records.held_by(worker_ids)
        except (SQLAlchemyError, OSError):
            return None
        self._under_way.create_task(self._excuse(worker_ids, held))
        return held

    async def _excuse(self, worker_ids: Sequence[str], held: list[Holding]) -> None:
        await asyncio.sleep(_LATE_GRANT_SECONDS)
        while True:
            try:
                now = await self._records.held_by(worker_ids)
            except (SQLAlchemyError, OSError):
                await asyncio.sleep(_LATE_GRANT_SECONDS)
                continue
            self.toll.excused += [lease for lease in now if lease not in held]
            return

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
        await self._freeze(lambda agent: True)
        self.toll.freezes += 1

    async def _freeze(self, is_meant: Callable[[Agent], bool]) -> None:
        while True:
            agent = await self._agent_to_hurt(is_meant)
            self._busy.add(agent.name)
            await self._wait_for_work(agent)
            if (held := await self._pin(agent)) is not None:
                break
            agent.wake_all()
            self._busy.discard(agent.name)
        await self._until_lost(held)
        self.toll.excused += await self._held_by(agent)
        await agent.wake_with_results()
        self._busy.discard(agent.name)
        self.toll.running_when_frozen += len(held)
        self.toll.hurt += held

    async def _kill_decoder(self) -> None:
        while not await self._kill_worker(await self._agent_to_hurt(lambda agent: agent.decodes), "agent"):
            await asyncio.sleep(_AGAIN_SECONDS)
        self.toll.decode_kills += 1

    async def _freeze_decoder(self) -> None:
        await self._freeze(lambda agent: agent.decodes)
        self.toll.decode_freezes += 1

    async def _kill_several(self) -> None:
        """Kill the worker of several models while it has a job."""
        several = self._cluster.several
        while True:
            agent = await self._agent_to_hurt(lambda agent: agent is several)
            await self._wait_for_work(agent)
            if await self._kill_worker(agent, "agent"):
                break
        self.toll.several_kills += 1

    async def _kill_in_download(self) -> None:
        """Have a worker fetch its model anew, and kill it half-way; the next start goes on from there."""
        fetching, model = self._cluster.fetching, self._cluster.stored_model
        while True:
            agent = await self._agent_to_hurt(lambda agent: agent is fetching)
            if not await self._kill_worker(agent, "agent"):
                continue
            await asyncio.to_thread(model.forget)
            if await model.is_half_here(self._random, lambda: fetching.is_alive):
                agent = await self._agent_to_hurt(lambda agent: agent is fetching)
                if await self._kill_worker(agent, "agent"):
                    break
        self.toll.download_kills += 1

    async def _shut_bucket(self) -> None:
        """Let the bucket be away, refusing connections and answering 503 in turn."""
        async with self._is_bucket_hurt:
            if self.toll.bucket_outages % 2:
                self._door.fail()
            else:
                await self._door.shut()
            await self._until_bucket_is_back()
        self.toll.bucket_outages += 1

    async def _cut_upload(self) -> None:
        """Break an upload half-way, and let the bucket be away from then on."""
        async with self._is_bucket_hurt:
            await self._door.cut_an_upload()
            await self._door.shut()
            await self._until_bucket_is_back()
        self.toll.cut_uploads += 1

    async def _until_bucket_is_back(self) -> None:
        try:
            await asyncio.sleep(self._plan.bucket_away_seconds)
        finally:
            await self._door.open()

    @property
    def _door(self) -> Door:
        assert isinstance(self._cluster.results, BucketStore)
        return self._cluster.results.door

    async def _stop_database(self) -> None:
        """Kill the database, and start it again long after every lease would have ended."""
        assert self._database.kill is not None
        assert self._database.revive is not None
        async with self._is_database_hurt:
            await asyncio.to_thread(self._database.kill)
            await asyncio.sleep(self._plan.database_away_seconds)
            await asyncio.to_thread(self._database.revive)
        self.toll.database_outages += 1

    async def _kill_valkey(self) -> None:
        """Kill Valkey and restart it, on this thread: a child ends with the thread that started it."""
        assert self._cluster.valkey is not None
        self._cluster.valkey.kill()
        await asyncio.sleep(self._random.uniform(*_VALKEY_AWAY))
        self._cluster.valkey.start()
        self.toll.valkey_kills += 1

    async def _kill_database(self) -> None:
        assert self._database.kill is not None
        assert self._database.revive is not None
        async with self._is_database_hurt:
            await asyncio.to_thread(self._database.kill)
            await asyncio.to_thread(self._database.revive)
        self.toll.database_restarts += 1

    async def _wait_for_work(self, agent: Agent) -> None:
        deadline = time.monotonic() + _HOLDS_SOMETHING_SECONDS
        while time.monotonic() < deadline:
            if await self._held_by(agent):
                return
            await asyncio.sleep(0.02)

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
        agents = self._unhurt_agents()
        return self._random.choice(agents) if agents else None

    async def _agent_to_hurt(self, is_meant: Callable[[Agent], bool]) -> Agent:
        while not (agents := [agent for agent in self._unhurt_agents() if is_meant(agent)]):
            await asyncio.sleep(0.05)
        return self._random.choice(agents)

    def _unhurt_agents(self) -> list[Agent]:
        """Return the agents that run; one that ended by itself is a failure of the run."""
        agents = [agent for agent in self._cluster.agents if agent.name not in self._busy]
        for agent in agents:
            if not agent.is_alive:
                raise RuntimeError(f"{agent.name} ended, and nobody had killed it; its log says why")
        return agents

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
            return await self._records.held_by(await self._records.ids_of(agent.name))
        except (SQLAlchemyError, OSError):
            return []  # the database is away

    async def _num_running(self) -> int:
        try:
            return await self._records.num_running()
        except (SQLAlchemyError, OSError):
            return 0
