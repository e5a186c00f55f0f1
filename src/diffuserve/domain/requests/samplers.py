"""The names of samplers that requests may ask for, and how often each calls the model."""

from collections.abc import Callable, Mapping

DIFFUSION_SAMPLERS = (
    "ddim",
    "dpmpp_2m",
    "dpmpp_2m_karras",
    "dpmpp_2m_sde",
    "dpmpp_2m_sde_karras",
    "euler",
    "euler_ancestral",
    "euler_karras",
    "lcm",
    "pndm",
    "unipc",
)
"""Samplers of models that were trained to remove noise, such as Stable Diffusion."""
FLOW_SAMPLERS = ("flow_match_euler", "flow_match_heun")
"""Samplers of models that were trained on rectified flows, such as FLUX.1."""
SPACINGS = ("leading", "linspace", "trailing")
"""Ways to space the timesteps of a request, where models of diffusion were trained on a thousand."""
SPACED_SAMPLERS = ("ddim", "dpmpp_2m", "dpmpp_2m_sde", "euler", "euler_ancestral")
"""Samplers whose requests may choose one."""
SAMPLERS = (*DIFFUSION_SAMPLERS, *FLOW_SAMPLERS)

_EVALUATIONS: Mapping[str, Callable[[int], int]] = {
    "flow_match_heun": lambda steps: 2 * steps - 1,
    "pndm": lambda steps: steps + (steps > 1),
}
MAX_STEPS: Mapping[str, int] = {"lcm": 50}
"""Steps of samplers that take fewer than others: a consistency model skips between those of its teacher."""
_CALLS_PER_SKIPPED_STEP: Mapping[str, int] = {"flow_match_heun": 2}


def num_evaluations(sampler: str | None, num_inference_steps: int) -> int:
    """Return how often a sampler calls the model in a number of steps; usually once per step."""
    evaluations = _EVALUATIONS.get(sampler or "")
    return num_inference_steps if evaluations is None else evaluations(num_inference_steps)


def evaluations_before(sampler: str | None, num_skipped: int) -> int:
    """Return how many of a sampler's calls belong to the first steps, which an image to start from skips."""
    return _CALLS_PER_SKIPPED_STEP.get(sampler or "", 1) * num_skipped
