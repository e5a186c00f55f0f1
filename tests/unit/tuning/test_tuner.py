"""The search, on engines in arithmetic: it finds the best options, within its time, and says why."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from diffuserve.bench.arrivals import Ramp, arrivals
from diffuserve.bench.slo import Slo
from diffuserve.domain.models.cost import CostFit, Workload
from diffuserve.tuning.kept import DEFAULTS, TunedOptions
from diffuserve.tuning.predicted_rate import Compute, Saturated
from diffuserve.tuning.simulated_engine import SimulatedEngine, SimulatedRequest, fixed
from diffuserve.tuning.tuner import Trial, Tuner, TuningPlan, TuningRun

SLO = Slo(0.95, 0.6)
IMAGE = Workload(1, 96, 32, 128 * 128, 4)
FIT = CostFit((0.001, 1e-6), (0.02, 1e-4, 0.0, 0.0), (0.001, 1e-8))


@dataclass
class SimulatedBench:
    """Engines of given fits; a trial passes its seconds on a clock of its own."""

    fits: dict[Compute, CostFit]
    token_budget: int = 100
    seconds_passed: float = 0.0
    played: list[TunedOptions] = field(default_factory=list)
    interrupt_after: int | None = None

    async def saturate(self, compute: Compute, seconds: float) -> Saturated:
        self.seconds_passed += seconds
        rate = 1 / self.fits[compute].estimate(IMAGE).seconds
        return Saturated(compute=compute, rate=rate, fit=self.fits[compute], token_budget=self.token_budget)

    async def play(self, options: TunedOptions, rate: float, seconds: float) -> Trial:
        if len(self.played) == self.interrupt_after:
            raise KeyboardInterrupt
        self.played.append(options)
        self.seconds_passed += seconds
        fit = self.fits[Compute(options.dtype, options.num_threads)]
        count = max(1, round(rate * seconds))
        due = arrivals(Ramp.steady(rate), 1.0, seed=1)
        requests = [SimulatedRequest(second, IMAGE) for second, _ in zip(due, range(count), strict=False)]
        limits = fixed(options.token_budget or self.token_budget, options.max_batch_size)
        latencies = list(SimulatedEngine(fit, limits).play(requests))
        return Trial(SLO.is_kept(latencies), sorted(latencies)[int(0.95 * count)])


def tuner(bench: SimulatedBench, computes: Sequence[Compute] = (Compute(),), seconds: float = 600.0) -> Tuner:
    plan = TuningPlan(slo=SLO, computes=computes, sizes=[IMAGE] * 40, seconds=seconds)
    return Tuner(bench, plan, on_try=lambda _tried, _left: None, clock=lambda: bench.seconds_passed)


def test_a_larger_budget_wins_where_steps_have_a_large_constant_part() -> None:
    search = tuner(SimulatedBench({Compute(): FIT}))
    asyncio.run(search.search())
    best = search.run.best
    usual = next(each for each in search.run.tried if each.options == DEFAULTS)
    assert search.run.is_complete
    assert best is not None
    assert best.options.token_budget == 200
    assert best.rate is not None
    assert usual.rate is not None
    assert best.rate > 1.1 * usual.rate


def test_the_defaults_stay_where_nothing_is_better() -> None:
    """Steps without a constant part, and requests that are alike: one at a time is best."""
    fit = CostFit((0.0, 0.0), (0.0, 1e-3, 0.0, 0.0), (0.0, 0.0))
    search = tuner(SimulatedBench({Compute(): fit}, token_budget=96))
    asyncio.run(search.search())
    assert search.run.best is not None
    assert search.run.best.options == DEFAULTS


def test_faster_threads_win_and_slow_ones_are_dropped_unplayed() -> None:
    fast, slow = Compute("bfloat16", 2), Compute(None, 1)
    bench = SimulatedBench({Compute(): FIT, fast: FIT.scaled(0.5), slow: FIT.scaled(3.0)})
    search = tuner(bench, [Compute(), fast, slow])
    asyncio.run(search.search())
    assert search.run.best is not None
    assert (search.run.best.options.dtype, search.run.best.options.num_threads) == ("bfloat16", 2)
    assert all(options.num_threads != 1 for options in bench.played)
    dropped = next(each for each in search.run.tried if each.options.num_threads == 1)
    assert dropped.remark.startswith("when always busy")


@pytest.mark.parametrize("seconds", [60.0, 600.0])
def test_the_best_prediction_is_tried_where_the_defaults_keep_the_objective_at_no_rate(
    seconds: float,
) -> None:
    fast = Compute("bfloat16", 2)
    bench = SimulatedBench({Compute(): FIT.scaled(20.0), fast: FIT})
    search = tuner(bench, [Compute(), fast], seconds)
    asyncio.run(search.search())
    predicted = max(search.run.tried, key=lambda tried: tried.predicted_rate or 0.0)
    assert predicted.options in bench.played
    assert search.run.best is not None
    assert search.run.best.options.dtype == "bfloat16"


@pytest.mark.parametrize("seconds", [6.0, 12.0])
def test_the_time_limit_holds_and_leaves_the_best_so_far(seconds: float) -> None:
    bench = SimulatedBench({Compute(): FIT})
    search = tuner(bench, seconds=seconds)
    asyncio.run(search.search())
    assert bench.seconds_passed <= seconds
    assert not search.run.is_complete


def test_an_interrupted_search_keeps_what_was_measured() -> None:
    bench = SimulatedBench({Compute(): FIT}, interrupt_after=5)
    search = tuner(bench)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(search.search())
    assert search.run.best is not None
    assert search.run.best.rate


def test_nothing_is_kept_without_a_measurement() -> None:
    assert TuningRun().best is None
    search = tuner(SimulatedBench({Compute(): FIT}, interrupt_after=0))
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(search.search())
    assert search.run.best is None
