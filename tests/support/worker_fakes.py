"""Fakes of both sides of an agent: a control plane and engine processes that a test controls."""

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast
from unittest.mock import AsyncMock, patch

from diffuserve.agent.agent import WorkerAgent
from diffuserve.agent.config import WorkerConfig
from diffuserve.agent.engines import engines as engines_module
from diffuserve.agent.engines import supervisor
from diffuserve.agent.engines.engine_starter import EngineExited, EngineStarter
from diffuserve.agent.engines.supervisor import EngineSupervisor
from diffuserve.agent.spot.base import Notice, NoticeKind, Spot
from diffuserve.agent.spot.machine import ON_DEMAND, Machine
from diffuserve.client.leases import LeaseClient
from diffuserve.domain.jobs.claim import Claim
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.domain.jobs.progress_report import ProgressReport, WorkerProgress
from diffuserve.domain.models.residency import RESIDENT, Residency
from diffuserve.domain.workers.model_orders import ModelOrder
from diffuserve.domain.workers.worker import (
    Completion,
    ControlCommands,
    Failure,
    HandOver,
    Heartbeat,
    Lease,
    LeaseOutcome,
    ModelOffer,
    ReceivedCommands,
    Registered,
    Registration,
    Release,
    StoredFile,
)
from diffuserve.protocol.messages import (
    AddJob,
    EngineHeartbeat,
    EngineReady,
    EngineRefused,
    FromEngine,
    ModelAnnounced,
    ToEngine,
)
from diffuserve.telemetry.memory import Memory
from support.hand_worker import HAND_SPEC
from support.waiting import eventually

M = TypeVar("M", bound=ToEngine)
T = TypeVar("T")

TOKEN_BUDGET = 1_000
HEARTBEAT_SECONDS = 10.0


def make_lease(job_id: str = "j1", lease_token: int = 1, **values: Any) -> Lease:
    defaults: dict[str, Any] = {"kind": "image", "model": "m", "input": {"prompt": "a star"}, "attempt": 1}
    return Lease(job_id=job_id, lease_token=lease_token, lease_seconds=30.0, **(defaults | values))


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


def announced(name: str, **values: Any) -> ModelAnnounced:
    """Return what an engine says of a model of this name."""
    return ModelAnnounced(spec=replace(HAND_SPEC, name=name), **values)


