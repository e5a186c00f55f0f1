"""`diffuserve serve` beside the bare engine: the cost of everything from HTTP to the file.

    python -m benchmarks serve
    python -m benchmarks serve --rounds 2 --only large

Both run the bundled model. One load generator, in this process, keeps the same number of requests
under way on either side, in turn: over HTTP, waiting for each job's end, and over a pipe to a process
that has nothing but an `Engine`. The server's images are PNG files with thumbnails by then, the bare
engine's are pixels in memory. Nothing else should run on the machine.
"""

import argparse
import asyncio
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from multiprocessing.connection import Connection as Pipe
from pathlib import Path

from benchmarks.control.load import Connection, post_request
from benchmarks.control.processes import DIFFUSERVE, Program, free_port, serving_environment
from benchmarks.serve.load import load_row, measure_load, running
from benchmarks.shared import workloads
from benchmarks.shared.places import RESULTS
from benchmarks.shared.report import markdown_table, read_conditions, write_report
from diffuserve.domain.requests.params import GenerationParams

Run = Callable[[Sequence[GenerationParams]], Awaitable[None]]

_MODEL = "tiny-flux"
OPEN_LOAD = "load"
_LOAD_TITLE = "An open load of mixed images, 40 requests a second"
_ABOUT = (
    f"All images are drawn with {workloads.checkpoint_name()}. "
    "The server's CPU includes its helper processes."
)
_PACKAGES = ("torch", "fastapi", "uvicorn", "sqlalchemy")


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A load of `count` requests, `at_once` of them at a time."""

    name: str
    side: int
    num_inference_steps: int
    count: int
    at_once: int
    target: float | None

    def requests(self, seed: int) -> list[GenerationParams]:
        return [
            GenerationParams(
                prompt=params.prompt,
                width=self.side,
                height=self.side,
                num_inference_steps=self.num_inference_steps,
                seed=params.seed,
            )
            for params in workloads.equal(self.count, seed, self.side)
        ]


SCENARIOS = (
    Scenario(name="large", side=512, num_inference_steps=10, count=16, at_once=4, target=0.9),
    Scenario(name="small", side=128, num_inference_steps=4, count=64, at_once=16, target=None),
)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Images per second of both sides, and the ratio of medians; `low` and `high` are of single rounds."""

    scenario: Scenario
    rounds: int
    alone_seconds: float
    bare: float
    serve: float
    ratio: float
    low: float
    high: float


def main() -> None:
    arguments = parse_arguments()
    scenarios = [scenario for scenario in SCENARIOS if arguments.only in (None, scenario.name)]
    folder = Path(tempfile.mkdtemp(prefix="diffuserve-bench-serve-"))
    print(f"logs in {folder}", flush=True)
    figures = asyncio.run(measure(scenarios, folder, arguments.rounds)) if scenarios else []
    text = markdown_table(
        "Served beside the bare engine, images a second", [_row(figure) for figure in figures]
    )
    print(text)
    load = []
    if arguments.only in (None, OPEN_LOAD):
        load = asyncio.run(measure_load(folder, arguments.requests, arguments.rounds))
        table = markdown_table(_LOAD_TITLE, [load_row(figure, load[0]) for figure in load])
        print(table)
        text += f"\n\n{table}"
    if arguments.only is None:
        content = {"figures": [asdict(figure) for figure in figures], "load": [asdict(each) for each in load]}
        text = f"# `diffuserve serve` beside the bare engine\n\n{text}\n\n{_ABOUT}"
        write_report(RESULTS / f"serve_{arguments.label}", content, text, read_conditions(_PACKAGES))


async def measure(scenarios: Sequence[Scenario], folder: Path, rounds: int) -> list[Figure]:
    with bare_engine() as bare:
        async with served(folder) as port:
            return [await compare(scenario, bare, port, rounds) for scenario in scenarios]


