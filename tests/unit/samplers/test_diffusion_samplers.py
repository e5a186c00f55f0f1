"""Samplers of diffusion models against diffusers' schedulers: schedules to the last bit, steps to 1e-5."""

import itertools
from typing import Any

import diffusers
import pytest
import torch
from torch import Tensor

from diffuserve.domain.errors import InvalidModel, InvalidParams
from diffuserve.domain.requests.samplers import DIFFUSION_SAMPLERS, FLOW_SAMPLERS, num_evaluations
from diffuserve.samplers.base import Memory, Sampler
from diffuserve.samplers.registry import named_sampler, requested_sampler
from support.scheduler_cases import (
    SHAPE,
    STABLE_DIFFUSION,
    Case,
    assert_equal,
    compare_steps,
    randn,
    reference_draws,
)

# diffusers' own arrays of tensors
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

SPACINGS = ("linspace", "leading", "trailing")
STEPS = (1, 2, 3, 4, 5, 8, 14, 15, 30)
COUNTS = (*range(1, 31), 36, 40, 45, 50, 60, 61, 62, 75, 99, 100)  # small, and around what rounds badly


def spaced(class_name: str, *variants: dict[str, Any], offset: int = 1) -> list[Case]:
    """Return a case for each spacing and variant."""
    return [
        Case(class_name, {"timestep_spacing": spacing, "steps_offset": offset, **variant})
        for spacing, variant in itertools.product(SPACINGS, variants or ({},))
    ]


V = {"prediction_type": "v_prediction"}
X0 = {"prediction_type": "sample"}
ZERO_SNR = {"rescale_betas_zero_snr": True, **V}
KARRAS, EXPONENTIAL = {"use_karras_sigmas": True}, {"use_exponential_sigmas": True}
ENDS = {**KARRAS, "sigma_min": 0.1, "sigma_max": 9.0}
FLOW = {"use_flow_sigmas": True, "prediction_type": "flow_prediction", "flow_shift": 3.0}
SDE = {"algorithm_type": "sde-dpmsolver++"}
KEPT = {"final_sigmas_type": "sigma_min"}

EULER = "EulerDiscreteScheduler"
DPM = "DPMSolverMultistepScheduler"
UNIPC = "UniPCMultistepScheduler"
CASES = [
    *spaced(EULER, {}, KARRAS, V, ZERO_SNR),
    *[Case(EULER, options) for options in (X0, EXPONENTIAL, KEPT, ENDS)],
    *spaced("EulerAncestralDiscreteScheduler", {}, ZERO_SNR),
    *spaced("DDIMScheduler", {"clip_sample": False}, offset=0),
    *[Case("DDIMScheduler", {"clip_sample": clip, **kind}) for clip in (True, False) for kind in (V, X0)],
    Case("DDIMScheduler", {"set_alpha_to_one": False, "steps_offset": 1, "clip_sample": False}),
    *spaced("PNDMScheduler", {"skip_prk_steps": True}, {"skip_prk_steps": True, **V}, offset=0),
    Case("PNDMScheduler", {"skip_prk_steps": True, "steps_offset": 1}),
    *spaced(DPM, {}, KARRAS, offset=0),
    *[Case(DPM, options) for options in (V, X0, EXPONENTIAL, KEPT, FLOW, SDE, SDE | KARRAS, SDE | V)],
    *[Case(DPM, {"solver_order": order}) for order in (1, 3)],
    *[Case(DPM, {"solver_type": "heun", **options}) for options in ({}, SDE, {"euler_at_final": True})],
    Case(DPM, {"lower_order_final": False, **KEPT}),
    Case(DPM, {**KARRAS, "beta_schedule": "squaredcos_cap_v2"}),
    *spaced(UNIPC, {}, KARRAS, offset=0),
    *[Case(UNIPC, options) for options in (V, X0, EXPONENTIAL, KEPT, KEPT | KARRAS, FLOW, KEPT | FLOW)],
    *[Case(UNIPC, {"solver_order": order, **FLOW}) for order in (1, 3)],
    Case(UNIPC, {"solver_type": "bh1", "solver_order": 3, **KEPT}),  # at level 0 the reference is NaN
    Case(UNIPC, {"disable_corrector": [0, 2]}),
    *[Case("LCMScheduler", options, max_steps=50) for options in ({}, V, X0, {"clip_sample": True})],
    Case("LCMScheduler", {"original_inference_steps": 100}),
    Case(EULER, {"beta_schedule": "linear"}),
    Case(EULER, {"trained_betas": [0.001 + 0.00001 * i for i in range(1000)]}),
]
by_case = pytest.mark.parametrize("case", CASES, ids=str)


