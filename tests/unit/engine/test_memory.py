"""A request that is too large is refused with the nearest that fits."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.costs.memory import check_memory, memory_budget
from diffuserve.testing.fake_pipeline import FAKE_SPEC

SPEC = replace(FAKE_SPEC, temporal_stride=4, max_frames=81, size_multiple=16)


def step_bytes(params: GenerationParams) -> int:
    return SPEC.workload(params).step_tokens << 20


def refusal(spec: ModelSpec, budget: int, **values: Any) -> str:
    params = spec.resolve(GenerationParams(prompt="a cloud", guidance_scale=1.0, **values), seed=0)
    with pytest.raises(InvalidParams) as refused:
        check_memory(spec, params, step_bytes, budget << 20)
    return str(refused.value)


def test_a_clip_is_refused_with_fewer_frames_and_a_smaller_size() -> None:
    told = refusal(SPEC, 1_100, width=128, height=96, num_frames=81)
    assert told == (
        "size='1 × 128x96 × 81 frames': would take about 4,032 MiB at once, and 1,100 MiB are free; "
        "try num_frames=17 or 64x48"
    )


def test_images_are_refused_with_fewer_of_them_and_a_smaller_size() -> None:
    assert refusal(SPEC, 100, width=64, height=64, num_images=4).endswith("try num_images=1 or 32x32")
    assert refusal(SPEC, 25, width=48, height=96).endswith("try 32x48")


def test_a_clip_of_two_latent_frames_that_does_not_fit_is_refused_with_a_size_alone() -> None:
    assert refusal(SPEC, 20, width=64, height=64, num_frames=5).endswith("try 16x16")


def test_where_nothing_fits_the_refusal_says_so() -> None:
    assert refusal(SPEC, 3, width=64, height=64).endswith("free some memory, or use a smaller model")


def test_what_fits_is_not_refused() -> None:
    params = SPEC.resolve(GenerationParams(prompt="a cloud", num_frames=81), seed=0)
    check_memory(SPEC, params, step_bytes, step_bytes(params))


@given(
    width=st.integers(1, 32),
    height=st.integers(1, 32),
    frames=st.integers(0, 20),
    images=st.integers(1, 4),
    budget=st.integers(1, 10_000),
)
def test_the_nearest_fits_and_the_next_larger_one_does_not(
    width: int, height: int, frames: int, images: int, budget: int
) -> None:
    asked = GenerationParams(
        prompt="a cloud", width=16 * width, height=16 * height, num_frames=1 + 4 * frames, num_images=images
    )
    params = SPEC.resolve(asked, seed=0)
    try:
        check_memory(SPEC, params, step_bytes, budget << 20)
        return
    except InvalidParams as refused:
        advice = refused.remedy.split("; ")[-1]
    for count in map(int, re.findall(r"num_frames=(\d+)", advice)):
        assert fits(replace(params, num_frames=count), budget)
        assert not fits(replace(params, num_frames=count + SPEC.temporal_stride), budget)
    for count in map(int, re.findall(r"num_images=(\d+)", advice)):
        assert fits(replace(params, num_images=count), budget)
        assert not fits(replace(params, num_images=count + 1), budget)
    for smaller, other in re.findall(r"(\d+)x(\d+)", advice):
        assert fits(replace(params, width=int(smaller), height=int(other)), budget)


def fits(params: GenerationParams, budget: int) -> bool:
    """Return whether a request, which the model can do, fits."""
    return step_bytes(SPEC.resolve(params, seed=0)) <= budget << 20


def test_a_gpu_keeps_room_for_adapters_but_not_more_than_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (1_000, 2_000))
    device = torch.device("cuda")
    assert [memory_budget(device, None, size) for size in (0, 100, 800)] == [900, 800, 450]
    assert memory_budget(device, 700, 100) == 700, "what an operator says counts"