@dataclass
class FakeControlPlane:
    """Takes the place of `LeaseClient`: keeps requests, and responds as the test has scripted.

    `leases` and `commands` are what the long polls return; an exception among them is raised. The other
    deques hold the next outcomes; empty, every request succeeds. Images of jobs arrive once `may_fetch`,
    and checkpoints are stored once `may_keep`. Heartbeats are given the `order`. Clients watch the jobs in
    `watched`. Heartbeats hang unless it `answers_heartbeats`, and uploads unless it `has_storage`.
    """

    registrations: list[Registration] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    heartbeats: list[Heartbeat] = field(default_factory=list)
    control_requests: list[ReceivedCommands] = field(default_factory=list)
    reports: list[tuple[str, ProgressReport]] = field(default_factory=list)
    progress_requests: list[WorkerProgress] = field(default_factory=list)
    watched: set[str] = field(default_factory=set)
    uploads: list[tuple[str, str]] = field(default_factory=list)
    completions: list[tuple[str, Completion]] = field(default_factory=list)
    handed_over: list[tuple[str, HandOver]] = field(default_factory=list)
    failures: list[tuple[str, Failure]] = field(default_factory=list)
    releases: list[tuple[str, Release]] = field(default_factory=list)
    deregistered: list[str] = field(default_factory=list)
    num_drains: int = 0
    may_leave: deque[bool | Exception] = field(default_factory=deque)
    left_at: list[float] = field(default_factory=list)
    is_closed: bool = False
    leases: asyncio.Queue[Sequence[Lease] | Exception] = field(default_factory=asyncio.Queue)
    commands: asyncio.Queue[ControlCommands | Exception] = field(default_factory=asyncio.Queue)
    registration_outcomes: deque[Exception | None] = field(default_factory=deque)
    heartbeat_outcomes: deque[ControlCommands | Exception] = field(default_factory=deque)
    order: ModelOrder | None = None
    more_offers: list[ModelOffer] = field(default_factory=list)
    report_outcomes: deque[Exception | None] = field(default_factory=deque)
    upload_outcomes: deque[Exception | None] = field(default_factory=deque)
    final_outcomes: deque[Exception | None] = field(default_factory=deque)
    fetches: list[str] = field(default_factory=list)
    fetch_outcomes: deque[Exception | None] = field(default_factory=deque)
    may_fetch: asyncio.Event = field(default_factory=asyncio.Event)
    kept: list[tuple[str, int, int]] = field(default_factory=list)
    may_keep: asyncio.Event = field(default_factory=asyncio.Event)
    max_inline_bytes: int = 0
    answers_heartbeats: asyncio.Event = field(default_factory=_set_event)
    has_storage: asyncio.Event = field(default_factory=_set_event)

    @property
    def is_storage_away(self) -> bool:
        return not self.has_storage.is_set()

    async def register(self, registration: Registration) -> Registered:
        self.registrations.append(registration)
        _raise_next(self.registration_outcomes)
        return Registered(f"w{len(self.registrations)}", 30.0, HEARTBEAT_SECONDS)

    async def claim(self, worker_id: str, claim: Claim, wait: float) -> list[Lease]:
        self.claims.append(claim)
        return list(_unless_error(await self.leases.get()))

    async def heartbeat(
        self, worker_id: str, heartbeat: Heartbeat, patience_seconds: float
    ) -> ControlCommands:
        self.heartbeats.append(heartbeat)
        await self.answers_heartbeats.wait()
        if self.heartbeat_outcomes:
            return _unless_error(self.heartbeat_outcomes.popleft())
        return ControlCommands(order=self.order)

    async def offer_more(self, worker_id: str, offer: ModelOffer) -> None:
        self.more_offers.append(offer)

    async def control(self, worker_id: str, wait: float, received: ReceivedCommands) -> ControlCommands:
        self.control_requests.append(received)
        return _unless_error(await self.commands.get())

    async def drain(self, worker_id: str) -> None:
        self.num_drains += 1

    async def leave(self, worker_id: str, least: int = 0) -> bool:
        """Answer as `may_leave` says next, and no when that is empty."""
        self.left_at.append(asyncio.get_running_loop().time())
        return _unless_error(self.may_leave.popleft()) if self.may_leave else False

    async def deregister(self, worker_id: str) -> None:
        self.deregistered.append(worker_id)

    async def report(self, job_id: str, report: ProgressReport) -> None:
        self.reports.append((job_id, report))
        _raise_next(self.report_outcomes)

    async def report_all(self, worker_id: str, progress: WorkerProgress) -> tuple[str, ...]:
        self.progress_requests.append(progress)
        self.reports += [(advanced.job_id, advanced.report) for advanced in progress.jobs]
        _raise_next(self.report_outcomes)
        return tuple(advanced.job_id for advanced in progress.jobs if advanced.job_id in self.watched)

    async def upload(self, job_id: str, lease_token: int, name: str, read: Callable[[], bytes]) -> StoredFile:
        self.uploads.append((job_id, name))
        _raise_next(self.upload_outcomes)
        await self.has_storage.wait()
        content = read()
        return StoredFile(name=name, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())

    async def fetch_inputs(
        self, job_id: str, lease_token: int, file_ids: Sequence[str], folder: Path
    ) -> dict[str, Path]:
        self.fetches.append(f"{job_id}-{lease_token}")
        path = folder / "input-0"
        path.write_bytes(b"half an image")
        await self.may_fetch.wait()
        _raise_next(self.fetch_outcomes)
        return dict.fromkeys(file_ids, path)

    async def keep_checkpoint(
        self, job_id: str, lease_token: int, slot: int, step: int, content: bytes
    ) -> None:
        """Note the slot and the step of a job's checkpoint, once it may be stored."""
        await self.may_keep.wait()
        self.kept.append((job_id, slot, step))

    async def complete(self, job_id: str, completion: Completion) -> LeaseOutcome:
        self.completions.append((job_id, completion))
        return self._final(job_id, JobStatus.SUCCEEDED)

    async def hand_over(self, job_id: str, report: HandOver) -> LeaseOutcome:
        self.handed_over.append((job_id, report))
        return self._final(job_id, JobStatus.QUEUED)

    async def fail(self, job_id: str, failure: Failure) -> LeaseOutcome:
        self.failures.append((job_id, failure))
        return self._final(job_id, JobStatus.FAILED)

    async def release(
        self, job_id: str, release: Release, patience_seconds: float | None = None
    ) -> LeaseOutcome:
        self.releases.append((job_id, release))
        return self._final(job_id, JobStatus.QUEUED)

    async def close(self) -> None:
        self.is_closed = True

    def _final(self, job_id: str, status: JobStatus) -> LeaseOutcome:
        _raise_next(self.final_outcomes)
        return LeaseOutcome(job_id=job_id, status=status)

    @property
    def client(self) -> LeaseClient:
        return cast(LeaseClient, self)


