"""Model folders: found by name, and checked before any weight is read.

A model is a folder in diffusers' format: `model_index.json` names the pipeline class and its
components, each component a subfolder with a config and safetensors files. Pickled weights are
never opened, because unpickling runs code.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

import orjson

from diffuserve.domain.errors import InvalidModel, ModelNotFound
from diffuserve.domain.nearest import did_you_mean, nearest
from diffuserve.models.bundled import bundled_models

SETTINGS_FILE = "diffuserve.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
# What a hub id stands for may change under a server, so it means one commit.
HUB_COMMITS = {
    "black-forest-labs/FLUX.1-schnell": "741f7c3ce8b383c54771c7003378a50191e9efe9",
    "black-forest-labs/FLUX.1-dev": "3de623fc3c33e44ffbe2bad470d0f45bccf2eb21",
}
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHARD = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,250}\.safetensors")
_MAX_JSON_BYTES = 64 * 1024 * 1024
# A hub repository may also hold single-file weights of many gigabytes that nothing here reads.
_HUB_PATTERNS = ("model_index.json", SETTINGS_FILE, "*/*.json", "*/*.safetensors", "*/*.txt", "*/*.model")


@dataclass(frozen=True)
class ModelFolder:
    """A folder whose `model_index.json` was read; components are checked on access.

    `hub_id` is what it was downloaded as, if it was: the folder itself is named by its commit.
    """

    path: Path
    hub_id: str | None = None

    @cached_property
    def index(self) -> dict[str, Any]:
        if not (self.path / "model_index.json").is_file():
            raise InvalidModel(f"{self.path}: no model_index.json; is this a folder in diffusers' format?")
        return self.json("model_index.json")

    @property
    def name(self) -> str:
        given = self.path.name if self.hub_id is None else self.hub_id.split("/")[1]
        return str(self.settings.get("name", given))

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
            if path.stat().st_size > _MAX_JSON_BYTES:
                raise InvalidModel(f"{path}: more than {_MAX_JSON_BYTES:,} bytes")
            content = orjson.loads(path.read_bytes())
        except orjson.JSONDecodeError as error:
            raise InvalidModel(f"{path}: not valid JSON ({error})") from error
        except OSError as error:
            raise InvalidModel(f"{path}: cannot be read ({error.strerror})") from error
        if not isinstance(content, dict):
            raise InvalidModel(f"{path}: must hold a JSON object")
        return content

    def component(self, name: str) -> Path:
        """Return a component's subfolder. Raise `InvalidModel` if it is missing."""
        if not (self.path / name).is_dir():
            raise InvalidModel(f"{self.path}: the folder {name}/ is missing")
        return self.path / name

    def config(self, component: str) -> tuple[dict[str, Any], str]:
        """Return a component's `config.json`, and its path for messages."""
        return self.json(f"{component}/config.json"), f"{self.path}/{component}/config.json"

    def weights(self, component: str) -> list[Path]:
        """Return the component's safetensors files, each present and whole.

        Raise `InvalidModel` with the file's name if one is missing, truncated or a pickle.
        """
        folder = self.component(component)
        indexes = sorted(folder.glob("*.safetensors.index.json"))
        if indexes:
            weight_map = self.json(f"{component}/{indexes[0].name}").get("weight_map")
            files = [folder / shard for shard in _shards(indexes[0], weight_map)]
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

    A hub id means one commit: `owner/name@commit`, or for the models that are known here `owner/name`.
    Raise `ModelNotFound` with the nearest names.
    """
    local = find_local_model(model)
    if local is not None:
        return local
    hub_id, _, commit = model.partition("@")
    return ModelFolder(_download(hub_id, commit or HUB_COMMITS[hub_id]), hub_id)


def find_local_model(model: str) -> ModelFolder | None:
    """Return a bundled model or a folder; `None` for a hub id, which is checked and not downloaded.

    Raise `ModelNotFound` with the nearest names.
    """
    bundled = bundled_models()
    if model in bundled:
        return ModelFolder(bundled[model])
    path = _existing_folder(model)
    if path is not None:
        return ModelFolder(path)
    if model.count("/") == 1 and not model.startswith((".", "/", "~")):
        _check_hub_id(model)
        return None
    raise ModelNotFound(
        f"no model {model!r}: not a bundled model, not a folder, not a hub id (owner/name@commit)"
        f"{_hint(model, (*bundled, *HUB_COMMITS))}"
    )


def _hint(model: str, known: Sequence[str]) -> str:
    """Return the known name that `model` may stand for, with its owner or without; else all of them."""
    forms = {form: name for name in known for form in (name, name.rpartition("/")[2])}
    found = nearest(model, forms)
    return f"; known: {', '.join(known)}" if found is None else f"; did you mean {forms[found]!r}?"


def _check_hub_id(model: str) -> None:
    """Raise `ModelNotFound` unless a hub id names a commit, or its commit is known here."""
    hub_id, _, given = model.partition("@")
    commit = given or HUB_COMMITS.get(hub_id, "")
    if not _COMMIT.fullmatch(commit):
        reason = f"{commit!r} is not a commit" if commit else "names no commit"
        raise ModelNotFound(
            f"model {hub_id!r}: {reason}, and what branches and tags stand for may change; give "
            f"--model {hub_id}@COMMIT with the 40 digits that the hub shows under Files, History"
            f"{did_you_mean(hub_id, HUB_COMMITS)}"
        )


def _existing_folder(name: str) -> Path | None:
    try:
        path = Path(name).expanduser()
        return path if path.is_dir() else None
    except (OSError, RuntimeError):  # too long for a path; the home directory of an unknown user
        return None


def _shards(index: Path, weight_map: object) -> list[str]:
    """Return the files that an index names, each of them plainly: none may lie outside its folder."""
    shards = set(weight_map.values()) if _is_map_of_names(weight_map) else set()
    if not shards:
        raise InvalidModel(f"{index}: weight_map must name a file for each tensor")
    for shard in sorted(shards):
        if not _SHARD.fullmatch(shard):
            raise InvalidModel(f"{index}: weight_map names {shard!r}, not a safetensors file beside it")
    return sorted(shards)


def _is_map_of_names(value: object) -> TypeGuard[dict[str, str]]:
    return isinstance(value, dict) and all(isinstance(name, str) for name in value.values())


def _download(repo_id: str, commit: str) -> Path:
    import httpx2
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(repo_id, revision=commit, allow_patterns=list(_HUB_PATTERNS)))
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
        with safe_open(file, framework="numpy"):  # torch, with "pt", would be imported
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
