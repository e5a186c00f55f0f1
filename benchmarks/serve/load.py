"""An open load of mixed images through servers, and the CPU that each process spends on an image."""

import asyncio
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from benchmarks.control.load import Connection, post_request
from benchmarks.control.processes import DIFFUSERVE, Program, cpu_seconds, free_port, serving_environment
from benchmarks.shared import workloads
from benchmarks.shared.sides import Latencies, OurSide, RemoteSide
from benchmarks.shared.workloads import Arrivals
from diffuserve.domain.requests.params import GenerationParams

REQUESTS_PER_SECOND = 40.0
_MODEL = workloads.CHECKPOINT.name
_START_SECONDS = 180.0
_GENERATOR = "load generator"

Cpu = Mapping[str, float]


@dataclass(frozen=True)
class Played:
    """Latencies of a round in seconds, the seconds until the last image, and CPU seconds by process."""

    latencies: Latencies
    seconds: float
    cpu: Cpu


class Arm(Protocol):
    """A server under the load, or the engine by itself."""

    async def play(self, arrivals: Arrivals) -> Latencies:
        """Send each request when it arrives; return the seconds from arrival to image."""

    def cpu(self) -> Cpu:
        """Return the CPU seconds that each of its processes has taken so far."""


async def played(arm: Arm, arrivals: Arrivals) -> Played:
    """Play one round, and take what it cost."""
    before, start = arm.cpu(), time.perf_counter()
    latencies = await arm.play(arrivals)
    seconds, after = time.perf_counter() - start, arm.cpu()
    return Played(latencies, seconds, {name: after[name] - before[name] for name in after})


def arrivals(count: int, seed: int) -> Arrivals:
    """Return mixed requests that arrive at random, more quickly than two cores draw them."""
    return workloads.poisson(count, seed, REQUESTS_PER_SECOND)


class EngineArm:
    """A process with nothing but an engine."""

    def __init__(self, side: RemoteSide) -> None:
        self._side = side

    async def play(self, arrivals: Arrivals) -> Latencies:
        latencies: Latencies = await asyncio.to_thread(self._side.run_arrivals, arrivals)
        return latencies

    def cpu(self) -> Cpu:
        return {"engine": cpu_seconds(self._side.pid)}


class HttpArm:
    """A server that answers each request of a client that waits with its image."""

    def __init__(self, server: Program, port: int, path: str, processes: Callable[[int], Cpu]) -> None:
        self._server, self._port, self._path = server, port, path
        self._processes = processes

    async def play(self, arrivals: Arrivals) -> Latencies:
        async with AsyncExitStack() as stack:
            connections = [await stack.enter_async_context(Connection(self._port)) for _ in arrivals.requests]
            start = time.perf_counter()
            sent = zip(connections, arrivals.requests, arrivals.seconds, strict=True)
            return await asyncio.gather(*(self._send(*each, start) for each in sent))

    def cpu(self) -> Cpu:
        own = psutil.Process().cpu_times()
        return {_GENERATOR: own.user + own.system, **self._processes(self._server.pid)}

    async def _send(
        self, connection: Connection, request: GenerationParams, arrival: float, start: float
    ) -> float:
        await asyncio.sleep(arrival - (time.perf_counter() - start))
        body = json.dumps({"model": _MODEL, "input": request.to_dict()}).encode()
        answer = await connection.send(post_request(self._path, body, ["Prefer: wait=300"]))
        assert answer.status == 200, answer.body
        assert answer.json().get("status", "succeeded") == "succeeded", answer.body
        return time.perf_counter() - start - arrival


@contextmanager
def engine_alone() -> Iterator[Arm]:
    side = RemoteSide(OurSide)
    try:
        yield EngineArm(side)
    finally:
        side.stop()


@asynccontextmanager
async def served(folder: Path, image_filter: str) -> AsyncIterator[Arm]:
    """A diffuserve server whose worker is ready."""
    port = free_port()
    command = [*DIFFUSERVE, "serve", "--port", str(port), "--data-dir", str(folder / f"data-{image_filter}")]
    command += ["--model", str(workloads.CHECKPOINT), "--image-filter", image_filter]
    server = Program("serve", command, serving_environment(), folder / f"serve-{image_filter}.log")
    async with running(server, port, "/readyz"):
        yield HttpArm(server, port, "/v1/jobs", _processes_of_serve)


