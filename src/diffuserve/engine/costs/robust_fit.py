"""A fit of a few coefficients to measured seconds, on a machine that other programs use as well.

Other programs only ever add time, so the fit follows the fast measurements. It has two stages: quantile
regression finds a low quantile, which slow measurements hardly move as long as a tenth are undisturbed; the
mean of the measurements near that quantile then averages out ordinary jitter.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

_WINDOW = 256  # latest measurements that count: the fit follows a change of speed within them
_SLOW_PULL = 0.1  # relative to a fast measurement's pull: ten slow ones outweigh one fast one
_FLOOR_WIDTH = 0.1  # relative error from which the pull of a measurement no longer grows
_JITTER = 0.35  # relative, above the low quantile; longer measurements were disturbed
_PRIOR_WEIGHT = 0.002  # of one measurement; decides only what the data leave open
_KEPT_WEIGHT = 8.0  # measurements that a kept fit stands for, while the window fills
_CONTRADICTED = 2.0  # a kept fit that is off by this factor is forgotten
_MAX_TIMES_PRIOR = 50.0  # up or down; devices that share a prior differ by less
_TRUSTED_AFTER = 16
_SETTLED_AFTER = 4
_LATELY = 32  # latest measurements, which show whether the machine is quiet
_DISTURBED = 1.5  # times the fit
_MAX_DISTURBED_SHARE = 1 / 3
_REFIT_EVERY = 8
_ROUNDS = 12
_CONVERGED = 1e-3
_TINY_SECONDS = 1e-12

Vector = Float[np.ndarray, "coefficients"]
Values = Float[np.ndarray, "measurements"]
Rows = Float[np.ndarray, "measurements coefficients"]


class RobustFit:
    """Coefficients within bounds around a prior, fitted to the last few hundred measurements.

    A `kept` fit of an earlier run counts as a few measurements of the same sizes until measurements
    contradict it. After that, the prior decides what measurements leave open. `settled` holds the
    coefficients for later runs: those of the last quiet time, or faster ones. `has_settled` is true once they
    come from measurements.
    """

    def __init__(self, prior: Sequence[float], kept: Sequence[float] | None = None) -> None:
        """Start at `kept`, else at `prior`. A kept fit above the bounds was learned from noise alone."""
        self.num_observations = 0
        self._scale = np.maximum(np.array(prior, dtype=float), _TINY_SECONDS)
        self._low, self._high = self._scale * (1 / _MAX_TIMES_PRIOR), self._scale * _MAX_TIMES_PRIOR
        is_possible = kept is not None and bool((np.array(kept) <= self._high).all())
        self._kept = np.clip(np.array(kept), self._low, self._high) if is_possible else None
        self._floor = self._scale if self._kept is None else self._kept
        self._features: Rows = np.empty((_WINDOW, len(prior)))
        self._seconds: Values = np.empty(_WINDOW)
        self.coefficients = tuple(prior if self._kept is None else self._kept.tolist())
        self.settled = self.coefficients
        self.has_settled = False
        self._began_at_prior = self._kept is None

    @property
    def told(self) -> tuple[float, ...]:
        """The coefficients for other programs: the settled ones.

        On a machine that was never quiet they are the current ones, as a prior may be off by much more.
        """
        return self.coefficients if self._began_at_prior and not self.has_settled else self.settled

    @property
    def has_observed(self) -> bool:
        """True after the first measurement."""
        return self.num_observations > 0

    @property
    def has_kept(self) -> bool:
        """True while the fit of an earlier run counts."""
        return self._kept is not None

    @property
    def is_trusted(self) -> bool:
        """True after enough measurements to tell an outlier from a bad prior."""
        return self.num_observations >= _TRUSTED_AFTER

    def observe(self, features: Sequence[float], seconds: float) -> None:
        """Record a measurement; ignore it unless it is positive."""
        if seconds <= 0 or float(self._scale @ features) < _TINY_SECONDS:
            return
        place = self.num_observations % _WINDOW
        self._features[place], self._seconds[place] = features, seconds
        self.num_observations += 1
        if self.num_observations % _REFIT_EVERY == 0 or self.num_observations < _REFIT_EVERY:
            self.refit()

    def refit(self) -> None:
        """Update the coefficients."""
        features, seconds = self._measured()
        if self._kept is not None:
            self._fit(features, seconds, self._kept)
            if self._is_contradicted(features):
                self._kept = None
        if self._kept is None:
            self._fit(features, seconds, self._scale)
        if self.num_observations >= _SETTLED_AFTER and self._may_settle():
            self.settled, self.has_settled = self.coefficients, True

    def _measured(self) -> tuple[Rows, Values]:
        count = min(self.num_observations, _WINDOW)
        return self._features[:count], self._seconds[:count]

    def _fit(self, features: Rows, seconds: Values, target: Vector) -> None:
        """Fit both stages; `target` is the shape that a weak pull prefers."""
        counts = np.ones(len(seconds))
        if self._kept is not None:
            share = _KEPT_WEIGHT * max(0.0, 1 - self.num_observations / _WINDOW) / len(seconds)
            counts = np.concatenate([counts, np.full(len(seconds), share)])
            seconds = np.concatenate([seconds, features @ self._kept])
            features = np.concatenate([features, features])
        floor = self._floor
        for _ in range(_ROUNDS):
            before, errors = floor, seconds / (features @ floor) - 1
            floor = self._solve(features, seconds, counts * _floor_weights(errors), floor, target)
            if (np.abs(floor - before) < _CONVERGED * before).all():
                break
        self._floor = floor
        weights = counts * _jitter_weights(seconds / (features @ floor) - 1)
        fitted = self._solve(features, seconds, weights, floor, target) if weights.any() else floor
        self.coefficients = tuple(fitted.tolist())

    def _solve(
        self, features: Rows, seconds: Values, weights: Values, near: Vector, target: Vector
    ) -> Vector:
        """Return the bounded least-squares solution of errors relative to the fit `near`.

        The pull to `target` is only to its shape: it is scaled to the level of `near` first.
        """
        expected = features @ near
        level = float((expected / (features @ target)).mean())
        rows = features * self._scale / expected[:, None]
        pull = _PRIOR_WEIGHT * float(weights.mean())
        gram = (rows * weights[:, None]).T @ rows + pull * np.eye(len(near))
        wanted = rows.T @ (weights * seconds / expected) + pull * level * target / self._scale
        solution: Vector = _bounded_solution(gram, wanted) * self._scale
        return solution

    def _may_settle(self) -> bool:
        """Return whether the machine was quiet lately, or the fit is faster than the settled one."""
        latest = np.arange(max(0, self.num_observations - _LATELY), self.num_observations) % _WINDOW
        features, seconds = self._features[latest], self._seconds[latest]
        expected = features @ np.array(self.coefficients)
        is_quiet = float(np.mean(seconds > _DISTURBED * expected)) <= _MAX_DISTURBED_SHARE
        return is_quiet or float(np.median(expected / (features @ np.array(self.settled)))) < 1

    def _is_contradicted(self, features: Rows) -> bool:
        """Return whether the measurements and the kept fit differ by a large factor."""
        assert self._kept is not None
        level = float(np.median(features @ np.array(self.coefficients) / (features @ self._kept)))
        return not 1 / _CONTRADICTED <= level <= _CONTRADICTED


def _floor_weights(errors: Values) -> Values:
    """Return the weights with which the weighted mean converges to a low quantile."""
    sides = np.where(errors > 0, _SLOW_PULL, 1.0)
    weights: Values = sides * np.minimum(1.0, _FLOOR_WIDTH / np.maximum(np.abs(errors), _TINY_SECONDS))
    return weights


def _jitter_weights(errors: Values) -> Values:
    """Return the weights of measurements around the low quantile: 0 for disturbed ones."""
    below = np.minimum(1.0, _JITTER / np.maximum(-errors, _TINY_SECONDS))
    return np.where(errors > _JITTER, 0.0, below)


def _bounded_solution(gram: Float[np.ndarray, "n n"], wanted: Vector) -> Vector:
    """Solve a small linear system; fix coefficients at the bounds that they exceed, the worst one first."""
    low, high = 1 / _MAX_TIMES_PRIOR, _MAX_TIMES_PRIOR
    is_free = np.ones(len(wanted), dtype=bool)
    solution = np.zeros(len(wanted))
    while is_free.any():
        rest = wanted - gram[:, ~is_free] @ solution[~is_free]
        solution[is_free] = np.linalg.solve(gram[np.ix_(is_free, is_free)], rest[is_free])
        excess = np.where(is_free, np.maximum(low - solution, solution - high), 0.0)
        worst = int(excess.argmax())
        if excess[worst] <= 0:
            break
        solution[worst] = min(max(float(solution[worst]), low), high)
        is_free[worst] = False
    return solution
