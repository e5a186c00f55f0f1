"""The levels of Wan's samplers equal those of the reference to the last bit."""

import json
from pathlib import Path
from typing import Any

import pytest
from diffusers import FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.families.wan.scheduler import (
    EULER,
    SAMPLERS,
    flow_config,
    own_sampler,
    scheduler_config,
)
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.samplers.flow_match_euler import FlowMatchEulerBetweenEnds
from diffuserve.samplers.registry import named_sampler
from diffuserve.samplers.unipc import UniPC

UNIPC = {
    "_class_name": "UniPCMultistepScheduler",
    "prediction_type": "flow_prediction",
    "use_flow_sigmas": True,
}
SHIFTS = (1.0, 3.0, 5.0, 12.0)
STEPS = range(1, 101)


@pytest.mark.parametrize("shift", SHIFTS)
def test_the_schedule_of_unipc_equals_the_references_to_the_last_bit(shift: float) -> None:
    options = UNIPC | {"flow_shift": shift}
    ours, theirs = UniPC.from_config(options), UniPCMultistepScheduler.from_config(options)
    for steps in STEPS:
        theirs.set_timesteps(steps)
        schedule = ours.schedule(steps)
        assert schedule.sigmas == tuple(theirs.sigmas.tolist()), steps
        assert schedule.timesteps == tuple(map(float, theirs.timesteps.tolist())), steps


@pytest.mark.parametrize("shift", SHIFTS)
def test_eulers_levels_are_shifted_twice_as_the_reference_does_it_for_wan(shift: float) -> None:
    ours = FlowMatchEulerBetweenEnds.from_config({"shift": shift})
    theirs = FlowMatchEulerDiscreteScheduler(shift=shift)
    for steps in STEPS:
        theirs.set_timesteps(steps)
        schedule = ours.schedule(steps)
        assert schedule.sigmas == tuple(theirs.sigmas.tolist()), steps
        assert schedule.timesteps == tuple(theirs.timesteps.tolist()), steps


def test_timesteps_are_whole_and_may_repeat() -> None:
    sampler = UniPC.from_config(UNIPC | {"flow_shift": 3.0})
    assert sampler.schedule(4).timesteps == (999, 900, 750, 500)
    repeated = UniPC.from_config(UNIPC | {"flow_shift": 12.0}).schedule(100).timesteps
    assert repeated[0] == repeated[1], "steps are found by their index"


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "unipc"),
        ({"solver_order": 2, "solver_type": "bh2", "disable_corrector": []}, "unipc"),
        ({"solver_order": 1}, ""),
        ({"disable_corrector": [0]}, ""),
        ({"lower_order_final": False}, ""),
        ({"_class_name": EULER}, "flow_match_euler"),
    ],
)
def test_a_sampler_has_a_name_if_requests_can_ask_for_the_same(options: dict[str, Any], name: str) -> None:
    assert own_sampler(UNIPC | options) == name


@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_by_name_keep_the_checkpoints_shift_and_nothing_else(name: str) -> None:
    odd = UNIPC | {"flow_shift": 5.0, "solver_order": 1, "disable_corrector": [0, 1], "thresholding": False}
    euler = {"_class_name": EULER, "shift": 5.0, "use_flow_sigmas": False}
    samplers = [named_sampler(name, flow_config(values, name)) for values in (odd, euler)]
    assert samplers[0] == samplers[1]
    second = samplers[0].schedule(2).sigmas[1]
    assert second == pytest.approx(5 * 0.5 / (1 + 4 * 0.5), abs=1e-3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"_class_name": "DDIMScheduler"}, "_class_name='DDIMScheduler' is not supported; Wan has UniPC"),
        ({"prediction_type": "epsilon"}, "prediction_type='epsilon'.*needs 'flow_prediction'"),
        ({"use_flow_sigmas": False}, "use_flow_sigmas=False.*needs True"),
        ({"_class_name": EULER, "use_dynamic_shifting": True}, "use_dynamic_shifting=true"),
    ],
)
def test_a_scheduler_that_is_not_wans_is_refused(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    (tmp_path / "scheduler").mkdir()
    (tmp_path / "scheduler/scheduler_config.json").write_text(json.dumps(UNIPC | options))
    with pytest.raises(InvalidModel, match=words):
        scheduler_config(ModelFolder(tmp_path))
