"""Clips and images of a Wan model in the engine, beside diffusers' pipeline, and beside another tenant.

    python -m benchmarks video                          # all scenarios, about 8 minutes
    python -m benchmarks video --rounds 1 --only mixed
    python -m benchmarks video --quick                  # whether it runs; the figures mean nothing

The checkpoint has random weights in the sizes of a tiny model, 8 M parameters, which cost what trained
ones cost. Figures and results are as in the engine's benchmark; `fairness` asks a server for images while
another tenant floods it with clips. Nothing else should run on the machine.
"""

import argparse
import asyncio
import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace

import numpy as np

import benchmarks.video.workloads as workloads
from benchmarks.engine.engine import Figure, alternate, compare
from benchmarks.shared.places import RESULTS
from benchmarks.shared.report import markdown_table, read_conditions, write_report
from benchmarks.shared.sides import RemoteSide
from benchmarks.video.fairness import Fairness, FairnessFigure, measure_fairness
from benchmarks.video.sides import OurSide, Pixels, StockSide

STATIC_BATCHES = (1, 2, 4, 8)
MIXED, EQUAL, FAIRNESS = "mixed", "equal", "fairness"
_TITLE = "# Clips and images of a Wan model in the engine"


@dataclass(frozen=True)
class Load:
    """The numbers of requests and of rounds of a run."""

    rounds: int
    num_mixed: int = 24
    num_equal: int = 16
    clip: workloads.Shape = workloads.CLIP
    fairness: Fairness = field(default_factory=Fairness)


@dataclass(frozen=True)
class ClipFigure:
    """A comparison with diffusers, and the number of requests that its seconds are for."""

    figure: Figure
    num_requests: int


def main() -> None:
    arguments = parse_arguments()
    load = quick_load() if arguments.quick else Load(arguments.rounds)
    workloads.write_checkpoint()
    figures: list[ClipFigure] = []
    conditions: dict[str, str] = {}
    if arguments.only != FAIRNESS:
        figures, conditions = compare_with_stock(load, arguments.only)
        print(markdown_table("Beside diffusers", [row(figure) for figure in figures]))
        print("\n".join(f"{name}: {value}" for name, value in conditions.items()), flush=True)
    writes = arguments.only is None and not arguments.quick
    if writes:
        write_results(figures, [], conditions, arguments.label)  # kept, whatever becomes of the rest
    if arguments.only in (None, FAIRNESS):
        fairness = asyncio.run(measure_fairness(load.fairness))
        print(markdown_table("Images beside clips", [fairness_row(figure) for figure in fairness]))
        if writes:
            write_results(figures, fairness, conditions, arguments.label)


def quick_load() -> Load:
    image, clip = workloads.Shape(1, 64, 64, steps=2), workloads.Shape(5, 64, 64, steps=2)
    fairness = Fairness(image, clip, num_rounds=1, num_images=3, num_clips=2, num_alone=1)
    return Load(1, num_mixed=4, num_equal=2, clip=clip, fairness=fairness)


def compare_with_stock(load: Load, only: str | None) -> tuple[list[ClipFigure], dict[str, str]]:
    """Return the figures, and the conditions under which they were measured."""
    stock, ours = RemoteSide(StockSide), RemoteSide(OurSide)
    likeness = lowest_psnr(stock, ours, load)
    figures = []
    if only in (None, MIXED):
        figures.append(run_mixed(stock, ours, load))
    if only in (None, EQUAL):
        figures.append(run_equal(stock, ours, load))
    conditions = read_conditions(("torch", "diffusers")) | {
        "checkpoint": "random, of the bundled video model's sizes",
        **{f"engine {name}": value for name, value in ours.describe().items() if name != "model"},
        "mean requests per step": f"{ours.mean_requests_per_step():.1f}",
        "stock": "WanPipeline in the engine's dtype, its autoencoder channels-last",
        "least likeness of a frame": f"{likeness:.1f} dB",
    }
    for side in (stock, ours):
        side.stop()
    return figures, conditions


def lowest_psnr(stock: RemoteSide, ours: RemoteSide, load: Load) -> float:
    """Return the lowest PSNR of a frame of the same requests, drawn one by one there and together here."""
    requests = workloads.mixed(min(load.num_mixed, 8), 0)
    pairs = zip(stock.draw(requests), ours.draw(requests), strict=True)
    return min(_psnr(there, here) for clips in pairs for there, here in zip(*clips, strict=True))


