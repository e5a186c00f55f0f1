"""Claims about requests that share a device: batches, waiting for them, containers and workers."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from heapq import heapify, heapreplace
from itertools import islice

from benchmarks.claims.claim import Finding, ratio
from benchmarks.engine.engine import alternate, percentile_95
from benchmarks.engine.policies import ONE_AT_A_TIME, WAYS, arrivals, capacity_of, collecting
from benchmarks.shared import workloads
from benchmarks.shared.sides import Latencies, OurSide, RemoteSide, StockSide
from benchmarks.shared.workloads import Arrivals
from diffuserve.bench.arrivals import Ramp
from diffuserve.bench.arrivals import arrivals as due_seconds
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.config import EngineConfig

_WINDOW = 0.5
_LOW_LOAD, _BURST_LOAD = 0.2, 0.6  # of what the engine draws one at a time
_BURSTINESS = 0.2  # shape of the gaps between requests; 1 were a Poisson process
_CORES = 2
_MOST_CONTAINERS = 64
_LOWEST_RATE = 1.0  # requests a second: at less, a run on a busy machine would take for ever


def ten(ours: RemoteSide, rounds: int) -> Iterator[Finding]:
    """Compare ten equal images at once with one alone."""

    def draw(count: int, side: int, seed: int) -> float:
        return float(ours.run_all(workloads.equal(count, seed, side)))

    for side in (64, 256):
        runs = alternate(rounds, {"ten": partial(draw, 10, side), "one": partial(draw, 1, side)})
        yield ratio("ten", f"ten images of {side}×{side} at once, one", runs["ten"], runs["one"])


def waiting(ours: RemoteSide, count: int, rounds: int) -> Iterator[Finding]:
    """Find which part of a collecting window requests pay at low load."""
    alone, collects = _engine(WAYS[ONE_AT_A_TIME]), _engine(collecting(_WINDOW))
    rate = max(_LOWEST_RATE, _LOW_LOAD * capacity_of(alone, count))

    def median_of(side: RemoteSide) -> Callable[[int], float]:
        return lambda seed: statistics.median(side.run_arrivals(arrivals(count, seed, rate)))

    runs = alternate(rounds, {"collects": median_of(collects), "steps": median_of(ours)})
    paid = [(slow - fast) / _WINDOW for slow, fast in zip(runs["collects"], runs["steps"], strict=True)]
    yield Finding(
        claim="waiting",
        way="measured",
        compared=f"what the median request waits longer at {_LOW_LOAD:.0%} load, of the window",
        figure=statistics.median(paid),
        low=min(paid),
        high=max(paid),
        rounds=rounds,
    )
    for side in (alone, collects):
        side.stop()


def continuous(ours: RemoteSide, count: int, rounds: int) -> Iterator[Finding]:
    """Compare static batches with steps that any requests share, in the seconds for all of a mix."""
    static, stock = _engine(collecting(0.0)), RemoteSide(StockSide)  # all are there: nothing to wait for
    tiered = alternate(
        rounds,
        {
            "static": lambda seed: static.run_all(workloads.tiered(count, seed)),
            "continuous": lambda seed: ours.run_all(workloads.tiered(count, seed)),
        },
    )
    mixed = alternate(
        rounds,
        {
            "static": lambda seed: stock.run_all(workloads.mixed(count, seed)),
            "continuous": lambda seed: ours.run_all(workloads.mixed(count, seed)),
        },
    )
    for side in (static, stock):
        side.stop()
    of_one_size = f"{count} of one size in 4, 8 and 20 steps: the engine in static batches of 4, continuous"
    yield ratio("continuous", of_one_size, tiered["static"], tiered["continuous"])
    alone = f"{count} of mixed sizes and steps, of which hardly two make a batch: stock diffusers, continuous"
    yield ratio("continuous", alone, mixed["static"], mixed["continuous"])


def containers(ours: RemoteSide, count: int, rounds: int) -> Iterator[Finding]:
    """Compare containers of one core that draw an image at a time with one engine on the same cores."""
    alone = replace(WAYS[ONE_AT_A_TIME], num_threads=1)
    sides = [_engine(alone) for _ in range(_CORES)]
    yield from _workers(sides, count, rounds)
    yield from _bursts(ours, sides, count, rounds)
    for side in sides:
        side.stop()


def containers_needed(load: Arrivals, seconds: Sequence[float], longest: float) -> int:
    """Return how many containers, each with an image at a time, keep the 95th percentile of waits.

    A request goes to the container that is free first; `seconds` is what each takes there.
    """
    for number in range(1, _MOST_CONTAINERS):
        if percentile_95(waits_of(load, seconds, number)) <= longest:
            return number
    return _MOST_CONTAINERS


def waits_of(load: Arrivals, seconds: Sequence[float], num_containers: int) -> Latencies:
    """Return the seconds from each arrival to its image."""
    free = [0.0] * num_containers
    heapify(free)
    waits = []
    for arrival, taken in zip(load.seconds, seconds, strict=True):
        end = max(arrival, free[0]) + taken
        heapreplace(free, end)
        waits.append(end - arrival)
    return waits


def _workers(sides: Sequence[RemoteSide], count: int, rounds: int) -> Iterator[Finding]:
    runs = alternate(
        rounds,
        {
            "one": lambda seed: sides[0].run_all(workloads.equal(count, seed, 128)),
            "two": lambda seed: _at_once(sides, workloads.equal(count, seed, 128)),
        },
    )
    name = f"{count} images on two cores: one process of one core, two"
    yield ratio("workers", name, runs["one"], runs["two"])


def _bursts(ours: RemoteSide, sides: Sequence[RemoteSide], count: int, rounds: int) -> Iterator[Finding]:
    rate = max(_LOWEST_RATE, _BURST_LOAD * _CORES * capacity_of(sides[0], count))

    def bursty(seed: int) -> Arrivals:
        times = islice(due_seconds(Ramp.steady(rate), _BURSTINESS, seed), count)
        return Arrivals(tuple(workloads.tiered(count, seed)), tuple(times))

    runs = alternate(
        rounds,
        {
            "static": lambda seed: percentile_95(_in_turn(sides, bursty(seed))),
            "continuous": lambda seed: percentile_95(ours.run_arrivals(bursty(seed))),
        },
    )
    bursts = f"{count} in bursts at {_BURST_LOAD:.0%} load"
    two = "p95 of two containers of one core and an image at a time, of one engine on both cores"
    yield ratio("bursts", f"{bursts}: {two}", runs["static"], runs["continuous"])
    steps = {each.num_inference_steps: each for each in workloads.tiered(count, 0)}
    taken = {number: sides[0].run_all([each]) for number, each in steps.items()}
    needed = [
        containers_needed(load, [taken[each.num_inference_steps] for each in load.requests], longest)
        for load, longest in zip(map(bursty, range(1, rounds + 1)), runs["continuous"], strict=True)
    ]
    yield Finding(
        claim="bursts",
        way="simulated",
        compared=f"{bursts}: cores of containers which the engine's p95 takes, of its own two",
        figure=statistics.median(needed) / _CORES,
        low=min(needed) / _CORES,
        high=max(needed) / _CORES,
        rounds=rounds,
    )


def _at_once(sides: Sequence[RemoteSide], requests: Sequence[GenerationParams]) -> float:
    """Return the seconds until each side has drawn its part of equal requests."""
    with ThreadPoolExecutor(len(sides)) as pool:
        parts = [requests[start :: len(sides)] for start in range(len(sides))]
        return max(pool.map(lambda side, part: float(side.run_all(part)), sides, parts))


def _in_turn(sides: Sequence[RemoteSide], load: Arrivals) -> Latencies:
    """Give each side every so many of the arrivals, as a balancer does, and return all latencies."""

    def part(start: int) -> Arrivals:
        every = slice(start, None, len(sides))
        return Arrivals(load.requests[every], load.seconds[every])

    with ThreadPoolExecutor(len(sides)) as pool:
        played = pool.map(lambda side, start: side.run_arrivals(part(start)), sides, range(len(sides)))
        return [latency for latencies in played for latency in latencies]


def _engine(config: EngineConfig) -> RemoteSide:
    return RemoteSide(partial(OurSide, config))
