"""Simulate a fleet of on-demand and spot workers, with the product's own placement, over mixes and prices.

    python -m benchmarks spot-workers            # writes results/spot_workers_DATE and the plot
    python -m benchmarks spot-workers --quick    # two hours of one seed; writes nothing

Interruptions, sizes of jobs and prices are inputs; their defaults are assumptions, stated in the results.
"""

import argparse
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.shared.places import IMAGES, RESULTS
from benchmarks.shared.report import markdown_table, read_conditions, write_counted
from benchmarks.simulate.spot_fleet import JOBS, Fleet, World, arrivals
from benchmarks.simulate.spot_plot import plotted
from diffuserve.domain.jobs.job import Band
from diffuserve.jobs.config import StoreConfig

CONFIG = StoreConfig()
MACHINES = 10
PRICES_AS_OF = "assumed in 2026-11 after tables of GPU clouds; dollars an hour on demand and on spot"
PRICES = {
    "A10G": (1.00, 0.35),
    "A100 40 GB": (3.50, 1.20),
    "A100 80 GB": (4.50, 1.50),
    "H100": (8.00, 2.80),
    "spot at half the price": (1.00, 0.50),
}
LOADS = (0.5, 0.7, 0.85)
ON_DEMAND_WAITS = (0.0, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
SPOT_WAITS = (0.0, 15.0, 30.0, 60.0, 120.0, 300.0)
DRAWN_PRICES = {
    "spot at a third of the price": PRICES["A100 80 GB"],
    "spot at half the price": PRICES["spot at half the price"],
}
PLOT = IMAGES / "spot-workers.svg"


@dataclass(frozen=True)
class Span:
    """Length of a simulation: hours of arrivals, played once with each seed."""

    hours: float = 12.0
    seeds: tuple[int, ...] = (1, 2, 3, 4)

    @property
    def seconds(self) -> float:
        return self.hours * 3_600.0


@dataclass(frozen=True)
class Figures:
    """Outcome of a fleet. `machine_hours` are paid, on demand and on spot; seconds are from submission."""

    on_demand: int
    spot: int
    is_placed: bool
    load: float
    images: int
    machine_hours: tuple[float, float]
    p95_seconds: Mapping[str, float]
    interruptions: int
    lost_share: float

    def cost(self, prices: tuple[float, float]) -> float:
        """Return dollars for 1,000 images."""
        dollars = sum(hours * price for hours, price in zip(self.machine_hours, prices, strict=True))
        return 1_000.0 * dollars / self.images


def played(
    span: Span, mix: tuple[int, int], load: float, config: StoreConfig = CONFIG, is_placed: bool = True
) -> Figures:
    """Play a fleet of so many machines on demand and on spot over all seeds."""
    world, seconds = World(), span.seconds
    hours, images, interruptions, lost, worked = [0.0, 0.0], 0, 0, 0.0, 0.0
    latencies: dict[Band, list[float]] = {band: [] for band in Band}
    for seed in span.seeds:
        jobs = arrivals(world, MACHINES, load, seconds, seed)
        worked += sum(job.cost_seconds for job in jobs)
        fleet = Fleet(world, *mix, config, is_placed, seed)
        fleet.play(jobs, seconds)
        for is_spot, begin, end in fleet.machine_spans:
            hours[is_spot] += max(min(end, seconds) - begin, 0.0) / 3_600.0
        images += sum(number for ended_at, number in fleet.finished if ended_at <= seconds)
        interruptions += fleet.num_interrupted
        lost += fleet.lost_seconds
        for band in Band:
            latencies[band] += fleet.latencies[band]
    p95 = {band.value: percentile(latencies[band], 0.95) for band in Band}
    paid = (hours[False], hours[True])
    return Figures(*mix, is_placed, load, images, paid, p95, interruptions, lost / worked)


def percentile(seconds: Sequence[float], share: float) -> float:
    """Return the value that this share of the values does not exceed."""
    return sorted(seconds)[min(int(share * len(seconds)), len(seconds) - 1)]


def spot_machines(on_demand: int) -> int:
    """Return the spot machines that do, with so many on demand, at least what `MACHINES` on demand do."""
    world = World()
    away_seconds = sum(world.boot_seconds) / 2 + world.load_seconds
    share = world.interruption_seconds / (world.interruption_seconds + away_seconds)
    return math.ceil((MACHINES - on_demand) / share)


def row_of(figures: Figures, base: Figures) -> dict[str, str]:
    """Return a fleet's row of the table, beside the fleet on demand alone."""
    ratios = {name: figures.cost(pair) / base.cost(pair) for name, pair in PRICES.items()}
    p95, base_p95 = figures.p95_seconds, base.p95_seconds
    claims = "any worker" if not figures.is_placed else "placed"
    return {
        "load": f"{figures.load:.2f}",
        "on demand + spot": f"{figures.on_demand} + {figures.spot}",
        "claims": claims if figures.spot else "",
        "$ per 1,000 images (A100 80 GB)": f"{figures.cost(PRICES['A100 80 GB']):.2f}",
        "cost (A100 80 GB)": f"{ratios['A100 80 GB']:.2f}x",
        "cost (A10G)": f"{ratios['A10G']:.2f}x",
        "cost (half price)": f"{ratios['spot at half the price']:.2f}x",
        **{f"{band} p95": f"{p95[band]:.1f} s, {p95[band] / base_p95[band]:.2f}x" for band in p95},
        "interrupted jobs": str(figures.interruptions),
        "work lost": f"{figures.lost_share:.2%}",
    }


def wait_row(seconds: float, figures: Figures, base: Figures) -> dict[str, str]:
    p95 = figures.p95_seconds
    ratios = {f"{band} p95": f"{p95[band]:.1f} s, {p95[band] / base.p95_seconds[band]:.2f}x" for band in p95}
    return {"seconds": f"{seconds:g}", **ratios}


def simulate(span: Span) -> tuple[list[Figures], dict[str, list[Figures]]]:
    """Play all mixes at all loads, and the policy's two waits at the middle load."""
    fleets = []
    for load in LOADS:
        fleets.append(played(span, (MACHINES, 0), load))
        for on_demand in (4, 3, 2, 1, 0):
            mix = (on_demand, spot_machines(on_demand))
            ways = (False, True) if on_demand else (False,)
            fleets += [played(span, mix, load, is_placed=is_placed) for is_placed in ways]
    mix = (2, spot_machines(2))
    urgent = [dataclasses.replace(CONFIG, on_demand_wait_seconds=seconds) for seconds in ON_DEMAND_WAITS]
    batch = [dataclasses.replace(CONFIG, spot_wait_seconds=seconds) for seconds in SPOT_WAITS]
    waits = {
        "on_demand_wait_seconds": [played(span, mix, LOADS[1], config) for config in urgent],
        "spot_wait_seconds": [played(span, mix, LOADS[1], config) for config in batch],
    }
    return fleets, waits


def report(fleets: Sequence[Figures], waits: Mapping[str, Sequence[Figures]], span: Span) -> str:
    """Return the tables, with what they assume."""
    base = {figures.load: figures for figures in fleets if not figures.spot}
    rows = [row_of(figures, base[figures.load]) for figures in fleets]
    about = (
        f"{span.hours:g} simulated hours with each of {len(span.seeds)} seeds; {MACHINES} machines on demand "
        "beside mixes that can do at least as much. One job at a time on each worker. Ratios are to the "
        f"fleet on demand alone at the same load. Prices: {PRICES_AS_OF}: {json.dumps(PRICES)}. "
        f"Machines: {json.dumps(dataclasses.asdict(World()))}. "
        f"Jobs: {'; '.join(f'{mix.share:.0%} {mix.band} of {mix.images} images' for mix in JOBS)}."
    )
    parts = ["# On-demand and spot workers, simulated", about, markdown_table("Mixes", rows)]
    for (name, found), seconds in zip(waits.items(), (ON_DEMAND_WAITS, SPOT_WAITS), strict=True):
        table = [wait_row(*pair, base[LOADS[1]]) for pair in zip(seconds, found, strict=True)]
        parts.append(markdown_table(f"`{name}`, 2 + {spot_machines(2)} machines, load {LOADS[1]}", table))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two hours of one seed; writes no file")
    options = parser.parse_args()
    span = Span(hours=2.0, seeds=(1,)) if options.quick else Span()
    fleets, waits = simulate(span)
    text = report(fleets, waits, span)
    print(text)
    if not options.quick:
        content = {"fleets": [dataclasses.asdict(figures) for figures in fleets]}
        swept = {name: [dataclasses.asdict(figures) for figures in found] for name, found in waits.items()}
        write_counted(RESULTS / "spot_workers", content | {"waits": swept}, text, read_conditions([]))
        middle = [figures for figures in fleets if figures.load == LOADS[1]]
        PLOT.write_text(plotted(middle, DRAWN_PRICES))


if __name__ == "__main__":
    main()
