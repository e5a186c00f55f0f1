"""The order of steps on a simulated machine: who wins, who waits, and how many share a step."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diffuserve.engine.policy.scheduler import Candidate, StepLimits, StepScheduler
from diffuserve.engine.policy.sharing import StepCost, Work, num_micro_batches
from diffuserve.engine.policy.step_order import StepOrder

SHORTEST = StepScheduler(ageing_steps=16)
ARRIVAL = replace(SHORTEST, order=StepOrder.ARRIVAL)

CONSTANT, ADDED = 0.3, 1.0  # seconds of a step, and of each request that shares it
LONE = CONSTANT + ADDED
LIMITS = StepLimits(tokens=10**6, step_bytes=10**9, cost=StepCost(CONSTANT))
FREE = replace(LIMITS, cost=None)


Way = Callable[[list[Candidate]], Sequence[Candidate]]


def by(scheduler: StepScheduler, limits: StepLimits) -> Way:
    """Let a scheduler choose who takes a step."""

    def chosen(waiting: list[Candidate]) -> list[Candidate]:
        ids = scheduler.select(waiting, limits)
        return [each for each in waiting if each.request_id in ids]

    return chosen


def equal_turns(waiting: list[Candidate]) -> list[Candidate]:
    return waiting


@dataclass
class Play:
    """Requests that step on a machine: number `i` comes at `arrivals[i]` for `num_steps[i]` steps."""

    arrivals: Sequence[float]
    num_steps: Sequence[int]

    def by(self, choose: Way) -> list[float]:
        """Return the seconds that each takes from its arrival."""
        now, entered, ends = 0.0, 0, [0.0] * len(self.arrivals)
        waiting: list[Candidate] = []
        while entered < len(ends) or waiting:
            now = now if waiting else max(now, self.arrivals[entered])
            while entered < len(ends) and self.arrivals[entered] <= now:
                waiting.append(newcomer(entered, self.num_steps[entered]))
                entered += 1
            chosen = choose(waiting)
            seconds = CONSTANT + ADDED * len(chosen)
            now += seconds
            waiting = [stepped(each, seconds, each in chosen) for each in waiting]
            for each in waiting:
                if each.step == each.num_steps:
                    ends[each.arrival] = now
            waiting = [each for each in waiting if each.step < each.num_steps]
        return [end - arrival for end, arrival in zip(ends, self.arrivals, strict=True)]

    def collecting(self, most: int = 4) -> list[float]:
        """Return the same of batches of requests with equal steps, collected for the work of a mean one."""
        timer = LONE * statistics.fmean(self.num_steps)
        now, left = 0.0, list(range(len(self.arrivals)))
        ends: dict[int, float] = {}
        while left:
            first = left[0]
            alike = [i for i in left if self.num_steps[i] == self.num_steps[first]][:most]
            full = self.arrivals[alike[-1]] if len(alike) == most else float("inf")
            now = max(now, min(full, self.arrivals[first] + timer))
            batch = [i for i in alike if self.arrivals[i] <= now]
            now += self.num_steps[first] * (CONSTANT + ADDED * len(batch))
            ends |= dict.fromkeys(batch, now)
            left = [i for i in left if i not in batch]
        return [ends[i] - arrival for i, arrival in enumerate(self.arrivals)]

    def delays(self, seconds: Sequence[float]) -> list[float]:
        """Return the seconds that requests took, in times of those that they would take by themselves."""
        return [each / (LONE * steps) for each, steps in zip(seconds, self.num_steps, strict=True)]


def newcomer(arrival: int, num_steps: int, priority: int = 0) -> Candidate:
    return Candidate(
        str(arrival),
        priority,
        arrival,
        skipped=0,
        tokens=100,
        step_bytes=1,
        num_steps=num_steps,
        step_seconds=LONE,
        turn_seconds=ADDED,
    )


def stepped(each: Candidate, seconds: float, is_chosen: bool) -> Candidate:
    return replace(each, age_seconds=each.age_seconds + seconds, step=each.step + is_chosen)


def poisson(load: float, seed: int, count: int = 120) -> Play:
    """Return requests of 4, 8 or 20 steps at a share of what the machine does one at a time."""
    random = Random(seed)
    num_steps = [random.choice((4, 8, 20)) for _ in range(count)]
    rate = load / (LONE * statistics.fmean(num_steps))
    now, arrivals = 0.0, []
    for _ in range(count):
        now += random.expovariate(rate)
        arrivals.append(now)
    return Play(arrivals, num_steps)


def p95(seconds: Sequence[float]) -> float:
    return statistics.quantiles(seconds, n=20)[-1]


@dataclass(frozen=True)
class Figures:
    """Percentiles of seconds, and of delays, over all requests of some plays."""

    p50: float
    p95: float
    delay_p95: float


def figures(plays: Sequence[Play], way: Callable[[Play], list[float]]) -> Figures:
    taken = [(play, way(play)) for play in plays]
    seconds = [each for _, of_play in taken for each in of_play]
    delays = [each for play, of_play in taken for each in play.delays(of_play)]
    return Figures(statistics.median(seconds), p95(seconds), p95(delays))


@pytest.mark.parametrize("load", [0.5, 0.7, 0.9])
def test_shortest_first_beats_equal_turns_and_collecting_for_half_and_for_nearly_all(load: float) -> None:
    plays = [poisson(load, seed) for seed in range(4)]
    ours = figures(plays, lambda play: play.by(by(SHORTEST, LIMITS)))
    equal = figures(plays, lambda play: play.by(equal_turns))
    collecting = figures(plays, Play.collecting)
    assert ours.p50 < min(equal.p50, collecting.p50)
    assert ours.p95 < min(equal.p95, collecting.p95)
    assert ours.delay_p95 < min(equal.delay_p95, collecting.delay_p95)


@given(st.integers(1, 30), st.integers(1, 8), st.floats(0.5, 0.8))
@settings(max_examples=12)
def test_beside_a_flood_of_short_requests_none_waits_for_long(long: int, short: int, load: float) -> None:
    count = 4 * (long // short + 2)
    flood = [number * short * LONE / load for number in range(count)]
    play = Play([0.0, *flood], [long, *[short] * count])
    seconds = play.by(by(SHORTEST, LIMITS))
    two_steps = 2 * (CONSTANT + 2 * ADDED)
    assert all(
        each <= 4 * LONE * steps + two_steps for each, steps in zip(seconds, play.num_steps, strict=True)
    )


def test_delayed_requests_go_first_and_the_most_delayed_of_them_before_all() -> None:
    fresh, late, later = newcomer(0, 1), newcomer(1, 8), newcomer(2, 8)
    late, later = (replace(each, age_seconds=age * LONE) for each, age in ((late, 25.0), (later, 26.0)))
    assert SHORTEST.select([fresh, late, later], FREE) == ["2", "1", "0"]
    punctual = replace(late, age_seconds=0.0)
    assert SHORTEST.select([fresh, punctual, later], FREE) == ["2", "0", "1"]


def test_of_equal_work_what_has_waited_goes_first_and_a_shorter_newcomer_waits_for_it() -> None:
    half_done = replace(newcomer(0, 8), step=4, age_seconds=12 * LONE)
    assert SHORTEST.select([newcomer(1, 4), half_done], FREE) == ["0", "1"]
    assert SHORTEST.select([newcomer(1, 4), replace(half_done, age_seconds=0.0)], FREE) == ["0", "1"]
    assert SHORTEST.select([newcomer(1, 3), replace(half_done, age_seconds=0.0)], FREE) == ["1", "0"]


def test_a_step_led_by_equals_counts_as_skipped_by_arrival_alone() -> None:
    assert ARRIVAL.is_skipped(priority=0, first_priority=0)
    assert not SHORTEST.is_skipped(priority=0, first_priority=0)
    assert SHORTEST.is_skipped(priority=0, first_priority=1)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), min_size=1, max_size=12))
def test_whoever_has_aged_takes_no_place_of_those_of_the_highest_priority(
    requests: list[tuple[int, int]],
) -> None:
    waiting = [
        replace(newcomer(number, 8, priority), skipped=skipped)
        for number, (priority, skipped) in enumerate(requests)
    ]
    highest = max(each.priority for each in waiting)
    of_highest = [each for each in waiting if each.priority == highest]
    assert set(SHORTEST.select(of_highest, LIMITS)) <= set(SHORTEST.select(waiting, LIMITS))


def test_more_shares_a_step_the_more_it_saves_and_the_longer_the_queue() -> None:
    def shared(count: int, constant: float) -> int:
        worthwhile = StepCost(constant).worthwhile_seconds([Work(100, ADDED)] * count)
        return round(worthwhile / ADDED)

    assert [shared(count, 0.3) for count in (1, 2, 6, 24, 96)] == [1, 2, 3, 10, 42]
    assert [shared(count, 3.0) for count in (1, 2, 6, 24, 96)] == [1, 2, 6, 24, 96]
    assert shared(96, 0.0) == 2, "the fewest from which the fit learns what sharing saves"


def test_without_predictions_everything_that_fits_shares_a_step() -> None:
    assert StepCost(0.0).worthwhile_seconds([Work(100, 0.0)] * 3) == float("inf")
    assert StepCost(0.0).worthwhile_seconds([]) == float("inf")


def test_a_step_that_fills_another_core_is_worthwhile() -> None:
    assert [num_micro_batches(tokens, 2) for tokens in (1, 767, 768, 9_999)] == [1, 1, 2, 2]
    works = [Work(96, 1.0)] * 8
    one, two = StepCost(1.0), StepCost(1.0, core_slots=2)
    assert one.worthwhile_seconds(works) < 8 == two.worthwhile_seconds(works)
