"""What is loaded beside a model: ControlNets, by requests' names, and what reads image prompts."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.requests.control_use import is_control_name
from diffuserve.models.folders.folder import Companions, ControlNetFolder


def companions_of(
    controlnets: Mapping[str, str | Path], image_prompter: str | Path | None = None
) -> Companions:
    """Return what options name, ControlNets in order. Raise `InvalidModel`, which names the option."""
    folders = tuple(_opened(name, Path(path).expanduser().resolve()) for name, path in controlnets.items())
    return Companions(folders, None if image_prompter is None else _prompter(image_prompter))


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


def _prompter(given: str | Path) -> Path:
    path = Path(given).expanduser().resolve()
    if not path.exists():
        raise InvalidModel(
            f"image_prompter: {path}: no such file or folder; give an IP-Adapter's .safetensors, or the "
            "folder of FLUX.1 Redux"
        )
    return path
