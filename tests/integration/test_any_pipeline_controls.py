"""ControlNets in classes that diffusers runs: each request's acts in its own steps, as much as it says."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from diffuserve.domain.errors import InvalidParams
from diffuserve.domain.requests.control_use import ControlUse
from support.tiny_pipelines import TINY_PIPELINES, bare_pipeline, tiny_folder
from support.tiny_pipelines.requests import TinyRequest
from support.tiny_pipelines.watched_engine import Levels, WatchedEngine, decibels, levels_of

NAME = "sd3-controlnet"


@pytest.mark.slow
def test_a_control_acts_in_its_steps_beside_others(tmp_path: Path) -> None:
    folder, tiny = tiny_folder(NAME, tmp_path), TINY_PIPELINES[NAME]
    watched = WatchedEngine(folder)
    plain, timed = (TinyRequest("a red star", seed, steps=4, picture=1) for seed in (1, 2))
    asked = timed.params(tiny)
    assert asked.control_image is not None
    use = ControlUse("controlnet", asked.control_image, weight=0.7, start=0.3, end=0.8)
    asked = replace(asked, control_image=None, controls=(use,))
    try:
        assert watched.engine.spec.controlnets == ("controlnet",)
        with pytest.raises(InvalidParams, match="give one control"):
            watched.engine.add(replace(asked, controls=(use, use)))
        watched.staggered([plain.params(tiny), asked])
        drawn = watched.levels[timed.seed]
    finally:
        watched.engine.close()
    bare = bare_pipeline(folder)

    def alone(**times: float) -> Levels:
        torch.manual_seed(timed.seed)  # the class draws from the global generator
        return levels_of(bare(**timed.bare_call(tiny), controlnet_conditioning_scale=0.7, **times))

    assert decibels(drawn, alone(control_guidance_start=0.3, control_guidance_end=0.8)) >= 60
    assert decibels(drawn, alone()) < 60
