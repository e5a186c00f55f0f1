"""Any config of a scheduler's class is refused, or steps as diffusers does with it."""

import inspect
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from diffuserve.domain.errors import InvalidModel
from diffuserve.samplers.registry import checkpoint_sampler
from support.scheduler_cases import SHAPE, STABLE_DIFFUSION, Case, compare_steps

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning", "ignore::FutureWarning"
)

CLASSES = (
    "DDIMScheduler",
    "DPMSolverMultistepScheduler",
    "EulerAncestralDiscreteScheduler",
    "EulerDiscreteScheduler",
    "LCMScheduler",
    "PNDMScheduler",
    "UniPCMultistepScheduler",
)
VALUES: dict[str, tuple[Any, ...]] = {
    "algorithm_type": ("dpmsolver", "dpmsolver++", "sde-dpmsolver", "sde-dpmsolver++"),
    "beta_schedule": ("linear", "scaled_linear", "squaredcos_cap_v2"),
    "clip_sample_range": (1.0, 2.0),
    "disable_corrector": ([], [0], [1, 2]),
    "final_sigmas_type": ("zero", "sigma_min"),
    "flow_shift": (1.0, 3.0),
    "interpolation_type": ("linear", "log_linear"),
    "lambda_min_clipped": (-float("inf"), -5.1),
    "num_train_timesteps": (1000, 500),
    "original_inference_steps": (50, 100),
    "prediction_type": ("epsilon", "sample", "v_prediction", "flow_prediction"),
    "sigma_max": (None, 9.0),
    "sigma_min": (None, 0.05),
    "solver_order": (1, 2, 3),
    "solver_type": ("midpoint", "heun", "logrho", "bh1", "bh2"),
    "steps_offset": (0, 1, 5),
    "timestep_scaling": (10.0, 3.0),
    "timestep_spacing": ("linspace", "leading", "trailing"),
    "timestep_type": ("discrete", "continuous"),
}
NUMBERS = {"trained_betas", "beta_start", "beta_end", "dynamic_thresholding_ratio", "sample_max_value"}
OTHERS = {"self", "time_shift_type", "shift_terminal", "solver_p", "variance_type"}
OPTIONS = sorted(
    {name for kind in CLASSES for name in inspect.signature(getattr(diffusers, kind).__init__).parameters}
    - NUMBERS
    - OTHERS
)


def configs(class_name: str) -> st.SearchStrategy[dict[str, Any]]:
    """Return configs of up to four options, some of which only other classes have."""
    fixed = {"skip_prk_steps": True} if class_name == "PNDMScheduler" else {}
    names = st.lists(st.sampled_from(OPTIONS), max_size=4, unique=True)
    return names.flatmap(
        lambda chosen: st.fixed_dictionaries(
            {name: st.sampled_from(VALUES.get(name, (True, False))) for name in chosen if name not in fixed}
            | {name: st.just(value) for name, value in fixed.items()}
        )
    )


def reference_of(case: Case, num_steps: int) -> Any:
    scheduler = getattr(diffusers, case.class_name).from_config(STABLE_DIFFUSION | case.options)
    scheduler.set_timesteps(num_steps)
    if hasattr(scheduler, "set_begin_index"):
        scheduler.set_begin_index(0)
    return scheduler


def is_finite(case: Case, num_steps: int) -> bool:
    """Tell whether the reference ends at numbers: bh1 does not at level 0."""
    reference, latents = reference_of(case, num_steps), torch.ones(SHAPE)
    for timestep in reference.timesteps:
        latents = reference.step(torch.ones(SHAPE), timestep, latents).prev_sample
    return bool(latents.isfinite().all())


@pytest.mark.parametrize("class_name", CLASSES)
@given(data=st.data(), num_steps=st.sampled_from((1, 2, 5, 14, 15)))
@settings(max_examples=25)
def test_a_config_is_refused_or_steps_as_the_reference(
    class_name: str, data: st.DataObject, num_steps: int
) -> None:
    case = Case(class_name, data.draw(configs(class_name)))
    try:
        sampler = case.sampler()
    except InvalidModel:
        return
    if is_finite(case, num_steps):
        compare_steps(sampler, sampler.schedule(num_steps), reference_of(case, num_steps))


FLOWS = ("FlowMatchEulerDiscreteScheduler", "FlowMatchHeunDiscreteScheduler")
FLOW_OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "invert_sigmas": st.booleans(),
    "num_train_timesteps": st.sampled_from((1000, 500)),
    "shift": st.floats(0.1, 10),
    "shift_terminal": st.none() | st.floats(0.01, 0.5),
    "stochastic_sampling": st.booleans(),
    "time_shift_type": st.sampled_from(("exponential", "linear")),
    "use_beta_sigmas": st.booleans(),
    "use_dynamic_shifting": st.booleans(),
    "use_exponential_sigmas": st.booleans(),
    "use_karras_sigmas": st.booleans(),
}


@pytest.mark.parametrize("class_name", FLOWS)
@given(
    options=st.fixed_dictionaries({}, optional=FLOW_OPTIONS),
    num_steps=st.integers(2, 50),
    mu=st.floats(0.1, 3),
)
def test_a_config_of_a_flow_is_refused_or_has_the_references_levels(
    class_name: str, options: dict[str, Any], num_steps: int, mu: float
) -> None:
    try:
        sampler = checkpoint_sampler({"_class_name": class_name, **options})
    except InvalidModel:
        return
    reference = getattr(diffusers, class_name).from_config(options)
    if class_name == FLOWS[0]:
        reference.set_timesteps(sigmas=np.linspace(1.0, 1 / num_steps, num_steps), mu=mu)  # as pipelines do
    else:
        reference.set_timesteps(num_steps)
    schedule = sampler.schedule(num_steps, mu)
    assert schedule.sigmas == tuple(reference.sigmas.tolist())
    assert schedule.timesteps == tuple(reference.timesteps.tolist())
