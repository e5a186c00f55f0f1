"""Samplers by the class that a checkpoint names in `scheduler_config.json`, and by the name in a request."""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from diffuserve.domain.errors import InvalidModel
from diffuserve.samplers.base import Sampler
from diffuserve.samplers.ddim import Ddim
from diffuserve.samplers.diffusion import DiffusionNoise
from diffuserve.samplers.dpm_solver import DpmSolver
from diffuserve.samplers.euler import Euler, EulerAncestral
from diffuserve.samplers.flow_match_euler import FlowMatchEuler
from diffuserve.samplers.flow_match_heun import FlowMatchHeun
from diffuserve.samplers.lcm import Lcm
from diffuserve.samplers.pndm import Pndm
from diffuserve.samplers.unipc import UniPC


class SamplerClass(Protocol):
    """A class of samplers, built from a scheduler's config."""

    def from_config(self, config: Mapping[str, Any]) -> Sampler: ...


_CLASSES: Mapping[str, SamplerClass] = {
    "DDIMScheduler": Ddim,
    "DPMSolverMultistepScheduler": DpmSolver,
    "EulerAncestralDiscreteScheduler": EulerAncestral,
    "EulerDiscreteScheduler": Euler,
    "FlowMatchEulerDiscreteScheduler": FlowMatchEuler,
    "FlowMatchHeunDiscreteScheduler": FlowMatchHeun,
    "LCMScheduler": Lcm,
    "PNDMScheduler": Pndm,
    "UniPCMultistepScheduler": UniPC,
}

_EVEN: dict[str, Any] = {"use_karras_sigmas": False, "use_exponential_sigmas": False}
_KARRAS = _EVEN | {"use_karras_sigmas": True}
_ODE: dict[str, Any] = {"algorithm_type": "dpmsolver++", "solver_order": 2, "solver_type": "midpoint"}
_SDE = {**_ODE, "algorithm_type": "sde-dpmsolver++"}
_NAMED: Mapping[str, tuple[SamplerClass, Mapping[str, Any]]] = {
    "ddim": (Ddim, {}),
    "dpmpp_2m": (DpmSolver, _ODE | _EVEN),
    "dpmpp_2m_karras": (DpmSolver, _ODE | _KARRAS),
    "dpmpp_2m_sde": (DpmSolver, _SDE | _EVEN),
    "dpmpp_2m_sde_karras": (DpmSolver, _SDE | _KARRAS),
    "euler": (Euler, _EVEN),
    "euler_ancestral": (EulerAncestral, {}),
    "euler_karras": (Euler, _KARRAS),
    "flow_match_euler": (FlowMatchEuler, {}),
    "flow_match_heun": (FlowMatchHeun, {}),
    "lcm": (Lcm, {}),
    "pndm": (Pndm, {"skip_prk_steps": True}),
    "unipc": (UniPC, _EVEN | {"solver_order": 2, "solver_type": "bh2"}),
}


def checkpoint_sampler(config: Mapping[str, Any]) -> Sampler:
    """Return the sampler that a checkpoint's `scheduler_config.json` describes.

    Raise `InvalidModel` for a class or an option that is not supported.
    """
    name = str(config.get("_class_name"))
    if name not in _CLASSES:
        raise InvalidModel(
            f"scheduler_config.json: _class_name={name!r} is not supported; supported are "
            f"{', '.join(sorted(_CLASSES))}"
        )
    return _CLASSES[name].from_config(config)


def named_sampler(name: str, config: Mapping[str, Any]) -> Sampler:
    """Return the sampler that a request asks for, with the noise that the checkpoint was trained with.

    Raise `KeyError` for a name that is not in `diffuserve.domain.requests.samplers`.
    """
    sampler_class, options = _NAMED[name]
    return sampler_class.from_config({**config, **options})


def requested_sampler(
    name: str | None, options: Iterable[tuple[str, Any]], config: Mapping[str, Any]
) -> Sampler:
    """Return the sampler of a request, the checkpoint's own for `None`, with the options that it gives."""
    sampler = checkpoint_sampler(config) if name is None else named_sampler(name, config)
    return sampler.with_options(options) if isinstance(sampler, DiffusionNoise) else sampler
