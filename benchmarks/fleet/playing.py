"""Plays a trace on a real fleet: submits its jobs, loses its machines, and watches what comes of it."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

from benchmarks.control.processes import Program
from benchmarks.fleet.looks import Hit, Look, PlayedFleet, played_of
from benchmarks.fleet.manager import NOTICE_SECONDS, ClusterManager, FleetCommand
from benchmarks.fleet.trace import LEAST, LossKind, MachineLoss, Trace, TracedJob
from diffuserve.domain.workers.worker import WorkerState
from diffuserve.sdk.async_client import AsyncClient

_LOOK_SECONDS = 0.25
_READY_SECONDS = 240.0
_END_SECONDS = 300.0
_VICTIM_SECONDS = 120.0
_LIVE = (WorkerState.READY, WorkerState.OCCUPIED)

P = ParamSpec("P")
T = TypeVar("T")


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
        self._looks: list[Look] = []
        self._hits: list[Hit] = []
        self._begun = time.time()
        self._turn = asyncio.Lock()

    async def until_ready(self, fleet: Program) -> None:
        """Wait for the least workers. The looks until then show how long workers take to start."""
        async with asyncio.timeout(_READY_SECONDS):
            while len((await self._look()).live) < LEAST:
                if not fleet.is_alive:
                    raise RuntimeError("the fleet has ended by itself; fleet.log says why")
                await asyncio.sleep(_LOOK_SECONDS)

    async def run(self) -> PlayedFleet:
        first, self._looks, self._begun = self._looks, [], time.time()
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(self._watch())
            async with asyncio.TaskGroup() as tasks:
                submitted = [tasks.create_task(self._submit(job)) for job in self._trace.jobs]
                for loss in self._trace.losses:
                    tasks.create_task(self._lose(loss))
            jobs = [await self._client.wait(task.result(), _END_SECONDS) for task in submitted]
            watching.cancel()
        print("  all jobs have ended", flush=True)
        return played_of(jobs, self._begun, first, self._looks, self._hits)

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
        placed = await self._asked(self._manager.placed)
        live = {each.name: each.id for each in workers}
        occupied = frozenset(each.name for each in workers if each.num_leases)
        look = Look(self._now, live, occupied, placed)
        self._looks.append(look)
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
        self._hits.append(hit)
        print(f"  {hit.second:5.1f} s: {loss.kind} of {hit.node} with {worker}", flush=True)
        if loss.kind is LossKind.NOTICE:
            await self._asked(self._manager.announce, hit.node)
            await self._until(hit.second + NOTICE_SECONDS)
        await self._asked(self._manager.lose, hit.node)

    async def _asked(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what the cluster manager answers, which takes one order at a time."""
        async with self._turn:
            return await asyncio.to_thread(call, *args, **kwargs)

    async def _victim(self, loss: MachineLoss) -> tuple[str, str]:
        """Return the worker that a loss hits, and its node, which no loss has hit so far."""
        async with asyncio.timeout(_VICTIM_SECONDS):
            while True:
                look = await self._look()
                hit = {hit.node for hit in self._hits}
                if there := [name for name in look.live if look.placed.get(name, None) not in {None, *hit}]:
                    worker = loss.victim([name for name in there if name in look.occupied] or there)
                    return worker, look.placed[worker]
                await asyncio.sleep(_LOOK_SECONDS)
