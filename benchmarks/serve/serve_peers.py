"""Our server and others with the same model, each alone in its turn: what users have at three rates.

    python -m benchmarks serve-peers               # three seeds at each rate
    python -m benchmarks serve-peers --quick       # a few requests and one seed; writes nothing
    ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2 python -m benchmarks serve-peers --label cpu-avx2

The same mixed requests go to diffusers' pipeline behind FastAPI, LitServe and Ray Serve, to our engine under
LitServe's batching, and to `diffuserve serve` with and without its image filter; `diffuserve bench` plays
them. The rates are shares of what FastAPI draws one request at a time. Nothing else should run meanwhile.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import pytest

from benchmarks.control.processes import (
    DIFFUSERVE,
    Program,
    adopt_orphans,
    cpu_seconds,
    free_port,
    serving_environment,
)
from benchmarks.serve.load import running
from benchmarks.shared import workloads
from benchmarks.shared.places import RESULTS
from benchmarks.shared.report import markdown_table, read_conditions, write_report
from diffuserve.bench.arrivals import Ramp
from diffuserve.bench.figures import Spread, figures_of
from diffuserve.bench.load_request import LoadRequest
from diffuserve.bench.playing import Played
from diffuserve.bench.running import BenchPlan, BenchRun, Measured, Server, run_all
from diffuserve.bench.slo import Slo
from diffuserve.bench.targets import Address, LoadTarget
from diffuserve.bench.targets.diffuserve import Diffuserve
from diffuserve.bench.targets.template import Template
from support.environments import environment

SLO = Slo(0.95, 1.0)
NAIVE, OURS, FILTERED = "FastAPI, one at a time", "diffuserve serve, no image filter", "diffuserve serve"
_MODEL = str(workloads.CHECKPOINT)
_FIELDS = ("num_inference_steps", "seed")
_BODY = {name: f"${name}" for name in ("prompt", "width", "height", *_FIELDS)}
_PEER = Template.model_validate(
    {"path": "/predict", "body": {"input": _BODY}, "output": "png", "is": "base64"}
)
_RAY = "ray[serve]==2.60.0"
_PACKAGES = ("torch", "diffusers", "litserve", "fastapi", "uvicorn")
_PROGRAM = ("-m", "benchmarks.serve.peer_servers")
_LITSERVE = ("-m", "benchmarks.serve.litserve_app", "--batch", "8")
_STOP_SECONDS = 5.0
_LIMITS = ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")


@dataclass(frozen=True)
class Rate:
    """A load: a share of what one request at a time gives, and how many requests arrive so."""

    name: str
    share: float
    count: int


RATES = (Rate("low", 0.3, 10), Rate("70 %", 0.7, 20), Rate("saturated", 5.0, 40))
SATURATED = RATES[-1]
_AT_ONCE = 100.0  # requests a second, of the first round, which counts nowhere


@dataclass(frozen=True)
class Contender:
    """A server: its command without the port, and its API; `brings` is a package that it needs."""

    name: str
    command: tuple[str, ...]
    health: str = "/health"
    api: LoadTarget = _PEER
    brings: str | None = None

    def program(self, port: int, folder: Path) -> Program:
        """Return the server on this port. Raise `pytest.skip.Exception` if its packages cannot be had."""
        python = environment("ray-serve", [self.brings]) / "bin" / "python" if self.brings else sys.executable
        command = [*self.command, "--port", str(port)]
        command = command if self.command[0] == DIFFUSERVE[0] else [str(python), *command]
        own = {**serving_environment(), "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
        own["DIFFUSERVE_DATA_DIR"] = str(folder / self.name)
        return Program(self.name, command, own, folder / f"{self.name}.log")


def ours(name: str, *options: str) -> Contender:
    """Return our own server."""
    return Contender(name, (*DIFFUSERVE, "serve", "--model", _MODEL, *options), "/readyz", Diffuserve(None))


CONTENDERS = (
    Contender(NAIVE, (*_PROGRAM, "fastapi")),
    Contender("LitServe, batches of 8", _LITSERVE),
    Contender("LitServe, batches of 8, two workers", (*_LITSERVE, "--workers", "2")),
    Contender("Ray Serve, batches of 8", (*_PROGRAM, "ray", "--batch", "8"), brings=_RAY),
    Contender("LitServe, batches of 8, our engine", (*_LITSERVE, "--model", "ours")),
    ours(OURS, "--image-filter", "none"),
    ours(FILTERED),
)


@dataclass(frozen=True, kw_only=True)
class PeerFigures:
    """A server at one rate over all seeds: images a second are medians, latencies those of all requests."""

    server: str
    rate: str
    offered: float
    images_per_second: float
    goodput: float
    latency: Spread | None
    cpu_ms: float
    errors: Mapping[str, int]
    rounds: int


def main() -> None:
    adopt_orphans()  # Ray's daemons, and workers that LitServe leaves
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="diffuserve-serve-peers-") as folder:
        figures = asyncio.run(measure_all(Path(folder), arguments))
    text = tables_of(figures)
    print(text)
    if not (arguments.quick or arguments.only):
        conditions = read_conditions(_PACKAGES) | {
            "ray": _RAY.rpartition("==")[2],
            "instructions": ", ".join(f"{name}={os.environ.get(name, 'all')}" for name in _LIMITS),
            "checkpoint": workloads.checkpoint_name(),
        }
        content = {"slo": str(SLO), "figures": [asdict(each) for each in figures]}
        title = "# Our server and others, with one model"
        write_report(RESULTS / f"serve-peers_{arguments.label}", content, f"{title}\n\n{text}", conditions)


async def measure_all(folder: Path, arguments: argparse.Namespace) -> list[PeerFigures]:
    """Return the figures of every server that can be had, each started and stopped in its turn."""
    figures: list[PeerFigures] = []
    capacity = arguments.capacity
    for contender in CONTENDERS:
        if arguments.only and contender.name not in arguments.only:
            continue
        port = free_port()
        try:
            program = contender.program(port, folder)
        except pytest.skip.Exception as error:
            print(f"left out: {error}", flush=True)
            continue
        async with alone(program, port, contender.health):
            measuring = _Measuring(contender, program, port, arguments.quick)
            [warmed] = await measuring.play(SATURATED, _AT_ONCE, num_rounds=1)
            capacity = capacity or warmed.figures.request_throughput
            figures += [await measuring.figures(rate, capacity * rate.share) for rate in RATES]
    return figures


@asynccontextmanager
async def alone(program: Program, port: int, health: str) -> AsyncIterator[None]:
    """Run a server; when it has stopped, nothing that it started is left to slow the next one down."""
    try:
        async with running(program, port, health):
            yield
    finally:
        _, left = psutil.wait_procs(psutil.Process().children(recursive=True), _STOP_SECONDS)
        for process in left:
            process.kill()
        psutil.wait_procs(left, _STOP_SECONDS)


@dataclass(frozen=True)
class _Measuring:
    """Plays loads on a server that runs."""

    contender: Contender
    program: Program
    port: int
    is_quick: bool

    async def figures(self, rate: Rate, offered: float) -> PeerFigures:
        """Play a rate with each seed; the CPU counts what the server's processes take meanwhile."""
        before = cpu_seconds(self.program.pid, with_children=True)
        rounds = await self.play(rate, offered, 1 if self.is_quick else 3)
        spent = cpu_seconds(self.program.pid, with_children=True) - before
        found = _summary(self.contender.name, rate.name, offered, rounds, spent)
        print(f"{found.server}, {found.rate}: {found.images_per_second:.1f} a second", flush=True)
        return found

    async def play(self, rate: Rate, offered: float, num_rounds: int) -> list[Measured]:
        address, run = Address("http", f"http://127.0.0.1:{self.port}"), BenchRun()
        count = max(3, rate.count // 6) if self.is_quick else rate.count
        plan = BenchPlan(
            requests=lambda number: requests_of(count, seed=number),
            count=count,
            ramp=Ramp.steady(offered),
            slo=SLO,
            num_rounds=num_rounds,
        )
        await run_all([Server(address, self.contender.api)], plan, run, _show_nothing)
        return run.measured


def requests_of(count: int, seed: int) -> Iterator[LoadRequest]:
    """Yield mixed requests; the seed changes prompts and noise, but no shapes."""
    for params in workloads.mixed(count, seed):
        fields = {name: getattr(params, name) for name in _FIELDS}
        yield LoadRequest(
            label="mixed", prompt=params.prompt, width=params.width, height=params.height, fields=fields
        )


def _summary(server: str, rate: str, offered: float, rounds: Sequence[Measured], cpu: float) -> PeerFigures:
    outcomes = [outcome for each in rounds for outcome in each.played.outcomes]
    figures = [each.figures for each in rounds]
    return PeerFigures(
        server=server,
        rate=rate,
        offered=offered,
        images_per_second=statistics.median(each.request_throughput for each in figures),
        goodput=statistics.median(each.goodput or 0.0 for each in figures),
        latency=figures_of(outcomes, 1.0).latency,
        cpu_ms=1000 * cpu / len(outcomes),
        errors=Counter(str(each.error) for each in outcomes if each.error),
        rounds=len(rounds),
    )


def tables_of(figures: Sequence[PeerFigures]) -> str:
    """Return a table for each rate; ratios are to one request at a time."""
    tables = []
    for rate in RATES:
        at_rate = [each for each in figures if each.rate == rate.name]
        naive = next((each for each in at_rate if each.server == NAIVE), None)
        if at_rate:
            title = f"{rate.name.capitalize()}: {at_rate[0].offered:.1f} requests a second"
            tables.append(markdown_table(title, [_row(each, naive) for each in at_rate]))
    return "\n\n".join(tables)


def _row(figures: PeerFigures, naive: PeerFigures | None) -> Mapping[str, str]:
    spread = figures.latency
    percent = dict(spread.percentiles) if spread else {}
    times = figures.images_per_second / naive.images_per_second if naive else None
    return {
        "server": figures.server,
        "images a second": f"**{figures.images_per_second:.1f}**",
        "of one at a time": f"{times:.2f}×" if times and figures.rate == SATURATED.name else "",
        f"goodput ({SLO})": f"{figures.goodput:.1f}",
        **{f"p{at}": f"{percent[at]:.2f} s" if percent else "none" for at in (50, 95, 99)},
        "CPU an image": f"{figures.cpu_ms:.0f} ms",
        "failed": ", ".join(f"{count} {error}" for error, count in figures.errors.items()),
    }


def _show_nothing(title: str, played: Played) -> None:
    pass


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="play one seed of a few; writes nothing")
    parser.add_argument("--only", action="append", help="a server by its name; writes nothing")
    parser.add_argument("--capacity", type=float, help="images a second whose shares are played")
    parser.add_argument("--label", default="cpu", help="names the machine in the result's file name")
    return parser.parse_args()


if __name__ == "__main__":
    main()