@asynccontextmanager
async def served_by_litserve(folder: Path) -> AsyncIterator[Arm]:
    """A LitServe server that has loaded its model."""
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.serve.litserve_app", "--port", str(port)]
    server = Program("litserve", command, {}, folder / "litserve.log")
    async with running(server, port, "/health"):
        yield HttpArm(server, port, "/predict", lambda pid: {"server": cpu_seconds(pid, with_children=True)})


@asynccontextmanager
async def running(server: Program, port: int, health_path: str) -> AsyncIterator[None]:
    """Start the server, wait until it responds 200 at that path, and stop it in the end."""
    server.start()
    try:
        await until_ready(server, port, health_path)
        yield
    finally:
        await asyncio.to_thread(server.stop)


async def until_ready(server: Program, port: int, path: str = "/readyz") -> None:
    """Wait until the server responds 200 at this path."""
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()
    async with asyncio.timeout(_START_SECONDS):
        while True:
            try:
                async with Connection(port) as connection:
                    if (await connection.send(request)).status == 200:
                        return
            except OSError:
                assert server.is_alive, "the server ended; see its log"
            await asyncio.sleep(0.1)


def _processes_of_serve(pid: int) -> Cpu:
    """Return the CPU seconds of the server with its helpers, of its agent, and of the agent's engine."""
    server = psutil.Process(pid)
    agents = [child for child in server.children() if "worker" in child.cmdline()]
    of_agents = sum(cpu_seconds(agent.pid) for agent in agents)
    with_engine = sum(cpu_seconds(agent.pid, with_children=True) for agent in agents)
    whole = cpu_seconds(pid, with_children=True)
    return {"server": whole - with_engine, "agent": of_agents, "engine": with_engine - of_agents}


@dataclass(frozen=True, kw_only=True)
class LoadFigure:
    """Medians over the rounds of an arm: images a second, latencies, and CPU-ms an image by process."""

    arm: str
    images_per_second: float
    p50_seconds: float
    p95_seconds: float
    cpu_ms: Mapping[str, float]
    rounds: int


def figure_of(arm: str, rounds: Sequence[Played]) -> LoadFigure:
    count = len(rounds[0].latencies)
    return LoadFigure(
        arm=arm,
        images_per_second=statistics.median(count / each.seconds for each in rounds),
        p50_seconds=statistics.median(statistics.median(each.latencies) for each in rounds),
        p95_seconds=statistics.median(statistics.quantiles(each.latencies, n=20)[-1] for each in rounds),
        cpu_ms={
            name: 1000 * statistics.median(each.cpu[name] for each in rounds) / count
            for name in rounds[0].cpu
        },
        rounds=len(rounds),
    )


async def measure_load(folder: Path, count: int, num_rounds: int) -> list[LoadFigure]:
    """Play an unmeasured round, and then each round in every arm, one after the other."""
    async with AsyncExitStack() as stack:
        arms: dict[str, Arm] = {
            "engine alone": stack.enter_context(engine_alone()),
            "serve": await stack.enter_async_context(served(folder, "none")),
            "serve with its image filter": await stack.enter_async_context(served(folder, "opennsfw")),
            "LitServe": await stack.enter_async_context(served_by_litserve(folder)),
        }
        rounds: dict[str, list[Played]] = {name: [] for name in arms}
        for seed in range(num_rounds + 1):
            for name, arm in arms.items():
                rounds[name].append(await played(arm, arrivals(count, seed)))
                print(f"round {seed} of {num_rounds}: {name} {rounds[name][-1].seconds:.1f} s", flush=True)
    return [figure_of(name, measured[1:]) for name, measured in rounds.items()]


def load_row(figure: LoadFigure, alone: LoadFigure) -> dict[str, str]:
    cpu = {name: f"{figure.cpu_ms[name]:.0f}" if name in figure.cpu_ms else "" for name in _COLUMNS}
    return {
        "": figure.arm,
        "images a second": f"**{figure.images_per_second:.1f}**",
        "of the engine alone": f"{figure.images_per_second / alone.images_per_second:.2f}",
        "p50": f"{figure.p50_seconds:.2f} s",
        "p95": f"{figure.p95_seconds:.2f} s",
        **{f"{name}, CPU-ms an image": shown for name, shown in cpu.items()},
    }


_COLUMNS = ("engine", "server", "agent", _GENERATOR)
