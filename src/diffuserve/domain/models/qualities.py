"""Qualities: words for step counts, from a quick draft to the most that may still show."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.request_bounds import MAX_STEPS

_SHARES: Final = MappingProxyType({"low": 0.5, "medium": 1.0, "high": 1.5, "xhigh": 2.0, "max": 3.0})
"""Steps of each quality, as multiples of the model's default."""


def quality_steps(spec: ModelSpec, allowed: Sequence[int] = ()) -> Mapping[str, int]:
    """Return the steps of each quality; if only some step counts are `allowed`, the nearest of these."""
    wanted = {name: _bounded(spec.num_inference_steps * share) for name, share in _SHARES.items()}
    if not allowed:
        return wanted
    return {name: min(allowed, key=lambda each: (abs(each - steps), each)) for name, steps in wanted.items()}


def _bounded(steps: float) -> int:
    return min(max(round(steps), 1), MAX_STEPS)
