"""Play one open load through the engine in several ways of batching: what it costs to wait for a batch.

    python -m benchmarks policies                 # 9 rounds of 96 requests each
    python -m benchmarks policies --quick         # one round of 6 on one core; writes nothing

Requests arrive as a Poisson process, at a share of what the engine can draw one at a time, and latency counts
from arrival. Each round plays the same arrivals once in every way, one after the other. Every way is the
engine itself with other bounds of a step. Results go to `benchmarks/results/` as JSON, as a table and as a
plot. Nothing else should run on the machine.
"""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

from benchmarks.engine.policy_plot import plotted
from benchmarks.shared import workloads
from benchmarks.shared.places import RESULTS
from benchmarks.shared.report import markdown_table, read_conditions, write_report
from benchmarks.shared.sides import Latencies, OurSide, RemoteSide
from benchmarks.shared.workloads import Arrivals
from diffuserve.engine.config import EngineConfig

NUM_ARRIVALS = 96
LOAD = 0.7  # of what the engine draws one at a time
_NEVER = 1_000_000  # steps: no request overtakes an earlier one by its age

ONE_AT_A_TIME, STEP_BY_STEP = "one at a time", "step by step"


def collecting(seconds: float) -> EngineConfig:
    """Return the options with which an engine works as a batcher of whole requests."""
    return EngineConfig(max_batch_size=4, max_wait_seconds=seconds, same_steps_only=True, ageing_steps=_NEVER)


WAYS: Mapping[str, EngineConfig] = {
    ONE_AT_A_TIME: EngineConfig(max_batch_size=1, ageing_steps=_NEVER),
    "collect for 0.1 s, batches of 4": collecting(0.1),
    "collect for 0.5 s, batches of 4": collecting(0.5),
    STEP_BY_STEP: EngineConfig(),
}


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Medians over the rounds of one way; `p95_low` and `p95_high` are the extremes of single rounds."""

    way: str
    p50_seconds: float
    p95_seconds: float
    p95_low: float
    p95_high: float
    images_per_second: float
    requests_per_step: float
    rounds: int


def main() -> None:
    arguments = parse_arguments()
    count, rounds, num_threads = (6, 1, 1) if arguments.quick else (NUM_ARRIVALS, arguments.rounds, None)
    sides = {
        way: RemoteSide(partial(OurSide, replace(config, num_threads=num_threads)))
        for way, config in WAYS.items()
    }
    capacity = capacity_of(sides[ONE_AT_A_TIME], count)
    loads = [arrivals(count, seed, arguments.load * capacity) for seed in range(rounds + 1)]
    played = {way: [side.run_arrivals(load) for load in loads[:1]] for way, side in sides.items()}
    for load in loads[1:]:
        for way, side in sides.items():
            played[way].append(side.run_arrivals(load))
    measured = {way: runs[1:] for way, runs in played.items()}
    figures = [
        figures_of(way, loads[1:], runs, sides[way].mean_requests_per_step())
        for way, runs in measured.items()
    ]
    about = (
        f"{count} requests of 128 px in 4, 8 or 20 steps, arriving at random at {arguments.load:.0%} of the "
        f"{capacity:.1f} images a second that the engine draws one at a time. Seconds from arrival to image."
    )
    table = markdown_table("One load, four ways of batching", [shown(each) for each in figures])
    print(f"{about}\n\n{table}")
    conditions = conditions_of(sides[STEP_BY_STEP])
    for side in sides.values():
        side.stop()
    if not arguments.quick:
        stem = RESULTS / f"policies_{arguments.label}"
        content = {
            "load": arguments.load,
            "capacity": capacity,
            "figures": [asdict(each) for each in figures],
        }
        text = f"# What waiting for a batch costs\n\n{about}\n\n{table}"
        plot = Path(f"{write_report(stem, content, text, conditions)}.svg")
        plot.write_text(plotted({way: [*chain(*runs)] for way, runs in measured.items()}))
        print(f"wrote {plot}")


def capacity_of(one_at_a_time: RemoteSide, count: int) -> float:
    """Return the images a second that the engine draws one at a time, from the second of two runs."""
    requests = workloads.tiered(count, seed=0)
    _, seconds = one_at_a_time.run_all(requests), one_at_a_time.run_all(requests)
    return float(count / seconds)


def arrivals(count: int, seed: int, rate: float) -> Arrivals:
    return Arrivals(tuple(workloads.tiered(count, seed)), workloads.arrival_seconds(count, seed, rate))


def figures_of(
    way: str, loads: Sequence[Arrivals], runs: Sequence[Latencies], requests_per_step: float
) -> Figures:
    p95 = [statistics.quantiles(latencies, n=20)[-1] for latencies in runs]
    return Figures(
        way=way,
        p50_seconds=statistics.median(map(statistics.median, runs)),
        p95_seconds=statistics.median(p95),
        p95_low=min(p95),
        p95_high=max(p95),
        images_per_second=statistics.median(map(throughput, loads, runs)),
        requests_per_step=requests_per_step,
        rounds=len(runs),
    )


def throughput(load: Arrivals, latencies: Latencies) -> float:
    """Return the images a second from the first arrival to the last image."""
    last = max(arrival + latency for arrival, latency in zip(load.seconds, latencies, strict=True))
    return len(latencies) / (last - load.seconds[0])


def shown(figures: Figures) -> dict[str, str]:
    return {
        "way": figures.way,
        "p50": f"{figures.p50_seconds:.3f} s",
        "p95": f"**{figures.p95_seconds:.3f} s**",
        "p95 of single rounds": f"{figures.p95_low:.3f}-{figures.p95_high:.3f} ({figures.rounds})",
        "images a second": f"{figures.images_per_second:.2f}",
        "requests a step": f"{figures.requests_per_step:.2f}",
    }


def conditions_of(ours: RemoteSide) -> dict[str, str]:
    return read_conditions(("torch",)) | {
        "checkpoint": workloads.checkpoint_name(),
        **{f"engine {name}": value for name, value in ours.describe().items() if name != "model"},
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one short round; writes no result file")
    parser.add_argument("--rounds", type=int, default=9, help="measured rounds (default 9)")
    parser.add_argument("--load", type=float, default=LOAD, help=f"share of the capacity (default {LOAD})")
    parser.add_argument("--label", default="cpu", help="names the machine in the result files' names")
    return parser.parse_args()


if __name__ == "__main__":
    main()