async def compare(scenario: Scenario, bare: Pipe, port: int, rounds: int) -> Figure:
    """Run an unmeasured round, then each side in turn."""

    async def on_bare(requests: Sequence[GenerationParams]) -> None:
        await run_bare(bare, requests, scenario.at_once)

    async def on_server(requests: Sequence[GenerationParams]) -> None:
        await run_served(port, requests, scenario.at_once)

    speeds: dict[Run, list[float]] = {on_bare: [], on_server: []}
    for seed in range(rounds + 1):
        for run, measured in speeds.items():
            measured.append(scenario.count / await _seconds(run, scenario.requests(seed)))
    theirs, ours = speeds[on_bare][1:], speeds[on_server][1:]
    ratios = [own / peer for own, peer in zip(ours, theirs, strict=True)]
    return Figure(
        scenario=scenario,
        rounds=rounds,
        alone_seconds=statistics.median(
            [await _seconds(on_bare, scenario.requests(seed)[:1]) for seed in range(rounds)]
        ),
        bare=statistics.median(theirs),
        serve=statistics.median(ours),
        ratio=statistics.median(ours) / statistics.median(theirs),
        low=min(ratios),
        high=max(ratios),
    )


async def run_bare(pipe: Pipe, requests: Sequence[GenerationParams], at_once: int) -> None:
    """Keep the number of requests in the engine; the pipe reports each that is finished."""
    loop, waiting = asyncio.get_running_loop(), iter(requests)
    for request in islice(waiting, at_once):
        pipe.send(request)
    for _ in requests:
        await loop.run_in_executor(None, pipe.recv)
        for request in islice(waiting, 1):
            pipe.send(request)


async def run_served(port: int, requests: Sequence[GenerationParams], at_once: int) -> None:
    """Keep the number of requests at the server; each task waits for its own job."""
    waiting = iter(requests)

    async def work() -> None:
        async with Connection(port) as connection:
            for request in waiting:
                body = json.dumps({"model": _MODEL, "input": request.to_dict()}).encode()
                answer = await connection.send(post_request("/v1/jobs", body, ["Prefer: wait=60"]))
                assert answer.status == 200, answer.body
                assert answer.json()["status"] == "succeeded", answer.body

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(work())


@contextmanager
def bare_engine() -> Iterator[Pipe]:
    """A child process with nothing but an engine; it reports each request once its image is finished."""
    context = multiprocessing.get_context("spawn")
    pipe, there = context.Pipe()
    process = context.Process(target=_run_engine, args=(there,), daemon=True)
    process.start()
    pipe.recv()  # loaded
    try:
        yield pipe
    finally:
        pipe.send(None)
        process.join()


def _run_engine(pipe: Pipe) -> None:
    asyncio.run(_answer(pipe))


async def _answer(pipe: Pipe) -> None:
    from diffuserve import Engine

    engine = await asyncio.to_thread(Engine.load, _MODEL)
    loop, tasks = asyncio.get_running_loop(), set()
    pipe.send("loaded")

    async def draw(request: GenerationParams) -> None:
        await engine.submit(request)
        pipe.send("done")

    while (request := await loop.run_in_executor(None, pipe.recv)) is not None:
        tasks.add(asyncio.create_task(draw(request)))
    await asyncio.gather(*tasks)
    engine.close()


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[int]:
    """Return the port of a server whose worker is ready."""
    port = free_port()
    command = [*DIFFUSERVE, "serve", "--port", str(port), "--data-dir", str(folder / "data")]
    command += ["--model", _MODEL, "--image-filter", "none"]  # the engine beside it has none either
    server = Program("serve", command, serving_environment(), folder / "serve.log")
    async with running(server, port, "/readyz"):
        yield port


async def _seconds(run: Run, requests: Sequence[GenerationParams]) -> float:
    started = time.perf_counter()
    await run(requests)
    return time.perf_counter() - started


def _row(figure: Figure) -> dict[str, str]:
    scenario = figure.scenario
    return {
        "requests": f"{scenario.count} of {scenario.side} px, {scenario.num_inference_steps} steps",
        "at once": f"{scenario.at_once}",
        "one alone": f"{figure.alone_seconds:.2f} s",
        "bare engine": f"{figure.bare:.2f}",
        "serve": f"{figure.serve:.2f}",
        "serve / bare": f"**{figure.ratio:.2f}**",
        "single rounds": f"{figure.low:.2f}-{figure.high:.2f} ({figure.rounds})",
        "target": "" if scenario.target is None else f"{scenario.target:g}",
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7, help="measured rounds a scenario (default 7)")
    parser.add_argument(
        "--only",
        choices=[*(scenario.name for scenario in SCENARIOS), OPEN_LOAD],
        help="one scenario; writes no result file",
    )
    parser.add_argument("--requests", type=int, default=160, help="of the open load (default 160)")
    parser.add_argument("--label", default="cpu", help="names the machine in the result's file name")
    return parser.parse_args()


if __name__ == "__main__":
    main()
