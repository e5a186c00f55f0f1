"""Seconds per image by the number of equal jobs that share a step, beside the cost model's prediction.

    python -m benchmarks batch                      # the frozen tiny model, 128 to 512 px
    python -m benchmarks batch --model /models/FLUX.1-schnell --sizes 1024 --device cuda

Every round draws the same number of images at each batch size in turn; the figure is the median of
the rounds. `chosen` is the size that a worker takes by itself: as many as its cost model finds worth
a step. Nothing else should run on the machine.
"""

import argparse
import random
import statistics
import time
from dataclasses import asdict, dataclass
from functools import partial

from benchmarks.shared import workloads
from benchmarks.shared.places import RESULTS
from benchmarks.shared.report import markdown_table, read_conditions, write_report
from benchmarks.shared.sides import RemoteSide
from diffuserve import Engine, EngineConfig
from diffuserve.domain.requests.params import GenerationParams

BATCHES = (1, 4, 10)
_PACKAGES = ("torch",)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Equal square images of 4 steps; `chosen` marks the size that the worker takes by itself."""

    side: int
    batch: int
    chosen: bool
    seconds: float
    expected_seconds: float
    gain: float


@dataclass(frozen=True)
class Source:
    """The model to load, its device and dtype."""

    model: str
    device: str
    dtype: str | None


def main() -> None:
    arguments = parse_arguments()
    source = Source(arguments.model, arguments.device, arguments.dtype)
    figures: list[Figure] = []
    for side in arguments.sizes:
        figures += measure(source, side, arguments.num_images, arguments.rounds)
    text = markdown_table(
        "Seconds per image, by images that share a step", [_row(figure) for figure in figures]
    )
    print(text)
    content = {"figures": [asdict(figure) for figure in figures]}
    write_report(RESULTS / f"batch_{arguments.label}", content, _TITLE + text, read_conditions(_PACKAGES))


class BatchSide:
    """An engine for a single size, `batch` of which share a step; with `None` it chooses."""

    def __init__(self, source: Source, side: int, batch: int | None) -> None:
        self._side = side
        free = Engine.load(source.model, device=source.device, dtype=source.dtype)
        self._load = free.spec.workload(free.spec.resolve(self._requests(1, 0)[0], seed=0))
        budget = None if batch is None else batch * self._load.step_tokens
        self._engine = Engine(free.pipeline, EngineConfig(token_budget=budget))

    def draw(self, count: int, seed: int) -> float:
        """Return the seconds per image. Prompts differ, so that no conditioning is cached."""
        requests = self._requests(count, seed)
        start = time.perf_counter()
        self._engine.generate(requests)
        return (time.perf_counter() - start) / count

    def chosen(self) -> int:
        """Return the number of images that share a step by the cost model's current fit."""
        return max(1, self._engine.token_budget // self._load.step_tokens)

    def expected(self, batch: int) -> float:
        """Return the seconds per image that the cost model predicts."""
        fit, loads = self._engine.cost_model.fit, [self._load] * batch
        steps = self._load.num_inference_steps * fit.step_seconds(loads)
        return (fit.encode_seconds(loads) + steps + fit.decode_seconds(loads)) / batch

    def _requests(self, count: int, seed: int) -> list[GenerationParams]:
        return workloads.equal(count, random.Random(f"{seed} {self._side}").randrange(2**31), self._side)


def measure(source: Source, side: int, num_images: int, rounds: int) -> list[Figure]:
    """Run each size in its own process, which sleeps while the others run."""
    engines = {batch: RemoteSide(partial(BatchSide, source, side, batch)) for batch in (*BATCHES, None)}
    times: dict[int | None, list[float]] = {batch: [] for batch in engines}
    for number in range(rounds + 1):
        for batch, engine in engines.items():
            seconds = engine.draw(num_images, number)
            if number:  # the first round warms up
                times[batch].append(seconds)
    free = engines[None]
    chosen = free.chosen()
    medians = {batch or chosen: statistics.median(found) for batch, found in times.items()}
    expected = {batch: free.expected(batch) for batch in medians}
    for engine in engines.values():
        engine.stop()
    return [
        Figure(
            side=side,
            batch=batch,
            chosen=batch == chosen,
            seconds=seconds,
            expected_seconds=expected[batch],
            gain=medians[1] / seconds,
        )
        for batch, seconds in sorted(medians.items())
    ]


_TITLE = "# What sharing steps is worth\n\n"


def _row(figure: Figure) -> dict[str, str]:
    return {
        "image": f"{figure.side} × {figure.side}",
        "share a step": f"{figure.batch}" + (" (chosen)" if figure.chosen else ""),
        "s per image": f"**{figure.seconds:.4f}**",
        "by the cost model": f"{figure.expected_seconds:.4f}",
        "gain": f"{figure.gain:.2f}×",
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default=str(workloads.CHECKPOINT), help="folder or hub id")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", help="default: the engine's own")
    parser.add_argument("--sizes", type=int, nargs="+", default=[128, 256, 512], help="sides in pixels")
    parser.add_argument("--num-images", type=int, default=20, help="a round and batch size (default 20)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--label", default="cpu", help="names the machine in the result's file name")
    return parser.parse_args()


if __name__ == "__main__":
    main()