@dataclass
class FakeEngine:
    """Takes the place of `EngineLink`: the test sends its messages and ends it with an exit code."""

    folder: Path
    sent: list[ToEngine] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    attempts_at_death: frozenset[str] = frozenset()
    was_killed: bool = False
    model: str = ""
    was_stopped: bool = False
    exit_code: int = 0
    pid: int = 1
    _messages: asyncio.Queue[FromEngine | None] = field(default_factory=asyncio.Queue)

    def say(self, message: FromEngine) -> None:
        self._messages.put_nowait(message)

    def become_ready(self, token_budget: int = TOKEN_BUDGET, residency: Residency = RESIDENT) -> None:
        self.say(announced(self.model.partition("@")[0]))
        self.say(EngineReady(token_budget=token_budget, num_gpus=1, residency=residency))

    def beat(self, num_moves: int = 0, **values: Any) -> None:
        self.say(EngineHeartbeat(num_moves=num_moves, num_unfinished=0, **values))

    def die(self, exit_code: int, attempts: Collection[str] = ()) -> None:
        """End with this exit code, while working on `attempts`."""
        self.exit_code, self.attempts_at_death = exit_code, frozenset(attempts)
        self._messages.put_nowait(None)

    def sent_of(self, kind: type[M]) -> list[M]:
        return [message for message in self.sent if isinstance(message, kind)]

    @property
    def attempts(self) -> list[str]:
        """The attempts that were added, in their order."""
        return [added.attempt for added in self.sent_of(AddJob)]

    async def messages(self) -> AsyncIterator[FromEngine]:
        while (message := await self._messages.get()) is not None:
            yield message

    def send(self, message: ToEngine) -> None:
        self.sent.append(message)

    def job_folder(self, attempt: str) -> Path:
        folder = self.folder / attempt
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def drop_folder(self, attempt: str) -> None:
        self.dropped.append(attempt)

    def suspects(self) -> frozenset[str]:
        return self.attempts_at_death

    def kill(self) -> None:
        self.was_killed = True
        self.die(-9)

    async def stop(self) -> None:
        self.was_stopped = True
        self.die(0)

    async def close(self) -> int:
        return self.exit_code


@dataclass
class FakeEngines:
    """Takes the place of the class `EngineLink`: keeps each engine that is started.

    `exits` are the exit codes of the next ones that end before they connect.
    """

    folder: Path
    started: list[FakeEngine] = field(default_factory=list)
    started_at: list[float] = field(default_factory=list)
    exits: deque[int] = field(default_factory=deque)

    async def start(self, start_engine: partial[Any]) -> FakeEngine:
        self.started_at.append(asyncio.get_running_loop().time())
        if self.exits:
            raise EngineExited(self.exits.popleft())
        engine = FakeEngine(self.folder, model=start_engine.args[0].model)
        self.started.append(engine)
        return engine

    async def next(self, number: int = 1) -> FakeEngine:
        """Wait until the engine of this number, from 1, has started, and return it."""
        await eventually(lambda: len(self.started) >= number)
        return self.started[number - 1]


