"""What a class refuses before it has begun is the request's fault, and is told with a remedy."""

import threading

import pytest

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.families.any_pipeline.running.refusals import refusal_of
from diffuserve.models.families.any_pipeline.running.run import Run
from diffuserve.models.families.any_pipeline.running.steps_told import StepsTold

PARAMS = GenerationParams(prompt="a cat", width=96, height=72, num_frames=10, guidance_scale=3.0)


def ended(error: Exception, num_calls: int = 0, num_passes: int = 0) -> Run:
    """Return a run that raised an error in its own lines."""
    run = Run(lambda: None, threading.Lock(), StepsTold(1))
    run.close()
    run.error, run.num_calls, run.steps.num_passes = error, num_calls, num_passes
    return run


@pytest.mark.parametrize(
    ("reason", "field", "advice"),
    [
        ("`height` and `width` have to be divisible by 16 but are 72 and 96.", "height", "try 64 or 80"),
        ("Height must be a multiple of 32 (got 72)", "height", "try 64 or 96"),
        ("`num_frames` has to be 4k + 1, got 10", "num_frames", "the model refuses it"),
        ("guidance_scale is for other models", "guidance_scale", "the model refuses it"),
        ("something is wrong", "prompt", "the model refuses it"),
    ],
)
def test_a_refusal_names_field_and_remedy(reason: str, field: str, advice: str) -> None:
    error = ValueError(reason)
    refusal = refusal_of(ended(error), PARAMS, error)
    assert refusal is not None
    assert (refusal.field, refusal.value) == (field, getattr(PARAMS, field))
    assert advice in refusal.remedy


def test_after_the_texts_only_what_speaks_of_a_size_is_a_refusal() -> None:
    of_size, other = ValueError("width must be divisible by 64"), ValueError("no such key")
    assert refusal_of(ended(of_size, num_calls=2), PARAMS, of_size) is not None
    assert refusal_of(ended(other, num_calls=2), PARAMS, other) is None


def test_what_fails_later_is_no_refusal() -> None:
    error = ValueError("width must be divisible by 64")
    assert refusal_of(ended(error, num_calls=3, num_passes=1), PARAMS, error) is None
    of_pass = ended(ValueError("another"), num_calls=1)
    assert refusal_of(of_pass, PARAMS, error) is None
