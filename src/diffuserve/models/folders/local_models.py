"""The models that were imported on this machine: a folder each, found by its name.

They are in this user's data folder, `~/.local/share/diffuserve/models` on Linux, which XDG_DATA_HOME moves.
"""

import re
from pathlib import Path

from platformdirs import user_data_path

from diffuserve.domain.errors import InvalidParams
from diffuserve.models.bundled import bundled_models
from diffuserve.models.folders.model_paths import INDEX_FILE
from diffuserve.models.folders.names import ALIASES

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def local_models_folder() -> Path:
    """Return the folder of imported models, which may not be there yet."""
    return user_data_path("diffuserve") / "models"


def local_models() -> dict[str, Path]:
    """Return the folders of imported models by name. What is being imported is not among them."""
    folder = local_models_folder()
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return {path.name: path for path in found if _NAME.fullmatch(path.name) and (path / INDEX_FILE).is_file()}


def find_imported(name: str) -> Path | None:
    """Return the folder of an imported model; `None` if there is none of that name."""
    folder = local_models_folder() / name
    return folder if _NAME.fullmatch(name) and (folder / INDEX_FILE).is_file() else None


def check_new_name(name: str) -> Path:
    """Return the folder that a model of this name will have. Raise `InvalidParams` if it is taken."""
    if not _NAME.fullmatch(name):
        remedy = "must be of small letters, digits, dots, dashes and underscores, at most 64"
        raise InvalidParams("as", name, remedy)
    if name in bundled_models() or name in ALIASES:
        raise InvalidParams("as", name, "is the name of a model that is known already; give another")
    folder = local_models_folder() / name
    if folder.exists():
        remedy = f"is there already; remove it with `diffuserve rm {name}`, or give another"
        raise InvalidParams("as", name, remedy)
    return folder
