"""Plays a trace on a real fleet: submits its jobs, loses its machines, and watches what comes of it."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from benchmarks.control.processes import Program
from benchmarks.fleet.figures import Course, Struck, area
from benchmarks.fleet.manager import NOTICE_SECONDS, ClusterManager, FleetCommand
from benchmarks.fleet.trace import LEAST, LossKind, MachineLoss, Trace, TracedJob
from diffuserve.domain.jobs.job import JobStatus
from diffuserve.domain.resources.job import JobResource
from diffuserve.domain.workers.worker import WorkerState
from diffuserve.sdk.async_client import AsyncClient

_LOOK_SECONDS = 0.25
_READY_SECONDS = 240.0
_END_SECONDS = 300.0
_VICTIM_SECONDS = 20.0
_LIVE = (WorkerState.READY, WorkerState.OCCUPIED)


@dataclass(frozen=True)
class Look:
    """A look at the fleet, at a second of the trace.

    `live` has the ids of the workers that are ready at the control plane by their names, `occupied` the names
    of those that have a job, and `placed` the nodes of those that the cluster manager counts.
    """

    second: float
    live: Mapping[str, str]
    occupied: frozenset[str]
    placed: Mapping[str, str]


@dataclass(frozen=True)
class Hit:
    """A loss as it was played: the worker that it hit, and its node."""

    loss: MachineLoss
    second: float
    worker: str
    node: str


@dataclass
class Watched:
    """What one fleet showed so far; the one who plays owns it."""

    looks: list[Look] = field(default_factory=list)
    hits: list[Hit] = field(default_factory=list)


@dataclass(frozen=True)
class PlayedFleet:
    """A fleet's course, the device-seconds of a step, and the seconds from a place to a ready worker."""

    course: Course
    step_seconds: float
    load_seconds: float


async def play(
    trace: Trace, manager: ClusterManager, server: str, folder: Path, variables: Mapping[str, str]
) -> PlayedFleet:
    """Keep a fleet while the trace goes by, and end it. Raise `RuntimeError` for one that is not ready."""
    own = {**variables, **manager.environment, "XDG_STATE_HOME": str(folder / "state")}
    fleet = Program("fleet", FleetCommand(manager, server).words, own, folder / "fleet.log")
    async with AsyncClient(server) as client:
        with _kept(fleet):
            playing = _Playing(trace, manager, client)
            await playing.until_ready(fleet)
            print("  the trace begins", flush=True)
            return await playing.run()


@contextmanager
def _kept(fleet: Program) -> Iterator[None]:
    """Run the program of a fleet; its end drains the workers."""
    fleet.start()
    try:
        yield
    finally:
        fleet.stop()


