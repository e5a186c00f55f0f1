"""The highest rate that a cost fit predicts for some options: what is worth a trial, and what is not."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from diffuserve.bench.arrivals import Ramp, arrivals
from diffuserve.bench.slo import Slo
from diffuserve.bench.sweep import Probe, knee, next_rate
from diffuserve.domain.models.cost import CostFit, Workload
from diffuserve.engine.policy.sharing import StepCost
from diffuserve.tuning.kept import TunedOptions
from diffuserve.tuning.simulated_engine import SimulatedEngine, SimulatedRequest, fixed

_PRECISION = 0.06
_MOST_PROBES = 12
_MOST_RATE = 4.0
_MOST_REQUESTS = 300
_SLO_SECONDS = 3.0
_BUDGETS = (1.0, 0.25, 0.5, 2.0)
_BATCHES = (None, 2, 4, 8)


@dataclass(frozen=True)
class Compute:
    """The dtype and the threads of an engine, without which its speed cannot be predicted."""

    dtype: str | None = None
    num_threads: int | None = None


@dataclass(frozen=True, kw_only=True)
class Saturated:
    """An engine that always had work: requests a second, its fit, its budget of tokens, its core slots."""

    compute: Compute
    rate: float
    fit: CostFit
    token_budget: int
    num_slots: int = 1


def options_of(saturated: Saturated) -> Iterator[TunedOptions]:
    """Yield what is worth a prediction for one dtype and number of threads, its own choice first."""
    for part in _BUDGETS:
        for batch in _BATCHES:
            yield TunedOptions(
                dtype=saturated.compute.dtype,
                num_threads=saturated.compute.num_threads,
                token_budget=None if part == 1 else max(1, round(part * saturated.token_budget)),
                max_batch_size=batch,
            )


@dataclass(frozen=True, kw_only=True)
class PredictedLoad:
    """Requests of these sizes, that arrive at random, and the objective that they are to keep."""

    sizes: Sequence[Workload]
    slo: Slo
    seed: int = 0

    def rate(self, saturated: Saturated, options: TunedOptions, least: float | None = None) -> float:
        """Return the highest rate that keeps the objective; 0 if none does, or none of `least` and above."""
        probes: list[Probe] = []
        for _ in range(_MOST_PROBES):
            rate = next_rate(probes, least or saturated.rate / 2, _PRECISION)
            is_beaten = least is not None and bool(probes) and not probes[0].is_kept
            if rate is None or is_beaten or rate > _MOST_RATE * saturated.rate:
                break
            probes.append(Probe(rate, self._is_kept(saturated, options, rate)))
        return knee(probes) or 0.0

    def _is_kept(self, saturated: Saturated, options: TunedOptions, rate: float) -> bool:
        due = arrivals(Ramp.steady(rate), 1.0, self.seed)
        count = min(_MOST_REQUESTS, max(len(self.sizes), round(_SLO_SECONDS * self.slo.seconds * rate)))
        sizes = islice(cycle(self.sizes), count)
        requests = [SimulatedRequest(second, size) for second, size in zip(due, sizes, strict=False)]
        cost = StepCost(saturated.fit.step[0], saturated.num_slots) if options.token_budget is None else None
        tokens = options.token_budget or saturated.token_budget
        limits = fixed(tokens, options.max_batch_size, cost)
        left = (1 - self.slo.share) * count
        for seconds in SimulatedEngine(saturated.fit, limits, saturated.num_slots).play(requests):
            left -= not self.slo.is_good(seconds)
            if left < 0:
                return False
        return True
