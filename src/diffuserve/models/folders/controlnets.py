"""The ControlNets that are loaded beside a model, by the names that requests use."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.requests.control_use import is_control_name
from diffuserve.models.folders.folder import ControlNetFolder


def controlnet_folders(named: Mapping[str, str | Path]) -> tuple[ControlNetFolder, ...]:
    """Return the folders of ControlNets, in order. Raise `InvalidModel`, which names the option."""
    return tuple(_opened(name, Path(path).expanduser().resolve()) for name, path in named.items())


def num_controlnet_bytes(folders: Sequence[ControlNetFolder]) -> int:
    """Return the size of the weights of ControlNets. Raise `InvalidModel` if they are not there."""
    return sum(file.stat().st_size for folder in folders for file in folder.weights())


def control_abilities(
    folders: Sequence[ControlNetFolder], work: float, modes: Sequence[int] = ()
) -> dict[str, Any]:
    """Return the fields of a spec that tell of ControlNets.

    `work` is that of the largest, beside the model's, and `modes` are the kinds of images that each knows, by
    default a single one.
    """
    if not folders:
        return {}
    return {
        "has_control_image": True,
        "controlnets": tuple(folder.name for folder in folders),
        "control_modes": tuple(modes) or (0,) * len(folders),
        "control_work": work,
    }


def _opened(name: str, path: Path) -> ControlNetFolder:
    if not is_control_name(name):
        raise InvalidModel(f"controlnets={name!r}: must be a name of letters, digits, '.', '_' and '-'")
    if not path.is_dir():
        raise InvalidModel(
            f"controlnets: {name} names {path}, which is no folder; give the folder of a ControlNet in "
            "diffusers' format, with its config.json"
        )
    return ControlNetFolder(name, path)
