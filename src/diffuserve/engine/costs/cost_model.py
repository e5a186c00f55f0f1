"""The cost model: predicts from the first request on, and learns from every step."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from diffuserve.domain.codec import from_json
from diffuserve.domain.models.cost import (
    CostEstimate,
    CostFit,
    Workload,
    decode_features,
    encode_features,
    step_features,
)
from diffuserve.engine.costs.robust_fit import RobustFit

_WARM_UP_FACTOR = 10.0  # times the prediction, while warming up: the prior may be off by this much
_MAX_KNEE_CHANGE = 8.0  # times the prior's knee, since measurements of a single size do not determine it


class CostModel:
    """Predicts the cost of all steps from those observed while they had the device to themselves.

    It is owned by the engine."""

    def __init__(self, prior: CostFit, kept: CostFit | None = None) -> None:
        """Start at the `kept` fit, clamped to bounds around the prior, or else at `prior`."""
        self._prior = prior
        self._encode = RobustFit(prior.encode, None if kept is None else kept.encode)
        self._step = RobustFit(prior.step, None if kept is None else kept.step)
        self._decode = RobustFit(prior.decode_parts, None if kept is None else kept.decode_parts)

    @classmethod
    def start(cls, prior: CostFit, path: Path | None) -> "CostModel":
        """Return a model that starts at the fit that an earlier run kept at `path`, else at the prior."""
        return cls(prior, load_fit(path) if path is not None else None)

    @property
    def fit(self) -> CostFit:
        """The coefficients that predict best now."""
        return _cost_fit(self._encode.coefficients, self._step.coefficients, self._decode.coefficients)

    @property
    def told_fit(self) -> CostFit:
        """The fit for other programs; once it has settled, momentary noise does not change it."""
        return _cost_fit(self._encode.told, self._step.told, self._decode.told)

    @property
    def settled_fit(self) -> CostFit:
        """The fit for later runs, which momentary noise does not change."""
        return _cost_fit(self._encode.settled, self._step.settled, self._decode.settled)

    @property
    def knows_steps(self) -> bool:
        """True once enough steps were measured, now or for the kept fit, to know more than the prior."""
        return self._step.has_kept or self._step.is_trusted

    @property
    def has_settled(self) -> bool:
        """True once the measured steps are worth keeping because few of them were disturbed.

        For an engine that only decodes, true once its measured decodes are.
        """
        return self._step.has_settled or (self._decode.has_settled and not self._step.has_observed)

    def save(self, path: Path) -> None:
        """Write the settled fit for the next run; write nothing before it has settled.

        For phases that this engine did not measure, the file keeps what an engine of another role wrote.
        """
        if self.has_settled:
            save_fit(path, self._merged(load_fit(path) or self.settled_fit))

    def _merged(self, kept: CostFit) -> CostFit:
        """Return the settled fit, with the `kept` coefficients for phases that were not measured."""
        own = self.settled_fit
        decoded = own if self._decode.has_observed else kept
        return CostFit(
            own.encode if self._encode.has_observed else kept.encode,
            own.step if self._step.has_observed else kept.step,
            decoded.decode,
            later_pixel=decoded.later_pixel,
        )

    def knee_tokens(self) -> int:
        """Return the fit's knee, near that of the prior."""
        prior = self._prior.knee_tokens()
        low, high = int(prior / _MAX_KNEE_CHANGE), int(prior * _MAX_KNEE_CHANGE)
        return min(max(self.fit.knee_tokens(), low), high)

    def expected_step_seconds(self, workloads: Sequence[Workload]) -> float:
        """Return the most seconds that a step should take; generous while the fit is warming up."""
        return self.fit.step_seconds(workloads) * (1 if self._step.is_trusted else _WARM_UP_FACTOR)

    def expected_decode_seconds(self, workloads: Sequence[Workload]) -> float:
        return self.fit.decode_seconds(workloads) * (1 if self._decode.is_trusted else _WARM_UP_FACTOR)

    def estimate(self, workload: Workload) -> CostEstimate:
        return self.fit.estimate(workload)

    def observe_encode(self, workloads: Sequence[Workload], seconds: float) -> None:
        self._encode.observe(encode_features(workloads), seconds)

    def observe_step(self, workloads: Sequence[Workload], seconds: float) -> None:
        self._step.observe(step_features(workloads), seconds)

    def observe_decode(self, workloads: Sequence[Workload], seconds: float) -> None:
        self._decode.observe(decode_features(workloads), seconds)


def _cost_fit(encode: Sequence[float], step: Sequence[float], decode: Sequence[float]) -> CostFit:
    encode_constant, encode_token = encode
    constant, token, pair, sequence = step
    decode_constant, decode_pixel, later_pixel = decode
    return CostFit(
        (encode_constant, encode_token),
        (constant, token, pair, sequence),
        (decode_constant, decode_pixel),
        later_pixel=None if later_pixel == decode_pixel else later_pixel,
    )


def load_fit(path: Path) -> CostFit | None:
    """Return the fit that an earlier run kept, or `None` if there is no readable one."""
    try:
        return from_json(CostFit, path.read_bytes())
    except (OSError, ValueError):
        return None


def save_fit(path: Path, fit: CostFit) -> None:
    """Write a fit; a reader sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(fit), indent=2), encoding="utf-8")
    partial.replace(path)
