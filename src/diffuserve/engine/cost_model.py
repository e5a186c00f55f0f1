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
_YOUNG = 10.0  # times the prediction; the prior may be that far off
_REFIT_EVERY = 8
_SWEEPS = 60


class OnlineFit:
    """Non-negative least squares on relative errors, over a sliding past.

    Minimises Σ wᵢ (c·xᵢ / yᵢ - 1)² plus a faint pull to the prior, by coordinate descent on the
    normal equations: a few coefficients, so a refit takes a fraction of a millisecond.
    """

    def __init__(self, prior: Sequence[float], scale: Sequence[float] | None = None) -> None:
        """Start at `prior`. `scale` widens how far a coefficient may stray beyond the prior's own size."""
        size = len(prior)
        self.coefficients = list(prior)
        self.num_observations = 0
        self._prior = list(prior)
        self._scale = [max(*pair, 1e-12) for pair in zip(prior, scale or prior, strict=True)]
        self._squares = [[0.0] * size for _ in range(size)]
        self._targets = [0.0] * size

    @property
    def is_trusted(self) -> bool:
        """True once enough was observed to tell an outlier from a bad prior."""
        return self.num_observations >= _TRUSTED_AFTER

    def observe(self, features: Sequence[float], seconds: float) -> None:
        """Take in a measurement; one that is not positive is ignored."""
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
        """Update the coefficients, by coordinate descent clipped at zero."""
        for _ in range(_SWEEPS):
            for i, (prior, scale) in enumerate(zip(self._prior, self._scale, strict=True)):
                row, pull = self._squares[i], _PRIOR_WEIGHT / scale**2
                rest = sum(row[j] * c for j, c in enumerate(self.coefficients) if j != i)
                value = (self._targets[i] - rest + pull * prior) / (row[i] + pull)
                self.coefficients[i] = max(value, 0.0)


class CostModel:
    """Owned by the engine. It observes steps that had the device to themselves, and predicts all."""

    def __init__(self, prior: CostFit, kept: CostFit | None = None) -> None:
        """Start at the `kept` fit, else at `prior`.

        A coefficient that was kept as 0 may stray as far as the prior's.
        """
        self.fit = kept or prior
        self._encode = OnlineFit(self.fit.encode, prior.encode)
        self._step = OnlineFit(self.fit.step, prior.step)
        self._decode = OnlineFit(self.fit.decode, prior.decode)

    @classmethod
    def start(cls, prior: CostFit, path: Path | None) -> "CostModel":
        """Return a model that starts at the fit that an earlier run kept at `path`, else at the prior."""
        return cls(prior, load_fit(path) if path is not None else None)

    def save(self, path: Path) -> None:
        """Write the fit for the next run; write nothing before a step was observed."""
        if self._step.num_observations:
            save_fit(path, self.fit)

    def expected_step_seconds(self, workloads: Sequence[Workload]) -> float:
        """Return the seconds that a step should take at most; generous while the fit is young."""
        return self.fit.step_seconds(workloads) * (1 if self._step.is_trusted else _YOUNG)

    def expected_decode_seconds(self, workloads: Sequence[Workload]) -> float:
        return self.fit.decode_seconds(workloads) * (1 if self._decode.is_trusted else _YOUNG)

    def estimate(self, workload: Workload) -> CostEstimate:
        return self.fit.estimate(workload)

    def observe_encode(self, workloads: Sequence[Workload], seconds: float) -> None:
        self._encode.observe(encode_features(workloads), seconds)
        constant, per_token = self._encode.coefficients
        self.fit = replace(self.fit, encode=(constant, per_token))

    def observe_step(self, workloads: Sequence[Workload], seconds: float) -> None:
        self._step.observe(step_features(workloads), seconds)
        constant, token, pair, sequence = self._step.coefficients
        self.fit = replace(self.fit, step=(constant, token, pair, sequence))

    def observe_decode(self, workloads: Sequence[Workload], seconds: float) -> None:
        self._decode.observe(decode_features(workloads), seconds)
        constant, per_pixel = self._decode.coefficients
        self.fit = replace(self.fit, decode=(constant, per_pixel))


def load_fit(path: Path) -> CostFit | None:
    """Return the fit that an earlier run kept, or `None` if there is none that can be read."""
    try:
        return CostFit.from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return None


def save_fit(path: Path, fit: CostFit) -> None:
    """Write a fit; a reader sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(fit.to_dict(), indent=2), encoding="utf-8")
    partial.replace(path)
