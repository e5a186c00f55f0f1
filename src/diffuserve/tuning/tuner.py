"""The search: what keeps the device busiest, what the fit predicts of the rest, trials of the few best."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

from diffuserve.bench.slo import Slo
from diffuserve.bench.sweep import Probe, knee, next_rate
from diffuserve.domain.models.cost import Workload
from diffuserve.tuning.kept import DEFAULTS, TriedOptions, TunedOptions
from diffuserve.tuning.predicted_rate import Compute, PredictedLoad, Saturated, options_of

_WORTH_A_LOOK = 0.8
"""Of the best rate when saturated: slower threads and dtypes are not tried further."""
_NUM_CHALLENGERS = 4
_BETTER = 1.05
"""Times the defaults' rate: less is within what two trials of the same differ by."""
_PRECISION = 0.1
_MOST_PROBES = 8
_MOST_BROKEN = 4
"""Rates at which options may break the objective, and keep it at none, while others wait for a trial."""
_MIN_REQUESTS, _FEWEST_REQUESTS = 40, 8
_SLO_SECONDS = 3.0
"""A trial lasts several times the objective's seconds, so that a growing queue shows."""
_MOST_OF_TIME = 1 / 12
_FIRST_LOAD = 0.7
"""Of the predicted rate, or else of that when always busy: where the search for the first rate begins."""


@dataclass(frozen=True, kw_only=True)
class TuningPlan:
    """What is looked for, in how much time; `sizes` are those of the workload's requests, in order."""

    slo: Slo
    computes: Sequence[Compute]
    sizes: Sequence[Workload]
    seconds: float
    seed: int = 0


@dataclass(frozen=True)
class Trial:
    """A load at a steady rate: whether it kept the objective, and the seconds of the share that it names."""

    is_kept: bool
    seconds: float | None


class TuningBench(Protocol):
    """Runs engines; each call loads what it needs."""

    async def saturate(self, compute: Compute, seconds: float) -> Saturated:
        """Keep an engine busy for about so long."""
        ...

    async def play(self, options: TunedOptions, rate: float, seconds: float) -> Trial:
        """Play the workload at a rate."""
        ...


@dataclass
class TuningRun:
    """What was found so far; Ctrl-C and the time limit leave it as it is."""

    tried: list[TriedOptions] = field(default_factory=list)
    is_complete: bool = False

    def note(self, found: TriedOptions) -> None:
        """Keep what is known of options, in place of what was known of them before."""
        self.tried = [each for each in self.tried if each.options != found.options] + [found]

    @property
    def best(self) -> TriedOptions | None:
        """Return what keeps the objective at the highest rate; the defaults unless others are better."""
        best = max(self.tried, key=_rate_of, default=None)
        if best is None or best.rate is None:
            return None
        usual = next((each for each in self.tried if each.options == DEFAULTS), best)
        return best if _rate_of(best) >= _BETTER * _rate_of(usual) else usual


def _rate_of(tried: TriedOptions) -> float:
    return tried.rate or 0.0


OnTry = Callable[[str, float], None]
"""Is told what is tried, and the seconds that remain at most."""