@by_case
def test_schedules_equal_the_references_to_the_last_bit(case: Case) -> None:
    sampler = case.sampler()
    for num_steps in (count for count in COUNTS if count <= case.max_steps):
        if num_steps == 61 and case.options.get("timestep_spacing") == "trailing":
            continue  # the reference spaces 62 timesteps, the last of which is -1; here the list is cut
        reference, schedule = case.reference(num_steps), sampler.schedule(num_steps)
        assert schedule.timesteps == tuple(reference.timesteps.tolist())
        assert schedule.init_scale == float(reference.init_noise_sigma)
        if hasattr(reference, "sigmas"):
            assert schedule.sigmas == tuple(reference.sigmas.tolist())


@by_case
def test_every_step_equals_the_references(case: Case) -> None:
    for num_steps in (steps for steps in STEPS if steps <= case.max_steps):
        compare_steps(case.sampler(), case.sampler().schedule(num_steps), case.reference(num_steps))


DDIMS = [case for case in CASES if case.class_name == "DDIMScheduler"]


@pytest.mark.parametrize("case", [*DDIMS, Case("DDIMScheduler", {"clip_sample": False, **ZERO_SNR})], ids=str)
@pytest.mark.parametrize("eta", [0.3, 1.0])
def test_every_step_with_fresh_noise_equals_the_references(case: Case, eta: float) -> None:
    sampler = requested_sampler(None, (("eta", eta),), case.config)
    for num_steps in STEPS:
        compare_steps(sampler, sampler.schedule(num_steps), case.reference(num_steps))


