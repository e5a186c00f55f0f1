"""Follows an objective while the engine serves: what the controller sees of it, and what it is told."""

import logging
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from diffuserve.bench.slo import Slo
from diffuserve.domain.models.cost import CostFit
from diffuserve.engine.policy.adaptive_limit import AdaptiveLimit, SeenWindow
from diffuserve.engine.stats import EngineStats

log = logging.getLogger(__name__)

_MIN_ENDED = 40
"""Requests of a window; of fewer the share in time says too little."""


class AdaptiveSteps:
    """Bounds the tokens of steps for an objective; without one it does nothing.

    A window begins when the limit may have changed, counts requests that came since then, and ends once
    enough have ended and the seconds of the objective have passed. `good_share` is that of the last window.
    Requests have their times by `clock`.
    """

    def __init__(
        self,
        slo: Slo | None,
        fit: Callable[[], CostFit],
        stats: EngineStats,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._slo, self._fit, self._stats, self._clock = slo, fit, stats, clock
        self._limit = AdaptiveLimit()
        self.good_share: float | None = None
        self._begin()

    @property
    def follows(self) -> bool:
        """Return whether there is an objective."""
        return self._slo is not None

    def limited(self, tokens: int) -> int:
        """Return the tokens that a step may have of those that it ordinarily may."""
        return max(1, round(tokens * self._limit.share))

    def note_ended(self, seconds: float, device_seconds: float) -> None:
        """Note that a request ended that came so many seconds ago and took so much of the device."""
        if self._slo is not None and self._clock() - seconds >= self._began_at:
            self._work.append(device_seconds)
            self._num_good += self._slo.is_good(seconds)

    def look(self, unfinished: Iterable[float], tokens: int) -> None:
        """Let the controller decide if the window is over.

        `unfinished` are the times at which requests came that have not ended, and `tokens` those of an
        ordinary step.
        """
        if self._slo is None:
            return
        now = self._clock()
        if len(self._work) < _MIN_ENDED or now - self._began_at < self._slo.seconds:
            return
        latest = now - self._slo.seconds
        overdue = sum(self._began_at <= came < latest for came in unfinished)
        self.good_share = self._num_good / (len(self._work) + overdue)
        before, self._limit = self._limit, self._limit.after(self._seen(now, tokens), self._slo.share)
        if self._limit.share != before.share:
            self._tell(before, tokens)
        self._begin()

    def _seen(self, now: float, tokens: int) -> SeenWindow:
        constant, per_token = self._fit().step[:2]
        whole = constant + per_token * tokens
        assert self.good_share is not None
        steps = self._stats.since(self._before)
        return SeenWindow(
            good_share=self.good_share,
            busy_share=min(1.0, steps.denoise_seconds / (now - self._began_at)),
            used_share=steps.num_step_tokens / max(1, steps.num_steps) / tokens,
            constant_share=min(1.0, constant / whole) if whole else 0.0,
            variation=_variation(self._work),
        )

    def _tell(self, before: AdaptiveLimit, tokens: int) -> None:
        assert self._slo is not None
        log.info(
            "%s: %.0f %% of requests were in time, so a step may have %s tokens instead of %s",
            self._slo,
            100 * (self.good_share or 0),
            f"{self.limited(tokens):,}",
            f"{max(1, round(tokens * before.share)):,}",
        )

    def _begin(self) -> None:
        self._began_at = self._clock()
        self._before = replace(self._stats)
        self._work: list[float] = []
        self._num_good = 0


def _variation(values: Sequence[float]) -> float:
    """Return the squared coefficient of variation; 0 of values that are all 0."""
    mean = statistics.fmean(values)
    return statistics.pvariance(values) / mean**2 if mean else 0.0
