"""Simulate days of a fleet that follows its load, by the product's policy and by Kubernetes' own.

    python -m benchmarks autoscaling            # writes results/autoscaling_DATE and the plot
    python -m benchmarks autoscaling --quick    # one day of a few fleets; writes nothing

Jobs, bursts, starts of nodes, losses and prices are inputs; they are assumptions, stated in the results.
"""

import argparse
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache

from benchmarks.shared.places import IMAGES, RESULTS
from benchmarks.shared.report import markdown_table, read_conditions, write_counted
from benchmarks.simulate.followed_load.arrivals import Day, day
from benchmarks.simulate.followed_load.fleet import Fleet, Outcome
from benchmarks.simulate.followed_load.plot import Line, plotted
from benchmarks.simulate.followed_load.variants import BASE, RECOMMENDED, WORLD, Variant, variants

BUSY_WORKERS = 5.0
SEEDS = (1, 2, 3, 4, 5)
PRICES = (4.50, 1.50)
PRICES_AS_OF = "an A100 of 80 GB at 4.50 $/h on demand and 1.50 $/h on spot, assumed in 2026-11"
QUICK = ("12 workers, always", "HPA, 30 s to finish", BASE, RECOMMENDED, "ScaledJob, predictive")
DRAWN = ("HPA", BASE, RECOMMENDED)
PLOT = IMAGES / "autoscaling.svg"
HOUR = 3_600.0


@dataclass(frozen=True)
class Figures:
    """Means over days: waits in seconds, GPU-hours, and what was lost."""

    p50: float
    p95: float
    p99: float
    gpu_hours: float
    useful: float
    killed: float
    taken: float
    lost_hours: float
    max_workers: float
    dollars: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="play one day of a few fleets; write nothing")
    quick = parser.parse_args().quick
    seeds = SEEDS[:1] if quick else SEEDS
    chosen = {name: each for name, each in variants().items() if not quick or name in QUICK}
    figures, lines = play(chosen, seeds)
    text = "\n\n".join(["# Autoscaling, simulated", told(seeds), markdown_table("Fleets", rows(figures))])
    print(text)
    if not quick:
        content = {"fleets": {name: asdict(each) for name, each in figures.items()}, "world": asdict(WORLD)}
        write_counted(RESULTS / "autoscaling", content, text, read_conditions([]))
        PLOT.write_text(plotted(lines), encoding="utf-8")


def play(chosen: Mapping[str, Variant], seeds: Sequence[int]) -> tuple[dict[str, Figures], dict[str, Line]]:
    """Return the figures of each fleet, and the lines of the first day of those that are drawn."""
    figures: dict[str, Figures] = {}
    lines: dict[str, Line] = {}
    for name, variant in chosen.items():
        days = [jobs_of(seed, variant.burst) for seed in seeds]
        outcomes = [
            Fleet(each, variant.policy(), variant.world, seed).run()
            for seed, each in zip(seeds, days, strict=True)
        ]
        price = PRICES[variant.world.is_spot]
        played = zip(days, outcomes, strict=True)
        figures[name] = mean(figures_of(each, outcome, price) for each, outcome in played)
        if name in DRAWN:
            lines[name] = outcomes[0].line
    return figures, lines


@cache
def jobs_of(seed: int, burst: float) -> Day:
    return day(seed, BUSY_WORKERS, burst)


def figures_of(day: Day, outcome: Outcome, price: float) -> Figures:
    """Return the figures of one day."""
    cuts = statistics.quantiles(outcome.waits, n=100, method="inclusive")
    work = sum(job.seconds for job in day.jobs)
    return Figures(
        p50=cuts[49],
        p95=cuts[94],
        p99=cuts[98],
        gpu_hours=outcome.device_seconds / HOUR,
        useful=work / outcome.device_seconds,
        killed=outcome.killed,
        taken=outcome.taken,
        lost_hours=outcome.lost_seconds / HOUR,
        max_workers=outcome.max_workers,
        dollars=price * outcome.device_seconds / HOUR,
    )


def mean(each: Iterable[Figures]) -> Figures:
    values = [asdict(figures) for figures in each]
    return Figures(**{name: statistics.fmean(value[name] for value in values) for name in values[0]})


def rows(figures: Mapping[str, Figures]) -> list[dict[str, str]]:
    """Return the rows of the table, GPU-hours and p95 beside those of the ScaledObject of the same kind."""
    return [row(name, each, figures[base_of(name)]) for name, each in figures.items()]


def base_of(name: str) -> str:
    """Return the ScaledObject in the world of a fleet."""
    _, comma, world = name.partition(", ")
    return f"{BASE}, {world}" if world in ("warm nodes", "bursts up to 3x") and comma else BASE


def row(name: str, fleet: Figures, base: Figures) -> dict[str, str]:
    return {
        "fleet": name,
        "wait p50 s": f"{fleet.p50:.1f}",
        "p95 s": f"{fleet.p95:.0f}",
        "p95 beside": f"{fleet.p95 - base.p95:+.0f}",
        "p99 s": f"{fleet.p99:.0f}",
        "GPU-hours": f"{fleet.gpu_hours:.0f}",
        "GPU-hours beside": f"{fleet.gpu_hours / base.gpu_hours:.2f}x",
        "useful": f"{fleet.useful:.0%}",
        "busy killed": f"{fleet.killed:.1f}",
        "busy taken": f"{fleet.taken:.1f}",
        "work lost h": f"{fleet.lost_hours:.2f}",
        "most workers": f"{fleet.max_workers:.0f}",
        "$ a day": f"{fleet.dollars:,.0f}",
    }


def told(seeds: Sequence[int]) -> str:
    """Return what was played, in words."""
    days = [jobs_of(seed, 6.0) for seed in seeds]
    jobs = statistics.fmean(len(each.jobs) for each in days)
    hours = statistics.fmean(sum(job.seconds for job in each.jobs) for each in days) / HOUR
    return (
        f"Means of {len(days)} days: {jobs:,.0f} jobs of {hours:.0f} GPU-hours a day, 80 % of 3 s, "
        "17 % of 15 s, 3 % of 150 s, over the day 0.2 to 1.8 times their mean rate, and in ten bursts of "
        f"2 to 15 minutes 2 to 6 times that. A worker takes {WORLD.node_seconds[0]:.0f} to "
        f"{WORLD.node_seconds[1]:.0f} s to start and {WORLD.load_seconds:.0f} s to load; all are paid from "
        f"their order to their end. Spot machines are taken away {WORLD.losses_per_hour} times an hour, at "
        f"{WORLD.notice_seconds:.0f} s' notice. Prices: {PRICES_AS_OF}. Beside: the ScaledObject in the same "
        "world."
    )


if __name__ == "__main__":
    main()
