"""Tiers: the step counts and sizes that requests of a model may have, where the operator limits them."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.requests.request_bounds import MAX_STEPS

Value = TypeVar("Value", int, str)
_SIZE = re.compile(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})")
_PROPORTIONS = 4.0  # weight: other proportions are worse than a few times as many pixels
_LIMITED = ("width", "height", "num_inference_steps")


class TierPolicy(StrEnum):
    """Treatment of a request for a value that is not allowed: it gets the nearest one, or is refused."""

    NEAREST = "nearest"
    REFUSE = "refuse"


@dataclass(frozen=True, kw_only=True)
class Tiers:
    """Allowed step counts, and sizes such as `1024x1024`; an empty list allows all that the model supports.

    A field that a request leaves out gets the allowed value nearest to the model's default, under any policy.
    """

    steps: tuple[int, ...] = ()
    sizes: tuple[str, ...] = ()
    policy: TierPolicy = TierPolicy.NEAREST

    def check(self) -> None:
        """Raise `ValueError` for step counts and sizes that no model has."""
        for steps in self.steps:
            if not 1 <= steps <= MAX_STEPS:
                raise ValueError(f"{steps} steps: must lie in 1…{MAX_STEPS}")
        for size in self.sizes:
            if not _SIZE.fullmatch(size):
                raise ValueError(f"size {size!r}: must be WIDTHxHEIGHT in pixels, such as 1024x1024")

    def allowed(self, spec: ModelSpec, params: GenerationParams) -> GenerationParams:
        """Return the parameters with allowed values. Raise `InvalidParams` for others if they are refused."""
        if self.steps:
            params = replace(params, num_inference_steps=self._allowed_steps(spec, params))
        if self.sizes and spec.has_size:
            width, height = self._allowed_size(spec, params)
            params = replace(params, width=width, height=height)
        return params

    def _allowed_steps(self, spec: ModelSpec, params: GenerationParams) -> int:
        asked = params.num_inference_steps
        wanted = asked or spec.num_inference_steps
        steps = min(self.steps, key=lambda each: (abs(each - wanted), each))
        if asked and asked != steps and self.policy is TierPolicy.REFUSE:
            raise InvalidParams("num_inference_steps", asked, self._remedy(spec, self.steps, "steps"))
        return steps

    def _allowed_size(self, spec: ModelSpec, params: GenerationParams) -> tuple[int, int]:
        asked = spec.size_of(params)
        size = min(map(_sides, self.sizes), key=lambda each: (_distance(each, asked), each))
        if (params.width or params.height) and size != asked and self.policy is TierPolicy.REFUSE:
            width, height = asked
            raise InvalidParams("size", f"{width}x{height}", self._remedy(spec, self.sizes, "pixels"))
        return size

    def _remedy(self, spec: ModelSpec, allowed: Sequence[object], unit: str) -> str:
        *others, last = map(str, allowed)
        words = f"{', '.join(others)} or {last}" if others else last
        return f"this server draws {spec.name} with {words} {unit} alone; choose one of these"


NO_TIERS = Tiers()


def possible_tiers(tiers: Tiers, spec: ModelSpec) -> Tiers:
    """Return the tiers that the model supports.

    If it supports none of a list, the whole list is kept: its requests are then refused with the reason.
    """

    def can(value: int | str) -> bool:
        named = _size_named(value) if isinstance(value, str) else {"num_inference_steps": value}
        try:
            spec.resolve(spec.simple_request("any", **named), seed=0)
        except InvalidParams:
            return False
        return True

    return replace(tiers, steps=_kept(tiers.steps, can), sizes=_kept(tiers.sizes, can))


def within_tiers(spec: ModelSpec, tiers: Tiers) -> ModelSpec:
    """Return the spec with the allowed values that are nearest to its own as defaults."""
    default = tiers.allowed(spec, GenerationParams(prompt="any"))
    own = {name: getattr(default, name) or getattr(spec, name) for name in _LIMITED}
    return replace(spec, **own)


def replaced_values(asked: GenerationParams, used: GenerationParams) -> Mapping[str, Any] | None:
    """Return the step count and the sides that a client asked for and did not get; `None` if it got all."""
    given = {name: getattr(asked, name) for name in _LIMITED}
    differing = {name: value for name, value in given.items() if value not in (None, getattr(used, name))}
    return differing or None


def _kept(values: tuple[Value, ...], can: Callable[[Value], bool]) -> tuple[Value, ...]:
    return tuple(filter(can, values)) or values


def _size_named(size: str) -> dict[str, int]:
    width, height = _sides(size)
    return {"width": width, "height": height}


def _sides(size: str) -> tuple[int, int]:
    width, height = size.split("x")
    return int(width), int(height)


def _distance(one: tuple[int, int], other: tuple[int, int]) -> float:
    """Return the distance of two sizes in pixels and in proportions, which weigh more."""
    across, down = (math.log(side / wanted) for side, wanted in zip(one, other, strict=True))
    return math.hypot(across + down, _PROPORTIONS * (across - down))
