"""Model folders: found by name, and checked before any weight is read.

A model is a folder in diffusers' format: `model_index.json` names the pipeline class and its
components, each component a subfolder with a config and safetensors files. Pickled weights are
never opened, because unpickling runs code.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

from diffuserve.domain.errors import InvalidModel, ModelNotFound
from diffuserve.models.bundled import bundled_models

SETTINGS_FILE = "diffuserve.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_HUB_MODELS = ("black-forest-labs/FLUX.1-schnell", "black-forest-labs/FLUX.1-dev")
# A hub repository may also hold single-file weights of many gigabytes that nothing here reads.
_HUB_PATTERNS = ("model_index.json", SETTINGS_FILE, "*/*.json", "*/*.safetensors", "*/*.txt", "*/*.model")


@dataclass(frozen=True)
class ModelFolder:
    """A folder whose `model_index.json` was read; components are checked on access."""

    path: Path

    @cached_property
    def index(self) -> dict[str, Any]:
        if not (self.path / "model_index.json").is_file():
            raise InvalidModel(f"{self.path}: no model_index.json; is this a folder in diffusers' format?")
        return self.json("model_index.json")

    @property
    def name(self) -> str:
        return str(self.settings.get("name", self.path.name))

    @property
    def pipeline_class(self) -> str:
        return str(self.index.get("_class_name"))

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The optional `diffuserve.json`: defaults, limits and traits of this checkpoint."""
        return self.json(SETTINGS_FILE) if (self.path / SETTINGS_FILE).is_file() else {}

    def json(self, name: str) -> dict[str, Any]:
        """Return a JSON object of the folder. Raise `InvalidModel` if it is missing or not an object."""
        path = self.path / name
        if not path.is_file():
            raise InvalidModel(f"{self.path}: {name} is missing")
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InvalidModel(f"{path}: not valid JSON ({error})") from error
        if not isinstance(content, dict):
            raise InvalidModel(f"{path}: must hold a JSON object")
        return content

    def component(self, name: str) -> Path:
        """Return a component's subfolder. Raise `InvalidModel` if it is missing."""
        if not (self.path / name).is_dir():
            raise InvalidModel(f"{self.path}: the folder {name}/ is missing")
        return self.path / name

    def weights(self, component: str) -> list[Path]:
        """Return the component's safetensors files, each present and whole.

        Raise `InvalidModel` with the file's name if one is missing, truncated or a pickle.
        """
        folder = self.component(component)
        indexes = sorted(folder.glob("*.safetensors.index.json"))
        if indexes:
            weight_map = self.json(f"{component}/{indexes[0].name}").get("weight_map")
            if not isinstance(weight_map, dict) or not all(isinstance(x, str) for x in weight_map.values()):
                raise InvalidModel(f"{indexes[0]}: weight_map must name a file for each tensor")
            files = [folder / shard for shard in sorted(set(weight_map.values()))]
        else:
            files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise InvalidModel(_explain_missing_weights(folder))
        for file in files:
            _check_whole(file)
        return files

    def require(self, components: Sequence[str], files: Sequence[str]) -> None:
        """Check all components and files of a pipeline, so that a wrong folder is refused early.

        Raise `InvalidModel` that names the first one that is missing or broken.
        """
        for file in files:
            self.component(file.split("/")[0])
            self.json(file)
        for component in components:
            self.weights(component)


def open_model(model: str) -> ModelFolder:
    """Find a bundled model, a folder, or a hub id (downloaded, or from the hub's cache).

    Raise `ModelNotFound` with the nearest names.
    """
    bundled = bundled_models()
    if model in bundled:
        return ModelFolder(bundled[model])
    path = _existing_folder(model)
    if path is not None:
        return ModelFolder(path)
    if model.count("/") == 1 and not model.startswith((".", "/", "~")):
        return ModelFolder(_download(model))
    names = [*bundled, *_HUB_MODELS]
    nearest = get_close_matches(model, names, n=3, cutoff=0.4) or names
    raise ModelNotFound(
        f"no model {model!r}: not a bundled model, not a folder, not a hub id (owner/name). "
        f"Nearest: {', '.join(nearest)}"
    )


def _existing_folder(name: str) -> Path | None:
    try:
        path = Path(name).expanduser()
        return path if path.is_dir() else None
    except (OSError, RuntimeError):  # too long for a path; the home directory of an unknown user
        return None


def _download(repo_id: str) -> Path:
    import httpx2
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repo_id, allow_patterns=list(_HUB_PATTERNS)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, httpx2.HTTPError, OSError) as error:
        raise ModelNotFound(
            f"model {repo_id!r} could not be fetched from the hub "
            f"({type(error).__name__}: {first_line(error)}). "
            "Without a network, download it elsewhere and give its folder instead, "
            "for example --model /models/FLUX.1-schnell; the bundled model tiny-flux needs none"
        ) from error


def _check_whole(file: Path) -> None:
    from safetensors import SafetensorError, safe_open

    if not file.is_file():
        raise InvalidModel(f"{file.parent.parent}: {file.parent.name}/{file.name} is missing")
    try:
        with safe_open(file, framework="pt"):
            pass  # opening checks the header against the file's length
    except (SafetensorError, OSError) as error:
        raise InvalidModel(f"{file}: truncated or not a safetensors file ({first_line(error)})") from error


def _explain_missing_weights(folder: Path) -> str:
    pickles = [path.name for pattern in _PICKLES for path in folder.glob(pattern)]
    if pickles:
        return (
            f"{folder}: only pickled weights ({', '.join(sorted(pickles))}), which can run code "
            "and are never opened; convert them to safetensors"
        )
    return f"{folder}: no safetensors weights"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, at most 200 characters."""
    return (str(error).strip().splitlines() or [""])[0][:200]
