"""Which sampler the scheduler of a folder is. Importing this file loads no torch."""

from collections.abc import Mapping
from types import MappingProxyType

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.folders.folder import ModelFolder

FLOW_EULER: Mapping[str, str] = MappingProxyType({"FlowMatchEulerDiscreteScheduler": "flow_match_euler"})
"""Sampler by class of scheduler: that of all models of rectified flows."""


def checkpoint_sampler(folder: ModelFolder, title: str, samplers: Mapping[str, str] = FLOW_EULER) -> str:
    """Return the sampler of a folder's scheduler. Raise `InvalidModel` for one that `title` lacks."""
    name = str(folder.json("scheduler/scheduler_config.json").get("_class_name"))
    if name not in samplers:
        raise InvalidModel(
            f"{folder.path}/scheduler/scheduler_config.json: _class_name={name!r} is not supported; {title} "
            f"has {' and '.join(samplers)}"
        )
    return samplers[name]
