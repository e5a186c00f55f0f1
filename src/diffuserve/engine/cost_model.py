"""The cost model: predicts from the first request on, and learns from every step."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from diffuserve.domain.cost import (
    CostEstimate,
    CostFit,
    Workload,
    decode_features,
    dot,
    encode_features,
    step_features,
)

_FORGET = 0.995  # weight kept by the past at each observation: a memory of about 200
_PRIOR_WEIGHT = 0.02  # of one observation; enough to settle what the data leave open
_OUTLIER = 4.0  # times the prediction; a stalled machine says nothing about the model
_TRUSTED_AFTER = 16  # observations before outliers are cut
_YOUNG = 10.0  # how far off the prior may be
_REFIT_EVERY = 8
_SWEEPS = 60


class OnlineFit:
    """Non-negative least squares on relative errors, over a sliding past.

    Minimises Σ wᵢ (c·xᵢ / yᵢ - 1)² plus a faint pull to the prior, by coordinate descent on the
    normal equations: a few coefficients, so a refit takes a fraction of a millisecond.
    """

    def __init__(self, prior: Sequence[float], scale: Sequence[float] | None = None) -> None:
        """`scale` is how far a coefficient may stray where it says more than the prior's own size."""
        size = len(prior)
        self.coefficients = list(prior)
        self.num_observations = 0
        self._prior = list(prior)
        self._scale = [max(*pair, 1e-12) for pair in zip(prior, scale or prior, strict=True)]
        self._squares = [[0.0] * size for _ in range(size)]
        self._targets = [0.0] * size

    @property
    def is_trusted(self) -> bool:
        return self.num_observations >= _TRUSTED_AFTER

    def observe(self, features: Sequence[float], seconds: float) -> None:
        if seconds <= 0:
            return
        unit = seconds
        if self.is_trusted and (expected := dot(self.coefficients, features)) > 0:
            unit = expected  # and not what was measured: a step cut short would count too much
            seconds = min(max(seconds, expected / _OUTLIER), expected * _OUTLIER)
        scaled = [feature / unit for feature in features]
        for i, left in enumerate(scaled):
            self._targets[i] = _FORGET * self._targets[i] + left * seconds / unit
            for j, right in enumerate(scaled):
                self._squares[i][j] = _FORGET * self._squares[i][j] + left * right
        self.num_observations += 1
        if self.num_observations % _REFIT_EVERY == 0 or self.num_observations < _REFIT_EVERY:
            self.refit()

    def refit(self) -> None:
        for _ in range(_SWEEPS):
            for i, (prior, scale) in enumerate(zip(self._prior, self._scale, strict=True)):
                row, pull = self._squares[i], _PRIOR_WEIGHT / scale**2
                rest = sum(row[j] * c for j, c in enumerate(self.coefficients) if j != i)
                value = (self._targets[i] - rest + pull * prior) / (row[i] + pull)
                self.coefficients[i] = max(value, 0.0)


class CostModel:
    """Owned by the engine. Observes steps that had the device to themselves; predicts any."""

    def __init__(self, prior: CostFit, kept: CostFit | None = None) -> None:
        """Begins at the fit that was `kept`; a coefficient that was 0 there may stray as the prior's."""
        self.fit = kept or prior
        self._encode = OnlineFit(self.fit.encode, prior.encode)
        self._step = OnlineFit(self.fit.step, prior.step)
        self._decode = OnlineFit(self.fit.decode, prior.decode)

    @classmethod
    def start(cls, prior: CostFit, path: Path | None) -> "CostModel":
        """From the fit that an earlier run kept at `path`, else from the prior."""
        return cls(prior, load_fit(path) if path is not None else None)

    def save(self, path: Path) -> None:
        """Keep what was learnt; nothing is written before a step was observed."""
        if self._step.num_observations:
            save_fit(path, self.fit)

    def expected_step_seconds(self, loads: Sequence[Workload]) -> float:
        """What a step should take at most, generously while the fit is still young."""
        return self.fit.step_seconds(loads) * (1 if self._step.is_trusted else _YOUNG)

    def expected_decode_seconds(self, loads: Sequence[Workload]) -> float:
        return self.fit.decode_seconds(loads) * (1 if self._decode.is_trusted else _YOUNG)

    def estimate(self, load: Workload) -> CostEstimate:
        return self.fit.estimate(load)

    def observe_encode(self, loads: Sequence[Workload], seconds: float) -> None:
        self._encode.observe(encode_features(loads), seconds)
        constant, per_token = self._encode.coefficients
        self.fit = replace(self.fit, encode=(constant, per_token))

    def observe_step(self, loads: Sequence[Workload], seconds: float) -> None:
        self._step.observe(step_features(loads), seconds)
        constant, token, pair, sequence = self._step.coefficients
        self.fit = replace(self.fit, step=(constant, token, pair, sequence))

    def observe_decode(self, loads: Sequence[Workload], seconds: float) -> None:
        self._decode.observe(decode_features(loads), seconds)
        constant, per_pixel = self._decode.coefficients
        self.fit = replace(self.fit, decode=(constant, per_pixel))


def load_fit(path: Path) -> CostFit | None:
    """A fit that an earlier run kept, or `None` where there is none that can be read."""
    try:
        return CostFit.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def save_fit(path: Path, fit: CostFit) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(fit.to_dict(), indent=2), encoding="utf-8")
    partial.replace(path)
