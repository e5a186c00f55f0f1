"""A pipeline's own refusals of a request, as errors that name the field, the value and a remedy."""

import re
from collections.abc import Iterator

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.requests.params import FIELDS, GenerationParams
from diffuserve.models.families.any_pipeline.running.run import Run

_MULTIPLE = re.compile(r"(?:divisible by|multiples? of)\D{0,20}(\d{1,4})")
_SIDES = ("width", "height")
_SIZES = (*_SIDES, "num_frames")


def refusal_of(run: Run, params: GenerationParams, error: Exception) -> InvalidParams | None:
    """Return why the class does not take a request; `None` where an error is none of the request's.

    It is one where nothing was computed yet, and, up to the first denoising pass, where it speaks of a size.
    """
    reason = " ".join(str(error).split())
    is_early = run.num_calls == 0 and isinstance(error, TypeError | ValueError)
    is_of_size = isinstance(error, ValueError) and any(size in reason for size in _SIZES)
    if not (is_early or (is_of_size and run.error is error and run.steps.num_passes == 0)):
        return None
    field = next(_fields(reason, params), "prompt")
    remedy = "; ".join([f"the model refuses it: {reason}", *_nearest(field, reason, params)])
    return InvalidParams(field, getattr(params, field), remedy)


def _fields(reason: str, params: GenerationParams) -> Iterator[str]:
    """Yield the fields that a reason speaks of; of sides first those that are no multiples."""
    if found := _MULTIPLE.search(reason):
        yield from (side for side in _SIDES if _side(params, side) % max(int(found[1]), 1))
    yield from (name for name in FIELDS if name != "prompt" and re.search(rf"\b{name}\b", reason))


def _nearest(field: str, reason: str, params: GenerationParams) -> Iterator[str]:
    """Yield advice where a reason names the number that divides a side."""
    found = _MULTIPLE.search(reason)
    if found and field in _SIDES and int(found[1]):
        multiple = int(found[1])
        lower = _side(params, field) // multiple * multiple
        sides = [side for side in (lower, lower + multiple) if side]
        yield f"try {' or '.join(map(str, sides))}"


def _side(params: GenerationParams, name: str) -> int:
    return int(getattr(params, name) or 0)
