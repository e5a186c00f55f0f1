"""The engine beside stock diffusers: the same requests, run in turn, on one machine.

    python -m benchmarks engine            # all scenarios, 9 rounds each
    python -m benchmarks engine --rounds 3 --only mixed

Each round runs every side once, one after the other; the figure is the ratio of their medians, the
spread that of the rounds' own ratios. Prompts differ from round to round. Results go to
`benchmarks/results/` as JSON and as a table. Nothing else should run on the machine.
"""

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from benchmarks.shared import workloads
from benchmarks.shared.places import RESULTS
from benchmarks.shared.report import read_conditions, write_report
from benchmarks.shared.sides import DeterministicSide, OurSide, RemoteSide, StockSide

NUM_REQUESTS = 32
NUM_LONE = 16
NUM_ARRIVALS = 96
LOAD = 0.7  # of stock's capacity

Runs = dict[str, list[float]]


@dataclass(frozen=True)
class Figure:
    """Ratio to the peer, above 1 if better; `low` and `high` are the extremes of single rounds."""

    scenario: str
    peer: str
    measure: str
    target: float
    ratio: float
    low: float
    high: float
    ours: float
    theirs: float
    rounds: int


def main() -> None:
    arguments = parse_arguments()
    stock, ours = RemoteSide(StockSide), RemoteSide(OurSide)
    figures = []
    for name, scenario in SCENARIOS.items():
        if arguments.only in (None, name):
            figures.append(scenario(stock, ours, arguments.rounds))
            print(format_row(figures[-1]), flush=True)
    conditions = conditions_of(ours)
    for side in (stock, ours):
        side.stop()
    if arguments.only is None:
        write_results(figures, conditions, arguments.label)


def run_mixed(stock: RemoteSide, ours: RemoteSide, rounds: int) -> Figure:
    runs = alternate(
        rounds,
        {
            "stock": lambda seed: stock.run_all(workloads.mixed(NUM_REQUESTS, seed)),
            "ours": lambda seed: ours.run_all(workloads.mixed(NUM_REQUESTS, seed)),
        },
    )
    return compare("32 mixed, 64-192 px, 2-8 steps", "stock, one at a time", "seconds", 2.0, runs, "stock")


def run_equal(stock: RemoteSide, ours: RemoteSide, rounds: int) -> Figure:
    def in_batches(batch_size: int) -> Callable[[int], float]:
        return lambda seed: float(stock.run_all(workloads.equal(NUM_REQUESTS, seed, 128), batch_size))

    sides = {f"stock in {size}s": in_batches(size) for size in (4, 8, 16)}
    runs = alternate(
        rounds, {**sides, "ours": lambda seed: ours.run_all(workloads.equal(NUM_REQUESTS, seed, 128))}
    )
    best = min(sides, key=lambda name: statistics.median(runs[name]))
    return compare("32 equal, 128 px, 4 steps", f"{best}, its best", "seconds", 1.1, runs, best)


def run_large(stock: RemoteSide, ours: RemoteSide, rounds: int) -> Figure:
    runs = alternate(
        rounds,
        {
            "stock": lambda seed: stock.run_all(workloads.equal(8, seed, 512)),
            "ours": lambda seed: ours.run_all(workloads.equal(8, seed, 512)),
        },
    )
    return compare("8 equal, 512 px, 4 steps", "stock, one at a time", "seconds", 1.0, runs, "stock")


def run_lone(stock: RemoteSide, ours: RemoteSide, rounds: int) -> Figure:
    """Compare requests that come one after another, with nobody beside them."""

    def in_turn(side: RemoteSide) -> Callable[[int], float]:
        return lambda seed: (
            sum(side.run_all([request]) for request in workloads.equal(NUM_LONE, seed, 128)) / NUM_LONE
        )

    runs = alternate(rounds, {"stock": in_turn(stock), "ours": in_turn(ours)})
    return compare("1 alone, 128 px, 4 steps", "stock", "seconds", 1.67, runs, "stock")