def run_mixed(stock: RemoteSide, ours: RemoteSide, load: Load) -> ClipFigure:
    """Compare where next to no two requests may share a call of diffusers' pipeline."""
    count = load.num_mixed
    runs = alternate(
        load.rounds,
        {
            "stock": lambda seed: stock.run_all(workloads.mixed(count, seed)),
            "ours": lambda seed: ours.run_all(workloads.mixed(count, seed)),
        },
    )
    scenario = f"{count} mixed: clips of 5, 9 and 17 frames and images, 64-128 px a side, 2-8 steps"
    return ClipFigure(compare(scenario, "stock, one at a time", "s", 1.3, runs, "stock"), count)


def run_equal(stock: RemoteSide, ours: RemoteSide, load: Load) -> ClipFigure:
    """Compare where static batches are at their best: all clips are alike."""
    count, clip = load.num_equal, load.clip

    def in_batches(size: int) -> Callable[[int], float]:
        return lambda seed: float(stock.run_all(workloads.equal(clip, count, seed), size))

    sides = {f"stock in {size}s": in_batches(size) for size in STATIC_BATCHES if size <= count}
    runs = alternate(
        load.rounds,
        {**sides, "ours": lambda seed: ours.run_all(workloads.equal(clip, count, seed))},
    )
    best = min(sides, key=lambda name: statistics.median(runs[name]))
    figure = compare("", f"{best}, its best static batch", "s", 1.0, runs, best)
    return ClipFigure(replace(figure, scenario=f"{count} equal: {clip}"), count)


def row(clips: ClipFigure) -> dict[str, str]:
    figure = clips.figure
    return {
        "requests": figure.scenario,
        "beside": figure.peer,
        "target": f"≥ {figure.target:g}×",
        "times better": f"**{figure.ratio:.2f}×**",
        "single rounds": f"{figure.low:.2f}-{figure.high:.2f} ({figure.rounds})",
        "ours": f"{figure.ours:.2f} s, {figure.ours / clips.num_requests:.3f} each",
        "theirs": f"{figure.theirs:.2f} s, {figure.theirs / clips.num_requests:.3f} each",
    }


def fairness_row(figure: FairnessFigure) -> dict[str, str]:
    return {
        "images": f"{figure.image}; one every {figure.interval:g} s",
        "clips of another tenant": f"{figure.clip}; {figure.num_clips} always open",
        "their bands": figure.bands,
        "one image alone": f"{figure.image_seconds:.2f} s",
        "one clip alone": f"{figure.clip_seconds:.2f} s",
        "p95 of images alone": f"{figure.p95_alone:.2f} s",
        "p95 beside clips": f"{figure.p95_beside:.2f} s",
        "times longer": f"**{figure.ratio:.2f}×**",
        "single rounds": f"{figure.low:.2f}-{figure.high:.2f} ({figure.rounds})",
        "target": f"≤ {figure.target:g}×",
        "clips drawn meanwhile": f"{figure.clips_per_second:.2f}/s",
    }


def write_results(
    figures: list[ClipFigure], fairness: list[FairnessFigure], conditions: dict[str, str], label: str
) -> None:
    content = {
        "figures": [asdict(clips.figure) for clips in figures],
        "fairness": [asdict(figure) for figure in fairness],
    }
    beside_stock = markdown_table("Beside diffusers", [row(figure) for figure in figures])
    beside_clips = markdown_table("Images beside clips", [fairness_row(figure) for figure in fairness])
    text = f"{_TITLE}\n\n{beside_stock}\n\n{beside_clips}"
    write_report(RESULTS / f"video_{label}", content, text, conditions)


def _psnr(there: Pixels, here: Pixels) -> float:
    error = np.square(there.astype(np.float64) - here.astype(np.float64)).mean()
    return float("inf") if error == 0 else 10 * math.log10(255**2 / error)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=4, help="measured rounds beside diffusers (default 4)")
    choices = [MIXED, EQUAL, FAIRNESS]
    parser.add_argument("--only", choices=choices, help="one scenario; writes no result file")
    parser.add_argument("--quick", action="store_true", help="one round of few requests; writes no result")
    parser.add_argument("--label", default="cpu", help="names the machine in the result's file name")
    return parser.parse_args()


if __name__ == "__main__":
    main()
