"""Plays a trace on a real fleet: submits its jobs, loses its machines, and watches what comes of it."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.control.processes import Program
from benchmarks.fleet.figures import Course, Struck, area
from benchmarks.fleet.manager import NOTICE_SECONDS, ClusterManager, FleetCommand
from benchmarks.fleet.trace import LEAST, LossKind, MachineLoss, Trace, TracedJob
from diffuserve.bench.http import Http

_LOOK_SECONDS = 0.25
_READY_SECONDS = 240.0
_END_SECONDS = 300.0
_VICTIM_SECONDS = 20.0
_FINAL = frozenset({"succeeded", "failed", "canceled", "expired"})
_LIVE = frozenset({"ready", "occupied"})


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
    http = Http(server, None, 60.0)
    with _kept(fleet):
        playing = _Playing(trace, manager, http)
        await playing.until_ready(fleet)
        played = await playing.run()
    await http.close()
    return played


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

    def __init__(self, trace: Trace, manager: ClusterManager, http: Http) -> None:
        self._trace, self._manager, self._http = trace, manager, http
        self._watched = Watched()
        self._begun = time.monotonic()

    async def until_ready(self, fleet: Program) -> None:
        """Wait for the least workers. The looks until then show how long workers take to start."""
        async with asyncio.timeout(_READY_SECONDS):
            while len((await self._look()).live) < LEAST:
                if not fleet.is_alive:
                    raise RuntimeError(f"the fleet has ended: {fleet.log.read_text('utf-8')[-2_000:]}")
                await asyncio.sleep(_LOOK_SECONDS)

    async def run(self) -> PlayedFleet:
        first = self._watched.looks
        self._watched, self._begun = Watched(), time.monotonic()
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch())
            async with asyncio.TaskGroup() as tasks:
                ends = [tasks.create_task(self._job(job)) for job in self._trace.jobs]
                for loss in self._trace.losses:
                    tasks.create_task(self._lose(loss))
            watching.cancel()
        return _played([end.result() for end in ends], self._trace, first, self._watched)

    @property
    def _now(self) -> float:
        return time.monotonic() - self._begun

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
        workers = (await self._http.json("GET", "/v1/workers"))["data"]
        placed = await asyncio.to_thread(self._manager.placed)
        live = {each["name"]: each["id"] for each in workers if each["state"] in _LIVE}
        occupied = frozenset(each["name"] for each in workers if each["num_leases"]) & live.keys()
        look = Look(self._now, live, occupied, placed)
        self._watched.looks.append(look)
        return look

    async def _job(self, job: TracedJob) -> Mapping[str, Any]:
        """Submit a job when it is due, and return it at its end."""
        await self._until(job.second)
        found = await self._http.json("POST", "/v1/jobs", {"input": job.input})
        async with asyncio.timeout(_END_SECONDS):
            while found["status"] not in _FINAL:
                found = await self._http.json("GET", f"/v1/jobs/{found['id']}?wait=25")
        return {**found, "ended": self._now, "submitted": job.second}

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
    ended: Sequence[Mapping[str, Any]], trace: Trace, first: Sequence[Look], watched: Watched
) -> PlayedFleet:
    drawn = [job for job in ended if job["status"] == "succeeded"]
    until = max(job["ended"] for job in ended)
    steps = sum(job["input"]["num_inference_steps"] for job in drawn)
    course = Course(
        seconds=until,
        waits=tuple(max(_seconds_of(job) - job["actual_seconds"], 0.0) for job in drawn),
        num_lost=len(trace.jobs) - len(drawn),
        num_redrawn=sum(job["attempt"] > 1 for job in drawn),
        losses=tuple(_struck(hit, watched.looks) for hit in watched.hits),
        ready=_ready(watched.looks),
        workers=tuple((max(look.second, 0.0), len(look.live)) for look in watched.looks),
        worker_seconds=area([(look.second, len(look.placed)) for look in watched.looks], until),
    )
    step_seconds = sum(job["actual_seconds"] for job in drawn) / steps
    return PlayedFleet(course, step_seconds, _load_seconds(first))


def _seconds_of(job: Mapping[str, Any]) -> float:
    created, finished = (datetime.fromisoformat(job[name]) for name in ("created_at", "finished_at"))
    return (finished - created).total_seconds()


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