@dataclass
class Tuner:
    """One search; `run` has what it found."""

    bench: TuningBench
    plan: TuningPlan
    on_try: OnTry
    clock: Callable[[], float] = time.monotonic
    run: TuningRun = field(default_factory=TuningRun)

    def __post_init__(self) -> None:
        self._end = self.clock() + self.plan.seconds
        self._trial_seconds: list[float] = []
        self._most = 0.0

    async def search(self) -> None:
        """Try until nothing is left to try, or no time; what is under way at its end is given up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.plan.seconds):
                await self._search()

    async def _search(self) -> None:
        saturated = await self._saturate()
        finalists = self._finalists(saturated)
        measured = [
            await self._measure(tried, len(finalists) - number) for number, tried in enumerate(finalists)
        ]
        self.run.is_complete = all(measured)

    async def _saturate(self) -> list[Saturated]:
        """Find how fast each dtype is with each number of threads; drop the slow."""
        found: list[Saturated] = []
        seconds = max(1.0, self.plan.seconds * _MOST_OF_TIME / len(self.plan.computes))
        for number, compute in enumerate(self.plan.computes):
            self.on_try(f"{_named(compute)}: always busy", self._left(len(self.plan.computes) - number))
            found.append(await self.bench.saturate(compute, seconds))
        best = self._most = max(each.rate for each in found)
        for each in found:
            if each.rate < _WORTH_A_LOOK * best and each.compute != Compute():
                options = TunedOptions(dtype=each.compute.dtype, num_threads=each.compute.num_threads)
                remark = f"when always busy {each.rate:.3g} a second, where the best has {best:.3g}"
                self.run.note(TriedOptions(options=options, remark=remark))
        return [each for each in found if each.rate >= _WORTH_A_LOOK * best or each.compute == Compute()]

    def _finalists(self, saturated: Sequence[Saturated]) -> list[TriedOptions]:
        """Return what is worth a trial: the defaults, and then by what is predicted of them, the best first.

        It is each dtype and number of threads with the engine's own choice, and what should be better.
        """
        usual, better = list[TriedOptions](), list[TriedOptions]()
        for number, each in enumerate(saturated):
            self.on_try(f"{_named(each.compute)}: predicting", self._left(len(saturated) - number))
            own, *others = self._predicted(each)
            usual.append(own)
            better += others
        better.sort(key=lambda tried: (-(tried.predicted_rate or 0.0), tried.options.num_given))
        finalists = [*usual, *better[:_NUM_CHALLENGERS]]
        for tried in finalists:
            self.run.note(replace(tried, remark="predicted only: no time was left for a trial"))
        for tried in better[_NUM_CHALLENGERS:]:
            self.run.note(replace(tried, remark="predicted only: others promise more"))
        finalists.sort(key=lambda tried: -(tried.predicted_rate or 0.0))
        return sorted(finalists, key=lambda tried: tried.options != DEFAULTS)

    def _predicted(self, saturated: Saturated) -> list[TriedOptions]:
        """Return the engine's own choice, then the plainest of the options that should keep a higher rate."""
        load = PredictedLoad(sizes=self.plan.sizes, slo=self.plan.slo, seed=self.plan.seed)
        own, *others = options_of(saturated)
        usual = load.rate(saturated, own)
        by_rate: dict[float, TunedOptions] = {}
        for options in sorted(others, key=lambda each: each.num_given):
            rate = load.rate(saturated, options, least=_BETTER * usual or None)
            if rate > usual:
                by_rate.setdefault(rate, options)
        rates = {own: usual, **{options: rate for rate, options in by_rate.items()}}
        return [TriedOptions(options=options, predicted_rate=rate) for options, rate in rates.items()]

    async def _measure(self, tried: TriedOptions, num_left: int) -> bool:
        """Find the highest rate, or that it is below the best so far; return `False` without time for it.

        What keeps the objective at no rate of a few leaves the time to others.
        """
        best = max((each.rate or 0.0 for each in self.run.tried), default=0.0)
        first = best * _BETTER or _FIRST_LOAD * (tried.predicted_rate or self._most)
        probes: list[Probe] = []
        for _ in range(_MOST_PROBES):
            if num_left > 1 and len(probes) == _MOST_BROKEN and knee(probes) is None:
                break
            rate = next_rate(probes, first, _PRECISION)
            if rate is None or (best and probes and not probes[0].is_kept):
                break
            seconds = self._seconds_of(rate)
            if seconds is None:
                return False
            self.on_try(f"{tried.options}: {rate:.3g} a second", self._left(2 * num_left))
            trial = await self._play(tried.options, rate, seconds)
            probes.append(Probe(rate, trial.is_kept))
            tried = _with_trial(tried, probes, trial, best)
            self.run.note(tried)
        return True

    async def _play(self, options: TunedOptions, rate: float, seconds: float) -> Trial:
        began = self.clock()
        trial = await self.bench.play(options, rate, seconds)
        self._trial_seconds.append(self.clock() - began)
        return trial

    def _seconds_of(self, rate: float) -> float | None:
        """Return how long a trial lasts; `None` if too few requests would come in the time that is left."""
        wanted = max(_MIN_REQUESTS / rate, _SLO_SECONDS * self.plan.slo.seconds)
        seconds = min(wanted, self.plan.seconds * _MOST_OF_TIME)
        is_possible = seconds * rate >= _FEWEST_REQUESTS and self.clock() + seconds <= self._end
        return seconds if is_possible else None

    def _left(self, num_trials: int) -> float:
        """Return the seconds that remain at most: until the limit, or by the trials so far."""
        limit = max(0.0, self._end - self.clock())
        if not self._trial_seconds:
            return limit
        return min(limit, num_trials * sum(self._trial_seconds) / len(self._trial_seconds))


def _with_trial(tried: TriedOptions, probes: Sequence[Probe], trial: Trial, best: float) -> TriedOptions:
    """Return what is known of options after one more trial."""
    rate = knee(probes)
    if rate is None:
        remark = f"late at {probes[-1].rate:.3g} a second" + (", where the best is in time" if best else "")
        return replace(tried, seconds=trial.seconds, remark=remark)
    seconds = trial.seconds if trial.is_kept else tried.seconds
    broken = [probe.rate for probe in probes if not probe.is_kept]
    return replace(
        tried, rate=rate, seconds=seconds, remark=f"late at {min(broken):.3g} a second" if broken else ""
    )


def _named(compute: Compute) -> str:
    return str(TunedOptions(dtype=compute.dtype, num_threads=compute.num_threads))