@dataclass
class FakeNotices:
    """Takes the place of a cloud's metadata service: `outcomes` are next, then `standing` is what it says."""

    standing: Notice | None = None
    outcomes: deque[Exception] = field(default_factory=deque)
    looks: list[float] = field(default_factory=list)
    acknowledged: list[Notice] = field(default_factory=list)
    may_acknowledge: bool = True
    is_closed: bool = False
    cloud: Spot = Spot.AZURE
    pause_seconds: float = 1.0

    async def is_spot(self) -> bool:
        return True

    async def look(self) -> Notice | None:
        self.looks.append(asyncio.get_running_loop().time())
        _raise_next(cast(deque[Exception | None], self.outcomes))
        return self.standing

    async def acknowledge(self, notice: Notice) -> None:
        if not self.may_acknowledge:
            await asyncio.sleep(3_600.0)
        self.acknowledged.append(notice)

    async def close(self) -> None:
        self.is_closed = True

    def interrupt(self) -> None:
        """Announce the end of the machine from now on."""
        self.standing = Notice(kind=NoticeKind.INTERRUPTION, details="not before noon", event_id="e1")


@dataclass
class AgentUnderTest:
    """A running agent and its surroundings. `memory` is what it reads of its own memory."""

    agent: WorkerAgent
    plane: FakeControlPlane
    engines: FakeEngines
    memory: list[Memory]
    exit_code: asyncio.Task[int]

    async def take(self, *leases: Lease) -> FakeEngine:
        """Let the agent claim `leases`, and return the engine that has them."""
        engine = self.engines.started[-1]
        self.plane.leases.put_nowait(leases)
        wanted = {f"{lease.job_id}-{lease.lease_token}" for lease in leases}
        await eventually(lambda: wanted <= set(engine.attempts))
        return engine


@asynccontextmanager
async def running_agent(
    folder: Path,
    is_ready: bool = True,
    machine: Machine = ON_DEMAND,
    several: Sequence[ModelAnnounced | EngineRefused] = (),
    **values: Any,
) -> AsyncGenerator[AgentUnderTest]:
    """Run an agent between a fake control plane and fake engines, the first of which becomes ready.

    It serves one model, or `several`, which it finds to be these.
    Engines may be silent and make no progress, unless `values` sets `silence_seconds` or `stall_seconds`.
    """
    plane, engines, memory = FakeControlPlane(), FakeEngines(folder), [Memory(0, 100)]
    patience = {"silence_seconds": 1e9, "stall_seconds": 1e9}
    config = WorkerConfig(server="http://plane", **(patience | values))
    process = replace(config.engine_process, model="configured" if several else "m")
    config = replace(config, engine_process=process, further=(process,) * (len(several) - 1))
    no_zygote = patch.object(EngineStarter, "prepare_zygote", AsyncMock())  # which is a real process
    read = patch.object(engines_module, "read_descriptions", AsyncMock(return_value=list(several)))
    with patch.object(supervisor, "EngineLink", engines), no_zygote, read:
        agent = WorkerAgent(config, plane.client, lambda _pids: memory[0], machine)
        under_test = AgentUnderTest(agent, plane, engines, memory, asyncio.create_task(agent.run()))
        if is_ready:
            (await engines.next()).become_ready()
            await eventually(lambda: bool(plane.claims))
        try:
            yield under_test
        finally:
            under_test.exit_code.cancel()
            await asyncio.wait({under_test.exit_code})


def engine_of(agent: WorkerAgent) -> EngineSupervisor:
    """Return the supervisor of the engine of an agent's first model, which is being loaded at least."""
    engine = agent._models.all[0].engine
    assert engine is not None
    return engine


def _raise_next(outcomes: deque[Exception | None]) -> None:
    error = outcomes.popleft() if outcomes else None
    if error is not None:
        raise error


def _unless_error(outcome: T | Exception) -> T:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
