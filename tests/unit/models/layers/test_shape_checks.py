"""Tests check shapes in every call of code of tensors, and types where there are no shapes."""

import pytest
import torch
from beartype.roar import BeartypeCallHintParamViolation

from diffuserve.models.autoencoder.blocks import conv
from diffuserve.samplers.base import NoiseSchedule
from diffuserve.samplers.flow_match_euler import FlowMatchEuler


def test_sizes_that_contradict_each_other_are_refused() -> None:
    latents, prediction = torch.zeros(2, 3), torch.zeros(3, 2)
    step = NoiseSchedule(sigmas=(1.0, 0.0), timesteps=(1000.0,)).at(0)
    with pytest.raises(BeartypeCallHintParamViolation, match="prediction"):
        FlowMatchEuler().predict_x0(latents, prediction, step)


def test_types_are_checked_where_there_is_no_shape() -> None:
    with pytest.raises(BeartypeCallHintParamViolation, match="width"):
        conv("8", 8)  # type: ignore[arg-type]


def test_fields_of_values_are_checked() -> None:
    with pytest.raises(BeartypeCallHintParamViolation, match="start"):
        NoiseSchedule(sigmas=(1.0, 0.0), timesteps=(1000.0,), start="0")  # type: ignore[arg-type]
