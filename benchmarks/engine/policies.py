"""Play open loads through the engine in several ways of batching: what waiting costs, for whom.

    python -m benchmarks policies                    # 3 loads, 3 rounds of 64 requests each, 7 minutes
    python -m benchmarks policies --loads 0.9 1.5    # others
    python -m benchmarks policies --quick            # one round of 6 on one core; writes nothing

Requests arrive as a Poisson process, at shares of what the engine can draw one at a time, and latency counts
from arrival. Each round plays the same arrivals once in every way, one after the other. Every way is the
engine itself with another order or other bounds of a step. Results go to `benchmarks/results/` as JSON, as a
table and, for the load in the middle, as a plot. Nothing else should run on the machine.
"""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.engine.policy_plot import plotted
from benchmarks.shared import workloads
from benchmarks.shared.places import RESULTS
from benchmarks.shared.report import markdown_table, read_conditions, write_report
from benchmarks.shared.sides import Latencies, OurSide, RemoteSide
from benchmarks.shared.workloads import Arrivals
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.policy.step_order import StepOrder

NUM_ARRIVALS = 64
LOADS = (0.5, 0.7, 0.9)  # of what the engine draws one at a time
_NEVER = 1_000_000  # steps: no request overtakes an earlier one by its age

ONE_AT_A_TIME, BY_ARRIVAL, SHORTEST = "one at a time", "step by step, by arrival", "step by step"


def collecting(seconds: float) -> EngineConfig:
    """Return the options with which an engine works as a batcher of whole requests."""
    return EngineConfig(
        max_batch_size=4,
        max_wait_seconds=seconds,
        same_steps_only=True,
        ageing_steps=_NEVER,
        step_order=StepOrder.ARRIVAL,
    )


WAYS: Mapping[str, EngineConfig] = {
    ONE_AT_A_TIME: EngineConfig(max_batch_size=1, ageing_steps=_NEVER, step_order=StepOrder.ARRIVAL),
    "collect for 0.1 s, batches of 4": collecting(0.1),
    BY_ARRIVAL: EngineConfig(step_order=StepOrder.ARRIVAL),
    SHORTEST: EngineConfig(),
}


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Figures of one way at one load, percentiles over all of its rounds.

    `p95_low` and `p95_high` are the extremes of single rounds; `requests_per_step` is over all loads so far.
    """

    load: float
    way: str
    p50_seconds: float
    p95_seconds: float
    p95_low: float
    p95_high: float
    longest_seconds: float
    images_per_second: float
    requests_per_step: float
    rounds: int


Rounds = Mapping[str, list[Latencies]]
"""The latencies of each way, round by round."""


def main() -> None:
    arguments = parse_arguments()
    count, rounds, num_threads = (6, 1, 1) if arguments.quick else (NUM_ARRIVALS, arguments.rounds, None)
    sides = {
        way: RemoteSide(partial(OurSide, replace(config, num_threads=num_threads)))
        for way, config in WAYS.items()
    }
    capacity = capacity_of(sides[ONE_AT_A_TIME], count)
    warm_up = arrivals(count, rounds, max(arguments.loads) * capacity)
    for side in sides.values():
        side.run_arrivals(warm_up)
    figures, played = [], {}
    for load in arguments.loads:
        of_rounds = [arrivals(count, seed, load * capacity) for seed in range(rounds)]
        played[load] = play(sides, of_rounds)
        figures += [figures_of(load, way, of_rounds, played[load][way], sides[way]) for way in WAYS]
    about = (
        f"{count} requests of 128 px in 4, 8 or 20 steps a round, arriving at random at shares of the "
        f"{capacity:.1f} images a second that the engine draws one at a time. Seconds from arrival to image."
    )
    table = markdown_table("Loads, and ways of batching", [shown(each) for each in figures])
    print(f"{about}\n\n{table}")
    conditions = conditions_of(sides[SHORTEST])
    for side in sides.values():
        side.stop()
    if not arguments.quick:
        stem = RESULTS / f"policies_{arguments.label}"
        content = {"capacity": capacity, "figures": [asdict(each) for each in figures]}
        text = f"# What waiting for a batch costs\n\n{about}\n\n{table}"
        plot = Path(f"{write_report(stem, content, text, conditions)}.svg")
        middle = sorted(arguments.loads)[len(arguments.loads) // 2]
        plot.write_text(plotted({way: pooled(runs) for way, runs in played[middle].items()}))
        print(f"wrote {plot}")


def play(sides: Mapping[str, RemoteSide], of_rounds: Sequence[Arrivals]) -> Rounds:
    """Play each round in every way before the next, so that the machine's moods are shared."""
    played: dict[str, list[Latencies]] = {way: [] for way in sides}
    for load in of_rounds:
        for way, side in sides.items():
            played[way].append(side.run_arrivals(load))
    return played


def pooled(runs: Sequence[Latencies]) -> Latencies:
    return [seconds for run in runs for seconds in run]


def capacity_of(one_at_a_time: RemoteSide, count: int) -> float:
    """Return the images a second that the engine draws one at a time, from the second of two runs."""
    requests = workloads.tiered(count, seed=0)
    _, seconds = one_at_a_time.run_all(requests), one_at_a_time.run_all(requests)
    return float(count / seconds)


def arrivals(count: int, seed: int, rate: float) -> Arrivals:
    return Arrivals(tuple(workloads.tiered(count, seed)), workloads.arrival_seconds(count, seed, rate))


def figures_of(
    load: float, way: str, of_rounds: Sequence[Arrivals], runs: Sequence[Latencies], side: RemoteSide
) -> Figures:
    p95 = [percentile_95(latencies) for latencies in runs]
    return Figures(
        load=load,
        way=way,
        p50_seconds=statistics.median(pooled(runs)),
        p95_seconds=percentile_95(pooled(runs)),
        p95_low=min(p95),
        p95_high=max(p95),
        longest_seconds=max(pooled(runs)),
        images_per_second=statistics.median(map(throughput, of_rounds, runs)),
        requests_per_step=side.mean_requests_per_step(),
        rounds=len(runs),
    )


def percentile_95(latencies: Latencies) -> float:
    return statistics.quantiles(latencies, n=20)[-1]


def throughput(load: Arrivals, latencies: Latencies) -> float:
    """Return the images a second from the first arrival to the last image."""
    last = max(arrival + latency for arrival, latency in zip(load.seconds, latencies, strict=True))
    return len(latencies) / (last - load.seconds[0])


def shown(figures: Figures) -> dict[str, str]:
    return {
        "load": f"{figures.load:.0%}",
        "way": figures.way,
        "p50": f"**{figures.p50_seconds:.3f} s**",
        "p95": f"**{figures.p95_seconds:.3f} s**",
        "p95 of single rounds": f"{figures.p95_low:.3f}-{figures.p95_high:.3f} ({figures.rounds})",
        "longest": f"{figures.longest_seconds:.3f} s",
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
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds of each load (default 3)")
    parser.add_argument(
        "--loads",
        type=float,
        nargs="+",
        default=LOADS,
        help=f"shares of the capacity (default {' '.join(map(str, LOADS))})",
    )
    parser.add_argument("--label", default="cpu", help="names the machine in the result files' names")
    return parser.parse_args()


if __name__ == "__main__":
    main()