def test_all_noise_may_be_fresh_where_no_image_is_left() -> None:
    config = Case("DDIMScheduler", {**ZERO_SNR, "timestep_spacing": "trailing"}).config
    for num_steps in COUNTS:
        sampler = requested_sampler("ddim", (("eta", 1.0),), config)
        latents, prediction, noise = torch.randn(3, *SHAPE, generator=torch.Generator().manual_seed(0))
        stepped, _ = sampler.step(latents, prediction, sampler.schedule(num_steps).at(0), (), noise)
        assert bool(stepped.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", DIFFUSION_SAMPLERS)
def test_a_step_keeps_the_dtype_of_the_model(name: str, dtype: torch.dtype) -> None:
    sampler = named_sampler(name, STABLE_DIFFUSION)
    schedule = sampler.schedule(4)
    generator = torch.Generator().manual_seed(0)
    latents = randn(generator).to(dtype)
    memory: Memory = ()
    for index in range(schedule.num_steps):
        at = schedule.at(index)
        noise = randn(generator) if sampler.draws_noise(at) else None
        latents, memory = sampler.step(latents, randn(generator).to(dtype), at, memory, noise)
        assert latents.dtype == dtype


@pytest.mark.parametrize("case", [Case(EULER), Case(DPM), Case(UNIPC, FLOW), Case("DDIMScheduler")], ids=str)
@pytest.mark.parametrize("start", [0, 3])
def test_noise_is_added_as_the_reference_does_it(case: Case, start: int) -> None:
    reference, schedule = case.reference(8), case.sampler().schedule(8).starting_at(start)
    if hasattr(reference, "set_begin_index"):
        reference.set_begin_index(start)
    clean, noise = torch.randn(2, *SHAPE, generator=torch.Generator().manual_seed(0))
    expected = reference.add_noise(clean, noise, reference.timesteps[start : start + 1])
    assert_equal(case.sampler().add_noise(clean, noise, schedule.at(start)), expected)


@pytest.mark.parametrize("name", [*DIFFUSION_SAMPLERS])
def test_a_request_that_starts_in_the_middle_equals_the_reference(name: str) -> None:
    config = {"_class_name": EULER, **STABLE_DIFFUSION, "steps_offset": 1}
    sampler = named_sampler(name, config)
    reference = reference_of(name, config)
    reference.set_timesteps(10)
    start = 4
    if hasattr(reference, "set_begin_index"):
        reference.set_begin_index(start)
    schedule = sampler.schedule(10).starting_at(start)
    assert schedule.num_steps == len(reference.timesteps) - start
    generator, draws = torch.Generator().manual_seed(0), torch.Generator().manual_seed(1)
    latents = expected = randn(generator)
    memory: Memory = ()
    theirs = {"generator": torch.Generator().manual_seed(1)} if reference_draws(reference) else {}
    for index, timestep in enumerate(reference.timesteps[start:], start):
        at = schedule.at(index)
        prediction = randn(generator)
        reference.scale_model_input(expected, timestep)
        expected = reference.step(prediction, timestep, expected, **theirs).prev_sample
        noise = randn(draws) if sampler.draws_noise(at) else None
        latents, memory = sampler.step(latents, prediction, at, memory, noise)
        assert_equal(latents, expected)


REFERENCES: dict[str, tuple[str, dict[str, Any]]] = {
    "ddim": ("DDIMScheduler", {}),
    "dpmpp_2m": (DPM, {}),
    "dpmpp_2m_karras": (DPM, KARRAS),
    "dpmpp_2m_sde": (DPM, SDE),
    "dpmpp_2m_sde_karras": (DPM, SDE | KARRAS),
    "euler": (EULER, {}),
    "euler_ancestral": ("EulerAncestralDiscreteScheduler", {}),
    "euler_karras": (EULER, KARRAS),
    "lcm": ("LCMScheduler", {}),
    "pndm": ("PNDMScheduler", {"skip_prk_steps": True}),
    "unipc": (UNIPC, {}),
}


def reference_of(name: str, config: dict[str, Any]) -> Any:
    """Return the scheduler that diffusers builds from another one's config."""
    class_name, options = REFERENCES[name]
    return getattr(diffusers, class_name).from_config(config, **options)


@pytest.mark.parametrize("name", [*DIFFUSION_SAMPLERS, *FLOW_SAMPLERS])
def test_every_name_of_a_request_has_a_sampler_and_tells_its_evaluations(name: str) -> None:
    sampler = named_sampler(name, STABLE_DIFFUSION)
    for num_steps in (1, 2, 3, 9):
        assert sampler.schedule(num_steps).num_steps == num_evaluations(name, num_steps)


@pytest.mark.parametrize("name", DIFFUSION_SAMPLERS)
def test_requests_at_other_steps_do_not_disturb_one_another(name: str) -> None:
    """Requests of 3 and of 7 steps in turn, with one sampler, end as each does alone."""
    sampler = named_sampler(name, STABLE_DIFFUSION)
    alone = [list(itertools.islice(walk(sampler, steps), 99)) for steps in (3, 7)]
    mixed: list[list[Tensor]] = [[], []]
    for pair in itertools.zip_longest(walk(sampler, 3), walk(sampler, 7)):
        for latents, walked in zip(pair, mixed, strict=True):
            walked.extend([] if latents is None else [latents])
    for expected, walked in zip(alone, mixed, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(expected, walked, strict=True))


def walk(sampler: Sampler, num_steps: int) -> Any:
    """Yield the latents after each step, of predictions that depend on the latents."""
    schedule, generator = sampler.schedule(num_steps), torch.Generator().manual_seed(num_steps)
    latents = randn(generator)
    memory: Memory = ()
    for index in range(schedule.num_steps):
        at = schedule.at(index)
        noise = randn(generator) if sampler.draws_noise(at) else None
        latents, memory = sampler.step(latents, torch.tanh(latents), at, memory, noise)
        yield latents


def test_levels_of_karras_repeat_timesteps_which_are_told_apart_by_their_index() -> None:
    schedule = named_sampler("dpmpp_2m_karras", STABLE_DIFFUSION).schedule(60)
    assert len(set(schedule.timesteps)) < 60
    assert len(set(schedule.sigmas)) == 61


def test_trailing_timesteps_of_61_steps_are_cut_to_61() -> None:
    schedule = Case(EULER, {"timestep_spacing": "trailing"}).sampler().schedule(61)
    assert schedule.num_steps == 61
    assert min(schedule.timesteps) >= 0


def test_lcm_refuses_more_steps_than_it_was_distilled_on() -> None:
    with pytest.raises(InvalidParams, match="num_inference_steps"):
        named_sampler("lcm", STABLE_DIFFUSION).schedule(51)


@pytest.mark.parametrize(
    ("class_name", "options", "words"),
    [
        (EULER, {"use_beta_sigmas": True}, "use_beta_sigmas=True"),
        (EULER, {"interpolation_type": "log_linear"}, "interpolation_type='log_linear'"),
        (EULER, {"prediction_type": "flow_prediction"}, "prediction_type='flow_prediction'"),
        (EULER, {**KARRAS, **EXPONENTIAL}, "exclude each other"),
        ("EulerAncestralDiscreteScheduler", X0, "prediction_type='sample'"),
        ("DDIMScheduler", {"thresholding": True}, "thresholding=True"),
        ("PNDMScheduler", {}, "skip_prk_steps"),
        (DPM, {"algorithm_type": "dpmsolver"}, "algorithm_type='dpmsolver'"),
        (DPM, {"lambda_min_clipped": -5.1}, "lambda_min_clipped=-5.1"),
        (DPM, {"use_lu_lambdas": True}, "use_lu_lambdas"),
        (DPM, {**SDE, "solver_order": 3}, "solver_order=3"),
        (UNIPC, {**KARRAS, "use_flow_sigmas": True}, "exclude each other"),
        (UNIPC, {"predict_x0": False}, "predict_x0"),
        ("HeunDiscreteScheduler", {}, "_class_name='HeunDiscreteScheduler'"),
    ],
)
def test_an_option_that_would_change_the_image_is_refused_by_name(
    class_name: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidModel, match=words):
        Case(class_name, options).sampler()


def test_what_diffusers_takes_for_a_synonym_is_one() -> None:
    def build(class_name: str, **options: Any) -> Sampler:
        return Case(class_name, options).sampler()

    assert build(DPM, algorithm_type="deis", solver_type="logrho") == build(DPM)
    assert build(DPM, lambda_min_clipped=-float("inf")) == build(DPM)
    assert build(UNIPC, solver_type="midpoint") == build(UNIPC)