def run_poisson(stock: RemoteSide, ours: RemoteSide, rounds: int) -> Figure:
    requests = workloads.mixed(NUM_ARRIVALS, seed=0)
    capacity = len(requests) / statistics.median(stock.run_all(requests) for _ in range(3))

    def p95(side: RemoteSide) -> Callable[[int], float]:
        return lambda seed: percentile_95(
            side.run_arrivals(workloads.poisson(NUM_ARRIVALS, seed, LOAD * capacity))
        )

    runs = alternate(rounds, {"stock": p95(stock), "ours": p95(ours)})
    scenario = f"Poisson mix at {LOAD:.0%} of stock's {capacity:.1f} images/s"
    return compare(scenario, "stock, first come first served", "p95 seconds", 2.0, runs, "stock")


def run_deterministic(_: RemoteSide, ours: RemoteSide, rounds: int) -> Figure:
    """Deterministic mode may take 1.5 times as long, so its ratio to the default is at least 0.67."""
    deterministic = RemoteSide(DeterministicSide)
    runs = alternate(
        rounds,
        {
            "default": lambda seed: ours.run_all(workloads.mixed(NUM_REQUESTS, seed)),
            "ours": lambda seed: deterministic.run_all(workloads.mixed(NUM_REQUESTS, seed)),
        },
    )
    deterministic.stop()
    scenario = "32 mixed, in deterministic mode"
    return compare(scenario, "the engine's default mode", "seconds", 0.67, runs, "default")


SCENARIOS: dict[str, Callable[[RemoteSide, RemoteSide, int], Figure]] = {
    "mixed": run_mixed,
    "equal": run_equal,
    "large": run_large,
    "lone": run_lone,
    "poisson": run_poisson,
    "deterministic": run_deterministic,
}


def alternate(rounds: int, sides: dict[str, Callable[[int], float]]) -> Runs:
    """Run an unmeasured round, then `rounds` in which each side runs once, in turn."""
    runs: Runs = {name: [] for name in sides}
    for seed in range(rounds + 1):
        for name, run in sides.items():
            runs[name].append(run(seed))
    return {name: values[1:] for name, values in runs.items()}


def compare(scenario: str, peer: str, measure: str, target: float, runs: Runs, against: str) -> Figure:
    theirs, ours = runs[against], runs["ours"]
    ratios = [peer / own for peer, own in zip(theirs, ours, strict=True)]
    return Figure(
        scenario=scenario,
        peer=peer,
        measure=measure,
        target=target,
        ratio=statistics.median(theirs) / statistics.median(ours),
        low=min(ratios),
        high=max(ratios),
        ours=statistics.median(ours),
        theirs=statistics.median(theirs),
        rounds=len(ours),
    )


def percentile_95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def conditions_of(ours: RemoteSide) -> dict[str, str]:
    return read_conditions(("torch", "diffusers", "transformers")) | {
        "checkpoint": workloads.checkpoint_name(),
        **{f"engine {name}": value for name, value in ours.describe().items() if name != "model"},
        "mean requests per step": f"{ours.mean_requests_per_step():.1f}",
    }


def write_results(figures: list[Figure], conditions: dict[str, str], label: str) -> None:
    header = "| scenario | beside | target | times better | single rounds | ours | theirs |"
    lines = ["# The engine beside stock diffusers", "", header, "|" + "---|" * 7]
    lines += [format_row(figure) for figure in figures]
    content = {"figures": [asdict(figure) for figure in figures]}
    write_report(RESULTS / f"engine_{label}", content, "\n".join(lines), conditions)


def format_row(figure: Figure) -> str:
    return (
        f"| {figure.scenario} | {figure.peer} | ≥ {figure.target:g}× | **{figure.ratio:.2f}×** "
        f"| {figure.low:.2f}-{figure.high:.2f} ({figure.rounds}) "
        f"| {figure.ours:.3f} {figure.measure} | {figure.theirs:.3f} |"
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9, help="measured rounds a scenario (default 9)")
    parser.add_argument("--only", choices=list(SCENARIOS), help="one scenario; writes no result file")
    parser.add_argument("--label", default="cpu", help="names the machine in the result's file name")
    return parser.parse_args()


if __name__ == "__main__":
    main()
