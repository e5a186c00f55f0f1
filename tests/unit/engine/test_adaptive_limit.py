"""The controller of `--adaptive` on an engine in arithmetic: it settles, recovers, and does no harm."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest

from diffuserve.bench.slo import Slo, parse_slo
from diffuserve.domain.models.cost import CostFit, Workload
from diffuserve.engine.policy.adaptive_limit import AdaptiveLimit, SeenWindow
from diffuserve.engine.policy.scheduler import StepLimits
from diffuserve.engine.stats import EngineStats
from diffuserve.engine.steps.adaptive_steps import AdaptiveSteps
from diffuserve.tuning.simulated_engine import SimulatedEngine, SimulatedRequest, SimulatedStep

# As a GPU has it: images of 1024 px in 28 steps take 1.3 s alone.
FIT = CostFit((0.005, 1e-5), (0.005, 1e-5, 0.0, 0.0), (0.05, 1e-8))
LONG = Workload(1, 4352, 256, 1024 * 1024, 28)
SHORT = Workload(1, 4352, 256, 1024 * 1024, 4)
TOKENS = 65_536
CALM = SeenWindow(good_share=1.0, busy_share=0.3, used_share=0.2, constant_share=0.01, variation=0.0)
LATE = SeenWindow(good_share=0.8, busy_share=0.6, used_share=0.5, constant_share=0.01, variation=0.0)


@dataclass(frozen=True)
class Followed:
    """The share of requests in time, and the limit after each change."""

    good_share: float
    limits: Sequence[int]


def load(phases: Sequence[tuple[float, float]], mix: Sequence[Workload], seed: int) -> list[SimulatedRequest]:
    """Return requests that arrive at random at the rate of each phase, for its seconds."""
    chance, requests, now, end = random.Random(seed), list[SimulatedRequest](), 0.0, 0.0
    for rate, seconds in phases:
        end += seconds
        while (now := now + chance.expovariate(rate)) < end:
            requests.append(SimulatedRequest(now, chance.choice(mix)))
        now = end
    return requests


def followed(slo: Slo | None, requests: Sequence[SimulatedRequest], judged_by: Slo) -> Followed:
    stats, limits = EngineStats(), [TOKENS]

    def on_step(step: SimulatedStep) -> None:
        stats.count_step(step.num_requests, step.num_tokens, step.seconds)
        adaptive.look(engine.unfinished, TOKENS)
        if (limit := adaptive.limited(TOKENS)) != limits[-1]:
            limits.append(limit)

    def on_ended(request: SimulatedRequest, seconds: float) -> None:
        adaptive.note_ended(seconds, FIT.estimate(request.workload).seconds)

    engine = SimulatedEngine(
        FIT, lambda: StepLimits(adaptive.limited(TOKENS), 2**60), on_step=on_step, on_ended=on_ended
    )
    adaptive = AdaptiveSteps(slo, lambda: FIT, stats, clock=lambda: engine.now)
    latencies = list(engine.play(requests))
    return Followed(sum(map(judged_by.is_good, latencies)) / len(latencies), limits)


def beside(phases: Sequence[tuple[float, float]], mix: Sequence[Workload]) -> tuple[Followed, Followed]:
    """Return what one load got with the controller and without."""
    slo, requests = parse_slo("p95<6s"), load(phases, mix, seed=0)
    return followed(slo, requests, slo), followed(None, requests, slo)


def test_more_requests_are_in_time_where_they_are_alike() -> None:
    with_it, without = beside([(0.5, 2500)], [LONG])
    assert with_it.good_share > without.good_share + 0.01


def test_it_leaves_a_mix_of_long_and_short_requests_alone() -> None:
    with_it, without = beside([(1.6, 900)], [LONG, *[SHORT] * 5])
    assert len(with_it.limits) <= 3
    assert with_it.good_share >= without.good_share - 0.01


def test_it_changes_nothing_while_requests_are_in_time() -> None:
    with_it, _ = beside([(0.2, 1000)], [LONG])
    assert with_it.limits == [TOKENS]


def test_it_settles_and_recovers_after_a_burst() -> None:
    """A step in the load and its end: few changes, no harm, and the ordinary budget again in the end."""
    with_it, without = beside([(0.3, 500), (2.0, 60), (0.3, 3000)], [LONG])
    assert with_it.good_share >= without.good_share - 0.01
    assert len(with_it.limits) < 16
    assert with_it.limits[-1] == TOKENS


def test_a_cut_that_did_not_help_is_taken_back_and_not_tried_again_for_longer_each_time() -> None:
    limit, pauses = AdaptiveLimit(), []
    for _ in range(3):
        limit = limit.after(LATE, 0.95)
        assert limit.share < 0.5
        limit = limit.after(LATE, 0.95)
        assert limit.share == 1
        pauses.append(limit.pause)
        for _ in range(limit.pause):
            limit = limit.after(LATE, 0.95)
            assert limit.share == 1
    assert pauses == [4, 8, 16]


@pytest.mark.parametrize(
    "seen",
    [
        SeenWindow(good_share=0.2, busy_share=1.0, used_share=1.0, constant_share=0.3, variation=0.0),
        SeenWindow(good_share=0.2, busy_share=0.5, used_share=1.0, constant_share=0.01, variation=1.5),
    ],
    ids=["no idle time pays for it", "requests differ much"],
)
def test_it_does_not_cut_where_that_would_do_harm(seen: SeenWindow) -> None:
    assert AdaptiveLimit().after(seen, 0.95) == AdaptiveLimit()
    lowered = AdaptiveLimit(share=0.3)
    assert lowered.after(seen, 0.95).share > 0.3


def test_a_lowered_limit_rises_again_in_small_steps() -> None:
    limit, shares = AdaptiveLimit(share=0.3), []
    while limit.share < 1:
        limit = limit.after(CALM, 0.95)
        shares.append(limit.share)
    assert max(b - a for a, b in pairwise(shares)) <= 0.2 + 1e-9
