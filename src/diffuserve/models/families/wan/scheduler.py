"""Facts from a Wan checkpoint's scheduler. Importing this file loads no torch."""

from collections.abc import Mapping
from typing import Any

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.folders.folder import ModelFolder

SAMPLERS = ("dpmpp_2m", "flow_match_euler", "unipc")
"""Samplers that a request may ask for."""
EULER = "FlowMatchEulerDiscreteScheduler"
_UNIPC = "UniPCMultistepScheduler"
_FILE = "scheduler/scheduler_config.json"

# The options with which a UniPC scheduler is the sampler "unipc" of requests.
_NAMED_UNIPC: Mapping[str, tuple[Any, ...]] = {
    "solver_order": (2, None),
    "solver_type": ("bh2", "midpoint", "heun", "logrho", None),
    "lower_order_final": (True, None),
    "disable_corrector": ([], None),
    "final_sigmas_type": ("zero", None),
}


def scheduler_config(folder: ModelFolder) -> dict[str, Any]:
    """Return a folder's `scheduler_config.json`.

    Raise `InvalidModel` for another class, or for one that does not step along a rectified flow.
    """
    values = folder.json(_FILE)
    name = str(values.get("_class_name"))
    if name not in (EULER, _UNIPC):
        raise InvalidModel(
            f"{folder.path}/{_FILE}: _class_name={name!r} is not supported; Wan has {_UNIPC} and {EULER}"
        )
    if name == EULER and values.get("use_dynamic_shifting"):
        raise InvalidModel(
            f"{folder.path}/{_FILE}: use_dynamic_shifting=true: Wan's shift is the same for all"
        )
    if name == _UNIPC:
        _check_flow(folder, values)
    return values


def own_sampler(values: Mapping[str, Any]) -> str:
    """Return the name of the sampler that a scheduler's config describes; "" if it has none."""
    if values.get("_class_name") == EULER:
        return "flow_match_euler"
    is_named = all(values.get(name) in usual for name, usual in _NAMED_UNIPC.items())
    return "unipc" if is_named else ""


def flow_config(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the config of a sampler requested by name: the checkpoint's flow, with its shift."""
    shift = values.get("shift" if values.get("_class_name") == EULER else "flow_shift", 1.0)
    timesteps = {"num_train_timesteps": values.get("num_train_timesteps", 1000)}
    if name == "flow_match_euler":
        return {**timesteps, "shift": shift}
    flow = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": shift}
    return {**timesteps, **flow}


def _check_flow(folder: ModelFolder, values: Mapping[str, Any]) -> None:
    for name, needed in (("prediction_type", "flow_prediction"), ("use_flow_sigmas", True)):
        if values.get(name) != needed:
            raise InvalidModel(
                f"{folder.path}/{_FILE}: {name}={values.get(name)!r} is not supported; Wan needs {needed!r}"
            )
