"""Facts that a Stable Diffusion checkpoint's scheduler tells. Importing this file loads no torch."""

from collections.abc import Mapping
from typing import Any

from diffuserve.domain.requests.samplers import DIFFUSION_SAMPLERS
from diffuserve.models.families.stable_diffusion.config import UNetConfig
from diffuserve.models.folders.folder import ModelFolder

_DPM_SOLVER = {"dpmsolver++": "dpmpp_2m", "sde-dpmsolver++": "dpmpp_2m_sde"}
_PLAIN = {
    "DDIMScheduler": "ddim",
    "EulerAncestralDiscreteScheduler": "euler_ancestral",
    "LCMScheduler": "lcm",
    "PNDMScheduler": "pndm",
}
# Solvers that are not there, but of the same equation with the same noise. EDM and flows have others.
_REPLACED = frozenset(
    {
        "DDPMScheduler",
        "DEISMultistepScheduler",
        "DPMSolverSDEScheduler",
        "DPMSolverSinglestepScheduler",
        "HeunDiscreteScheduler",
        "KDPM2AncestralDiscreteScheduler",
        "KDPM2DiscreteScheduler",
        "LMSDiscreteScheduler",
        "SASolverScheduler",
    }
)
_SUBSTITUTE = "EulerDiscreteScheduler"  # takes any of their predictions
# These cannot step models that predict the clean latents.
_NOT_FOR_SAMPLES = frozenset({"euler_ancestral", "pndm"})

_FULL = {"num_inference_steps": 20, "guidance_scale": 7.5}
_FEW_STEPS = {"num_inference_steps": 4, "guidance_scale": 0.0}  # adversarially distilled: Turbo, Lightning
_CONSISTENCY = {"num_inference_steps": 4, "guidance_scale": 1.0}
_GUIDED_CONSISTENCY = {"num_inference_steps": 4, "guidance_scale": 8.5}  # diffusers' defaults for them


def scheduler_config(folder: ModelFolder, config: UNetConfig) -> dict[str, Any]:
    """Return a folder's `scheduler_config.json` as its pipeline reads it: SD 1 and 2 correct old ones.

    A solver of the same equation that is not supported is replaced.
    """
    values = folder.json("scheduler/scheduler_config.json")
    if replaced_scheduler(folder):
        values = values | {"_class_name": _SUBSTITUTE}
    return values if config.is_xl else values | {"steps_offset": 1, "clip_sample": False}


def replaced_scheduler(folder: ModelFolder) -> str:
    """Return the class of a folder's scheduler if another one stands in for it, else ""."""
    name = str(folder.json("scheduler/scheduler_config.json").get("_class_name"))
    return name if name in _REPLACED else ""


def own_sampler(scheduler: Mapping[str, Any]) -> str:
    """Return the name of the sampler that a scheduler's config describes; "" if it has none."""
    kind, is_karras = str(scheduler.get("_class_name")), bool(scheduler.get("use_karras_sigmas"))
    is_second_order = scheduler.get("solver_order", 2) == 2
    if scheduler.get("use_exponential_sigmas"):
        return ""
    if kind == "EulerDiscreteScheduler":
        return "euler_karras" if is_karras else "euler"
    if kind == "UniPCMultistepScheduler":
        is_named = is_second_order and not is_karras and scheduler.get("solver_type", "bh2") == "bh2"
        return "unipc" if is_named else ""
    if kind == "DPMSolverMultistepScheduler":
        name = _DPM_SOLVER.get(str(scheduler.get("algorithm_type", "dpmsolver++")), "")
        is_named = name and is_second_order and scheduler.get("solver_type", "midpoint") == "midpoint"
        return (f"{name}_karras" if is_karras else name) if is_named else ""
    return _PLAIN.get(kind, "")


def samplers(scheduler: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the samplers that a checkpoint's requests may ask for."""
    if scheduler.get("prediction_type") != "sample":
        return DIFFUSION_SAMPLERS
    return tuple(name for name in DIFFUSION_SAMPLERS if name not in _NOT_FOR_SAMPLES)


def default_steps(scheduler: Mapping[str, Any], config: UNetConfig) -> dict[str, Any]:
    """Return the default steps and guidance; distilled checkpoints are told by their scheduler."""
    if config.time_cond_proj_dim is not None:
        return _GUIDED_CONSISTENCY
    if scheduler.get("_class_name") == "LCMScheduler":
        return _CONSISTENCY
    is_euler = str(scheduler.get("_class_name")).startswith("Euler")
    # Checkpoints with v-prediction have trailing timesteps because they begin at pure noise.
    is_plain = scheduler.get("prediction_type", "epsilon") != "v_prediction"
    if is_euler and is_plain and scheduler.get("timestep_spacing") == "trailing":
        return _FEW_STEPS
    return _FULL