class _Playing:
    """One trace on one fleet."""

    def __init__(self, trace: Trace, manager: ClusterManager, client: AsyncClient) -> None:
        self._trace, self._manager, self._client = trace, manager, client
        self._watched = Watched()
        self._begun = time.time()

    async def until_ready(self, fleet: Program) -> None:
        """Wait for the least workers. The looks until then show how long workers take to start."""
        async with asyncio.timeout(_READY_SECONDS):
            while len((await self._look()).live) < LEAST:
                if not fleet.is_alive:
                    raise RuntimeError(f"the fleet has ended: {fleet.log.read_text('utf-8')[-2_000:]}")
                await asyncio.sleep(_LOOK_SECONDS)

    async def run(self) -> PlayedFleet:
        first = self._watched.looks
        self._watched, self._begun = Watched(), time.time()
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch())
            async with asyncio.TaskGroup() as tasks:
                submitted = [tasks.create_task(self._submit(job)) for job in self._trace.jobs]
                for loss in self._trace.losses:
                    tasks.create_task(self._lose(loss))
            jobs = [await self._client.wait(task.result(), _END_SECONDS) for task in submitted]
            watching.cancel()
        print("  all jobs have ended", flush=True)
        return _played(jobs, self._begun, first, self._watched)

    @property
    def _now(self) -> float:
        return time.time() - self._begun  # the control plane's clock too

    async def _until(self, second: float) -> None:
        await asyncio.sleep(second - self._now)

    async def _watch(self) -> None:
        told = None
        while True:
            look = await self._look()
            if told != (told := len(look.live)):
                print(f"  {look.second:5.1f} s: {told} workers ready", flush=True)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _look(self) -> Look:
        workers = [each for each in await self._client.workers() if each.state in _LIVE]
        placed = await asyncio.to_thread(self._manager.placed)
        live = {each.name: each.id for each in workers}
        occupied = frozenset(each.name for each in workers if each.num_leases)
        look = Look(self._now, live, occupied, placed)
        self._watched.looks.append(look)
        return look

    async def _submit(self, job: TracedJob) -> str:
        """Submit a job when it is due, and return its id."""
        await self._until(job.second)
        return (await self._client.submit(job.params)).id

    async def _lose(self, loss: MachineLoss) -> None:
        """Lose the machine of a worker that has a job, or of any."""
        await self._until(loss.second)
        worker, node = await self._victim(loss)
        hit = Hit(loss, self._now, worker, node)
        self._watched.hits.append(hit)
        print(f"  {hit.second:5.1f} s: {loss.kind} of {hit.node} with {worker}", flush=True)
        if loss.kind is LossKind.NOTICE:
            await asyncio.to_thread(self._manager.announce, hit.node)
            await self._until(hit.second + NOTICE_SECONDS)
        await asyncio.to_thread(self._manager.lose, hit.node)

    async def _victim(self, loss: MachineLoss) -> tuple[str, str]:
        """Return the worker that a loss hits, and its node, which no loss has hit so far."""
        async with asyncio.timeout(_VICTIM_SECONDS):
            while True:
                look = await self._look()
                hit = {hit.node for hit in self._watched.hits}
                if there := [name for name in look.live if look.placed.get(name, None) not in {None, *hit}]:
                    worker = loss.victim([name for name in there if name in look.occupied] or there)
                    return worker, look.placed[worker]
                await asyncio.sleep(_LOOK_SECONDS)


def _played(
    jobs: Sequence[JobResource], begun: float, first: Sequence[Look], watched: Watched
) -> PlayedFleet:
    drawn = [job for job in jobs if job.status is JobStatus.SUCCEEDED]
    until = max(_seconds(job.finished_at) for job in jobs) - begun
    device_seconds = [job.actual_seconds or 0.0 for job in drawn]
    times = [_seconds(job.finished_at) - _seconds(job.created_at) for job in drawn]
    course = Course(
        seconds=until,
        waits=tuple(max(each - own, 0.0) for each, own in zip(times, device_seconds, strict=True)),
        num_lost=len(jobs) - len(drawn),
        num_redrawn=sum(job.attempt > 1 for job in drawn),
        losses=tuple(_struck(hit, watched.looks) for hit in watched.hits),
        ready=_ready(watched.looks),
        workers=tuple((max(look.second, 0.0), len(look.live)) for look in watched.looks),
        worker_seconds=area([(look.second, len(look.placed)) for look in watched.looks], until),
    )
    steps = sum(job.input["num_inference_steps"] for job in drawn)
    return PlayedFleet(course, sum(device_seconds) / steps, _load_seconds(first))


def _seconds(time_of_job: str | None) -> float:
    assert time_of_job is not None
    return datetime.fromisoformat(time_of_job).timestamp()


def _struck(hit: Hit, looks: Sequence[Look]) -> Struck:
    before = [look for look in looks if look.second <= hit.second]
    gone = (look.second for look in looks if look.second > hit.second and _is_gone(hit, look))
    return Struck(hit.second, hit.loss.kind, len(before[-1].live), next(gone, None))


def _is_gone(hit: Hit, look: Look) -> bool:
    return look.placed.get(hit.worker) != hit.node


def _ready(looks: Sequence[Look]) -> tuple[float, ...]:
    """Return when workers became ready that were not there at first."""
    known = set(looks[0].live.values())
    found = []
    for look in looks:
        new = set(look.live.values()) - known
        found += [look.second] * len(new)
        known |= new
    return tuple(found)


def _load_seconds(looks: Sequence[Look]) -> float:
    """Return the seconds from the first worker's place to its readiness."""
    placed = next(look.second for look in looks if look.placed)
    return next(look.second for look in looks if look.live) - placed
