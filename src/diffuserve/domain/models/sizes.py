"""Sizes that a model draws well, nearest to those that a client of another server asks for."""

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.models.spec import ModelSpec


def well_drawn_size(spec: ModelSpec, width: int, height: int) -> tuple[int, int]:
    """Return this size if the model generates and has learned it, or else the nearest such one.

    Proportions are kept as far as the model's sides allow.
    """
    if _has_learned(spec, width, height) and _generates(spec, width, height):
        return width, height
    if not spec.states_learned_sizes:
        return spec.nearest_size(width, height)
    low, high = spec.learned_min_size, spec.learned_max_size
    scale = max(min(1.0, high / max(width, height)), low / min(width, height))
    across, down = spec.nearest_size(min(scale * width, high), min(scale * height, high))
    lowest = -(-low // spec.size_multiple) * spec.size_multiple
    return max(across, lowest), max(down, lowest)


def _has_learned(spec: ModelSpec, width: int, height: int) -> bool:
    low, high = spec.learned_min_size, spec.learned_max_size
    return not spec.states_learned_sizes or all(low <= side <= high for side in (width, height))


def _generates(spec: ModelSpec, width: int, height: int) -> bool:
    try:
        spec.resolve(spec.simple_request("any", width=width, height=height), seed=0)
    except InvalidParams:
        return False
    return True
