"""Our model in Triton beside the same engine under Triton's own batching: what the response sender gives.

    python -m benchmarks triton                 # 2 rounds of 24 requests each
    python -m benchmarks triton --quick         # one round of 6; writes nothing

A real server serves one model in three ways: each request blocks the model until its image is done; Triton's
dynamic batcher collects up to eight, which the model draws together and answers together; and as
`diffuserve integrations triton` writes it. Requests arrive over HTTP at random, at a share of what the first
way can draw, and latency counts from arrival. Requests a step are Triton's own metrics.
"""

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.shared import workloads
from benchmarks.shared.places import RESULTS
from benchmarks.shared.report import markdown_table, read_conditions, write_report
from diffuserve.integrations.triton.repository import write_repository
from support.triton_server import TritonServer

_FEW = 6
LOAD = 0.7  # of what the engine draws one at a time
BLOCKING, BATCHED, OURS = "one at a time", "dynamic batching, up to 8 in 0.1 s", "step by step"
_COUNTERS = ("diffuserve_engine_steps_total", "diffuserve_request_steps_total")
_NO_BATCHES = "max_batch_size: 0"
_BATCHES = "max_batch_size: 8\ndynamic_batching { max_queue_delay_microseconds: 100000 }"
_BLOCKS = '''"""The engine as a model that answers a batch when all of it is done."""

import numpy as np
import triton_python_backend_utils as pb_utils

from diffuserve.integrations.engine import InProcessEngine, settings_of
from diffuserve.integrations.requests import params_of
from diffuserve.integrations.triton.model import StepCounters, values_of


class TritonPythonModel:
    def initialize(self, args):
        no_filters = {"image_filter": "none", "prompt_filter": "none"}
        self.engine = InProcessEngine.open(settings_of(no_filters, device="cpu")).engine
        self.counters = StepCounters(args["model_name"])

    def execute(self, requests):
        results = self.engine.generate([params_of(dict(values_of(request))) for request in requests])
        self.counters.count(self.engine.stats)
        images = [np.asarray(result.images[0])[None, None] for result in results]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("images", image)]) for image in images]
'''


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way of batching: its server, its figures, and what the server counted before."""

    name: str
    server: TritonServer

    def play(self, requests: Sequence[Mapping[str, Any]]) -> list[float]:
        """Return the seconds that each request took."""
        batched = {"batched": True} if self.name == BATCHED else {}
        answers = self.server.ask([{**request, **batched} for request in requests])
        failed = next((answer["error"] for answer in answers if "error" in answer), None)
        assert failed is None, failed
        return [answer["seconds"] for answer in answers]

    def counted(self) -> tuple[float, ...]:
        return tuple(self.server.metric(name) for name in _COUNTERS)


@dataclass(frozen=True, kw_only=True)
class TritonFigures:
    """Figures of one way over all rounds."""

    way: str
    p50_seconds: float
    p95_seconds: float
    requests_per_step: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="play one round of 6, and write nothing")
    parser.add_argument("--label", default="cpu", help="name of the machine in the result's name")
    arguments = parser.parse_args()
    count, rounds = (_FEW, 1) if arguments.quick else (24, arguments.rounds)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ways = [
            Way(name=name, server=stack.enter_context(server(name, folder / str(number))))
            for number, name in enumerate((BLOCKING, BATCHED, OURS))
        ]
        rate = LOAD * capacity_of(ways[0], count)
        figures = played(ways, rounds, count, rate)
    report(figures, f"{count} requests of 128 px in 4, 8 or 20 steps, {rate:.1f} a second", arguments)


def server(name: str, folder: Path) -> TritonServer:
    """Return a server of one way, not yet started."""
    folder.mkdir()
    no_filters = {"image_filter": "none", "prompt_filter": "none"}
    model = write_repository(folder / "repository", "diffuserve", no_filters, "cpu")
    if name != OURS:
        (model / "1" / "model.py").write_text(_BLOCKS)
    if name == BATCHED:
        config = model / "config.pbtxt"
        config.write_text(config.read_text().replace(_NO_BATCHES, _BATCHES))
    return TritonServer(folder / "repository", folder)


def requests_of(count: int, seed: int, rate: float) -> list[dict[str, Any]]:
    """Return requests over HTTP that arrive at random; at a rate of 0 they arrive together."""
    arrivals = workloads.arrival_seconds(count, seed, rate) if rate else (0.0,) * count
    return [
        {
            "transport": "http",
            "at": at,
            "outputs": ["images"],
            "inputs": {
                "prompt": params.prompt,
                "steps": params.num_inference_steps,
                "seed": params.seed or 0,
            },
        }
        for params, at in zip(workloads.tiered(count, seed), arrivals, strict=True)
    ]


def capacity_of(blocking: Way, count: int) -> float:
    """Return the images a second that are drawn one at a time, from the second of two runs."""
    requests = requests_of(count, 0, rate=0)
    blocking.play(requests)
    return count / max(blocking.play(requests))


def played(ways: Sequence[Way], rounds: int, count: int, rate: float) -> list[TritonFigures]:
    """Play each round's arrivals in every way, one after the other, after a few that do not count."""
    seconds: dict[str, list[float]] = {way.name: [] for way in ways}
    for way in ways:
        way.play(requests_of(_FEW, rounds, rate=0))
    before = {way.name: way.counted() for way in ways}
    for seed in range(rounds):
        for way in ways:
            seconds[way.name] += way.play(requests_of(count, seed, rate))
    return [figures_of(way, seconds[way.name], before[way.name]) for way in ways]


def figures_of(way: Way, seconds: Sequence[float], before: Sequence[float]) -> TritonFigures:
    steps, request_steps = (now - was for now, was in zip(way.counted(), before, strict=True))
    return TritonFigures(
        way=way.name,
        p50_seconds=statistics.median(seconds),
        p95_seconds=statistics.quantiles(seconds, n=20)[-1],
        requests_per_step=request_steps / steps,
    )


def report(figures: Sequence[TritonFigures], about: str, arguments: argparse.Namespace) -> None:
    rows = [
        {
            "way": each.way,
            "p50": f"{each.p50_seconds:.2f} s",
            "p95": f"{each.p95_seconds:.2f} s",
            "requests a step": f"**{each.requests_per_step:.2f}**",
        }
        for each in figures
    ]
    text = f"{about}\n\n{markdown_table('One engine in Triton, three ways of batching', rows)}"
    print(text)
    if not arguments.quick:
        content = {"load": LOAD, "figures": [asdict(each) for each in figures]}
        title = f"# Triton's batches and the engine's\n\n{text}"
        write_report(RESULTS / f"triton_{arguments.label}", content, title, read_conditions(("torch",)))


if __name__ == "__main__":
    main()
