"""Weighted words scale their tokens' states, whose mean stays; nothing else changes."""

from typing import Any

import pytest
import torch
from torch import Tensor

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.families.stable_diffusion.text import StableDiffusionConditioning, TextConditioner
from diffuserve.models.folders.folder import open_model
from diffuserve.models.registry import read_spec
from diffuserve.models.weights.load_plan import LoadPlan


@pytest.fixture(scope="module")
def conditioner() -> TextConditioner:
    plan = LoadPlan(torch.device("cpu"), torch.float32)
    return TextConditioner(open_model("tiny-sd"), read_spec("tiny-sd"), plan)


def encode(conditioner: TextConditioner, prompt: str, **values: Any) -> StableDiffusionConditioning:
    params = GenerationParams(prompt=prompt, guidance_scale=5.0, num_images=1, **values)
    (encoded,) = conditioner.encode([params], [()], one_by_one=False)
    return encoded


def weighed(states: Tensor, tokens: slice, weight: float) -> Tensor:
    scaled = states.clone()
    scaled[tokens] *= weight
    return scaled * states.mean() / scaled.mean()


def test_a_weighted_word_scales_its_tokens_and_the_mean_stays(conditioner: TextConditioner) -> None:
    plain = encode(conditioner, "a red circle", negative_prompt="blue")
    asked = encode(conditioner, "a (red:1.5) circle", negative_prompt="(blue:0.5)", prompt_syntax="weights")
    dims = [len(encoder.final_layer_norm.weight) for encoder in conditioner.encoders]
    for ours, base, weight, tokens in (
        (asked.states, plain.states, 1.5, slice(2, 3)),  # the start of the text, "a", "red"
        (asked.negative_states, plain.negative_states, 0.5, slice(1, 2)),
    ):
        assert ours is not None
        assert base is not None
        parts = zip(ours.split(dims, 1), base.split(dims, 1), strict=True)
        for own, part in parts:  # each encoder keeps a mean of its own
            torch.testing.assert_close(own, weighed(part, tokens, weight))
    torch.testing.assert_close(asked.pooled, plain.pooled)


def test_brackets_are_text_unless_weights_are_asked_for(conditioner: TextConditioner) -> None:
    plain, text = encode(conditioner, "a red circle"), encode(conditioner, "a (red:1.5) circle")
    assert not torch.equal(plain.states, text.states)
    same = encode(conditioner, "a red circle", prompt_syntax="weights")
    torch.testing.assert_close(same.states, plain.states)
