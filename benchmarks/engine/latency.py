"""What batch size, steps, size and cores do to latency and throughput: the engine on the frozen tiny model.

    python -m benchmarks latency              # 3 minutes; fills in the page and its plot as well
    python -m benchmarks latency --quick      # seconds; writes nothing

In closed loops, so many patient clients at a time, one thing is changed and the others stay; in open loops
requests arrive at random at shares of what the engine draws when always busy, one at a time and step by step,
and latency counts from arrival. Nothing else should run on the machine.
"""

import argparse
import asyncio
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from benchmarks.engine.latency_plot import LoadPoint, plotted
from benchmarks.shared import workloads
from benchmarks.shared.places import IMAGES, RESULTS, ROOT
from benchmarks.shared.report import markdown_table, read_conditions, refresh, write_report
from diffuserve import Engine, EngineConfig
from diffuserve.domain.requests.params import GenerationParams

PAGE = ROOT / "docs" / "explanation" / "latency-and-throughput.md"
PLOT = IMAGES / "latency-and-throughput.svg"
USUAL_SIDE = 128
WAYS = {"one at a time": EngineConfig(max_batch_size=1, ageing_steps=10**6), "step by step": EngineConfig()}


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is played: requests of a closed loop, their rounds, and requests of an open one; and what."""

    num_requests: int = 32
    rounds: int = 2
    num_arrivals: int = 120
    clients: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    steps: tuple[int, ...] = (1, 2, 4, 8, 20)
    sides: tuple[int, ...] = (64, 128, 256, 384)
    loads: tuple[float, ...] = (0.3, 0.5, 0.7, 0.85, 0.95)


QUICK = Scale(
    num_requests=4, rounds=1, num_arrivals=6, clients=(1, 4), steps=(1, 4), sides=(64, 128), loads=(0.3, 0.7)
)


@dataclass(frozen=True, kw_only=True)
class ClosedLoad:
    """Patient clients, and the images that they ask for; each default stays while others are varied."""

    clients: int = 8
    steps: int = 4
    side: int = USUAL_SIDE


@dataclass(frozen=True, kw_only=True)
class ClosedFigure:
    """Medians over the rounds of one closed loop, in which `varied` was `value`."""

    varied: str
    value: str
    images_per_second: float
    p50_seconds: float
    requests_per_step: float


def main() -> None:
    arguments = parse_arguments()
    scale = QUICK if arguments.quick else Scale()
    figures = closed_figures(scale)
    capacity, points = open_points(scale)
    text = "\n\n".join([*_tables(figures), _open_table(capacity, points)])
    print(text)
    if arguments.quick:
        return
    conditions = read_conditions(("torch",)) | {"checkpoint": workloads.checkpoint_name()}
    content = {
        "capacity": capacity,
        "closed": [asdict(each) for each in figures],
        "open": [asdict(each) for each in points],
    }
    stem = RESULTS / f"latency_{arguments.label}"
    path = write_report(stem, content, f"# Latency and throughput\n\n{text}", conditions)
    if path.parent != RESULTS:
        return  # of a busy machine
    PLOT.write_text(plotted(points))
    result = f"../../benchmarks/results/{path.name}.md"
    about = f"Tiny-flux on {conditions['cpu']}, {conditions['dtype']} ([result]({result})).\n\n{text}"
    plot = "![Seconds to an image over images a second, one at a time and step by step](../images/"
    refresh(PAGE, "latency", f"{about.replace('## ', '### ')}\n\n{plot}{PLOT.name})")
    print(f"filled in {PAGE} and {PLOT}")


def closed_figures(scale: Scale) -> list[ClosedFigure]:
    """Return what each closed loop gave; the threads and the dtype are varied on engines of their own."""
    with Engine.load(workloads.CHECKPOINT, device="cpu") as engine:
        own = str(engine.describe()["dtype"])
        figures = [_closed(engine, scale, varied, value, load) for varied, value, load in _varied(scale)]
    for threads, dtype in ((None, own), (1, own), (None, "float32")):
        config = EngineConfig(num_threads=threads)
        with Engine.load(workloads.CHECKPOINT, device="cpu", dtype=dtype, config=config) as engine:
            value = f"{'one core' if threads else 'all cores'}, {dtype}"
            figures.append(_closed(engine, scale, "hardware", value, ClosedLoad()))
    return figures


def _varied(scale: Scale) -> Iterator[tuple[str, str, ClosedLoad]]:
    """Yield what is varied, its value, and the load, for all that one engine can play."""
    for count in scale.clients:
        yield "clients at a time", str(count), ClosedLoad(clients=count)
    for count in scale.steps:
        yield "steps", str(count), ClosedLoad(steps=count)
    for side in scale.sides:
        yield "image", f"{side} × {side}", ClosedLoad(side=side)


def _closed(engine: Engine, scale: Scale, varied: str, value: str, load: ClosedLoad) -> ClosedFigure:
    rates, medians, before = list[float](), list[float](), engine.stats
    for number in range(scale.rounds + 1):
        if number == 1:  # the first round warms up
            before = replace(engine.stats)
        requests = [
            replace(each, num_inference_steps=load.steps)
            for each in workloads.equal(scale.num_requests, seed=number, side=load.side)
        ]
        seconds, latencies = asyncio.run(_play_closed(engine, iter(requests), load.clients))
        if number:
            rates.append(len(latencies) / seconds)
            medians.append(statistics.median(latencies))
    return ClosedFigure(
        varied=varied,
        value=value,
        images_per_second=statistics.median(rates),
        p50_seconds=statistics.median(medians),
        requests_per_step=engine.stats.since(before).mean_requests_per_step,
    )


async def _play_closed(
    engine: Engine, requests: Iterator[GenerationParams], clients: int
) -> tuple[float, list[float]]:
    clock, latencies = asyncio.get_running_loop().time, list[float]()
    began = clock()

    async def client() -> None:
        for request in requests:
            sent = clock()
            await engine.submit(request)
            latencies.append(clock() - sent)

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
    return clock() - began, latencies


def open_points(scale: Scale) -> tuple[float, list[LoadPoint]]:
    """Return images a second when always busy, and the seconds of each way at shares of that."""
    with Engine.load(workloads.CHECKPOINT, device="cpu") as engine:
        pipeline = engine.pipeline
        capacity = _closed(engine, scale, "capacity", "", ClosedLoad(clients=32)).images_per_second
        points = []
        for way, config in WAYS.items():
            with Engine(pipeline, config) as own:
                own.generate(workloads.equal(4, seed=99, side=USUAL_SIDE))
                points += [_open(own, scale, way, capacity, share) for share in scale.loads]
    return capacity, points


def _open(engine: Engine, scale: Scale, way: str, capacity: float, share: float) -> LoadPoint:
    rate = share * capacity
    requests = workloads.equal(scale.num_arrivals, seed=7, side=USUAL_SIDE)
    due = workloads.arrival_seconds(scale.num_arrivals, seed=7, rate=rate)
    latencies = asyncio.run(_play_open(engine, requests, due))
    p95 = statistics.quantiles(latencies, n=20, method="inclusive")[-1]
    return LoadPoint(way, share, rate, statistics.median(latencies), p95)


async def _play_open(
    engine: Engine, requests: Sequence[GenerationParams], due: Sequence[float]
) -> list[float]:
    clock = asyncio.get_running_loop().time
    zero, latencies = clock(), list[float]()

    async def draw(request: GenerationParams, second: float) -> None:
        await engine.submit(request)
        latencies.append(clock() - zero - second)

    async with asyncio.TaskGroup() as group:
        for request, second in zip(requests, due, strict=True):
            await asyncio.sleep(zero + second - clock())
            group.create_task(draw(request, second))
    return latencies


def _tables(figures: Sequence[ClosedFigure]) -> Iterator[str]:
    for varied in dict.fromkeys(each.varied for each in figures):
        rows = [_row(each) for each in figures if each.varied == varied]
        yield markdown_table(f"By {varied}", rows)


def _row(figure: ClosedFigure) -> dict[str, str]:
    return {
        figure.varied: figure.value,
        "images a second": f"{figure.images_per_second:.2f}",
        "seconds to an image, median": f"{figure.p50_seconds:.3f}",
        "requests a step": f"{figure.requests_per_step:.1f}",
    }


def _open_table(capacity: float, points: Sequence[LoadPoint]) -> str:
    rows = []
    for share in dict.fromkeys(each.share for each in points):
        row = {"load": f"{share:.0%} of {capacity:.1f} images a second"}
        for point in (each for each in points if each.share == share):
            row[f"{point.way}: p50, p95"] = f"{point.p50_seconds:.3f}, {point.p95_seconds:.3f} s"
        rows.append(row)
    return markdown_table("By load", rows)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few requests of each; writes no result")
    parser.add_argument("--label", default="cpu", help="names the machine in the result files' names")
    return parser.parse_args()


if __name__ == "__main__":
    main()
