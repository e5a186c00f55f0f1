"""Model folders: found by name, and checked before any weight is read.

A model is a folder in diffusers' format: `model_index.json` names the pipeline class and its
components, each component a subfolder with a config and safetensors files. Pickled weights are
never opened, because unpickling runs code.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, TypeGuard

import orjson

from diffuserve.domain.errors import HubUnavailable, InvalidModel, ModelNotFound
from diffuserve.domain.text.nearest import nearest
from diffuserve.models.bundled import bundled_models, missing_weights
from diffuserve.models.folders import hub
from diffuserve.models.folders.known_models import known_model, nearest_known
from diffuserve.models.folders.local_models import find_imported, local_models
from diffuserve.models.folders.model_paths import (
    INDEX_FILES,
    existing,
    explain_file,
    explain_folder,
    explain_missing,
    looks_like_a_path,
)
from diffuserve.models.folders.names import ALIASES, HUB_COMMITS, full_name, is_hub_id
from diffuserve.models.folders.variants import one_variant

SETTINGS_FILE, VOCABULARY_FILE = "diffuserve.json", "vocabulary.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHARD = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,250}\.safetensors")
_MAX_JSON_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class ControlNetFolder:
    """The folder of a ControlNet in diffusers' format, by the name that requests use."""

    name: str
    path: Path

    def config(self) -> tuple[dict[str, Any], str]:
        """Return its `config.json`, and the path for messages. Raise `InvalidModel`."""
        return ModelFolder(self.path.parent).config(self.path.name)

    def weights(self) -> list[Path]:
        """Return its safetensors files, as `ModelFolder.weights` does. Raise `InvalidModel`."""
        return ModelFolder(self.path.parent).weights(self.path.name)


@dataclass(frozen=True)
class Companions:
    """What is loaded beside a model: its ControlNets, and the path of what reads image prompts."""

    controlnets: tuple[ControlNetFolder, ...] = ()
    image_prompter: Path | None = None


ALONE: Final = Companions()
"""Nothing: the model is loaded by itself."""


@dataclass(frozen=True)
class ModelFolder:
    """A folder whose `model_index.json` was read; components are checked on access.

    `hub_id` is what it was downloaded as, if it was: the folder itself is named by its commit.
    `companions` are loaded beside the model.
    """

    path: Path
    hub_id: str | None = None
    companions: Companions = ALONE

    @cached_property
    def index(self) -> dict[str, Any]:
        return self.json(self.index_file)

    @cached_property
    def index_file(self) -> str:
        """The file that names the pipeline class: that of modular pipelines where there is no other."""
        found = next((name for name in INDEX_FILES if (self.path / name).is_file()), None)
        if found is None:
            raise InvalidModel(explain_folder(self.path))
        return found

    @property
    def name(self) -> str:
        given = self.path.name if self.hub_id is None else self.hub_id.split("/")[1]
        return str(self.settings.get("name", given))

    @property
    def controlnets(self) -> tuple[ControlNetFolder, ...]:
        return self.companions.controlnets

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
        """Return the component's safetensors files, each present and whole, of one variant.

        Raise `InvalidModel` with the file's name if one is missing, truncated or a pickle.
        """
        folder = self.component(component)
        # The plain index has the fewest dots: others name a variant.
        indexes = sorted(
            folder.glob("*.safetensors.index.json"), key=lambda path: (path.name.count("."), path.name)
        )
        if indexes:
            weight_map = self.json(f"{component}/{indexes[0].name}").get("weight_map")
            files = [folder / shard for shard in _shards(indexes[0], weight_map)]
        else:
            files = _weights(folder, "*.safetensors")
        if not files:
            raise InvalidModel(_explain_missing_weights(folder))
        for file in files:
            _check_whole(file)
        return files

    def weight_files(self, components: Sequence[str] = ("*",)) -> list[Path]:
        """Return the safetensors files of these subfolders, or of all, of one variant each."""
        return [file for name in components for file in _weights(self.path, f"{name}/*.safetensors")]

    def num_weight_bytes(self, components: Sequence[str] = ("*",)) -> int:
        """Return the size of `weight_files`."""
        return sum(file.stat().st_size for file in self.weight_files(components))

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
    """Find a bundled model, a folder, a short name or a hub id (downloaded, or from the hub's cache).

    A hub id means one commit: `owner/name@commit`; `owner/name` alone is a model that is known here, or the
    only commit of it on this machine. Raise `ModelNotFound` with the nearest names or folders,
    `InvalidModel` for a file.
    """
    local = find_local_model(model)
    if local is not None:
        return local
    hub_id, commit = _commit_of(model)
    return ModelFolder(_fetch(hub_id, commit, _fetch_all), hub_id)


def open_configs(model: str) -> ModelFolder:
    """Find a model as `open_model` does; of one that the hub has yet to send, fetch the configs alone."""
    local = find_local_model(model)
    if local is not None:
        return local
    hub_id, commit = _commit_of(model)
    return ModelFolder(_fetch(hub_id, commit, hub.fetch_configs), hub_id)


def find_local_model(model: str) -> ModelFolder | None:
    """Return a model on this machine; `None` for a hub id that is checked and not downloaded yet.

    Raise `ModelNotFound` with the nearest names.
    """
    bundled = bundled_models()
    if model in bundled:
        return ModelFolder(bundled[model])
    if (imported := find_imported(model)) is not None:
        return ModelFolder(imported)
    path = existing(model)
    if path is not None and path.is_dir():
        return ModelFolder(path)
    if path is not None:
        raise InvalidModel(explain_file(path))
    name = full_name(model)
    if looks_like_a_path(name) and not _is_known_hub_id(name):
        raise ModelNotFound(explain_missing(model))
    if is_hub_id(name):
        hub_id, commit = _commit_of(model)
        cached = hub.cached_folder(hub_id, commit)
        return None if cached is None else ModelFolder(cached, hub_id)
    raise ModelNotFound(
        f"no model {model[:200]!r}: not a bundled model, not a folder, not a hub id (owner/name@commit)"
        f"{_hint(model, (*bundled, *local_models()))}"
    )


def _is_known_hub_id(name: str) -> bool:
    """Return whether a hub id means a model that is known here, or is on this machine."""
    hub_id = name.partition("@")[0]
    return is_hub_id(name) and (hub_id in HUB_COMMITS or bool(hub.cached_commits(hub_id)))


def _hint(model: str, here: Sequence[str]) -> str:
    """Return the known name that `model` may stand for, with its owner or without; else the models here."""
    known = (*here, *ALIASES, *ALIASES.values())
    forms = {form: name for name in known for form in (name, name.rpartition("/")[2])}
    found = nearest(model, forms)
    if found is not None:
        return f"; did you mean {forms[found]!r}?"
    return f"; known: {', '.join(here)}, and those that `diffuserve list --known` shows"


def awaits_pull(model: str) -> bool:
    """Return whether a name is of a known model that is downloaded by `diffuserve pull` alone.

    It names no commit, none is pinned, and none is on this machine.
    """
    hub_id, _, given = full_name(model).partition("@")
    is_pinned = bool(given) or hub_id in HUB_COMMITS
    return not is_pinned and known_model(hub_id) is not None and not hub.cached_commits(hub_id)


def _commit_of(model: str) -> tuple[str, str]:
    """Return the hub id and the commit that a name means. Raise `ModelNotFound` if it means none."""
    if awaits_pull(model):
        raise ModelNotFound(f"{model} is not on this machine; `diffuserve pull {model}` downloads it")
    hub_id, _, given = full_name(model).partition("@")
    commit = given or HUB_COMMITS.get(hub_id) or _only_commit_here(hub_id)
    if not _COMMIT.fullmatch(commit):
        raise ModelNotFound(_explain_commit(hub_id, f"{commit!r} is not a commit"))
    return hub_id, commit


def _only_commit_here(hub_id: str) -> str:
    commits = hub.cached_commits(hub_id)
    if len(commits) == 1:
        return commits[0]
    found = f"{len(commits)} commits are on this machine ({', '.join(commits)})"
    raise ModelNotFound(_explain_commit(hub_id, found if commits else "names no commit"))


def _explain_commit(hub_id: str, problem: str) -> str:
    hint = "" if known_model(hub_id) else nearest_known(hub_id)
    return (
        f"model {hub_id!r}: {problem}, and what branches and tags stand for may change; give "
        f"--model {hub_id}@COMMIT with the 40 digits that the hub shows under Files, History, or fetch it "
        f"with `diffuserve pull {hub_id}`{hint}"
    )


def _weights(folder: Path, pattern: str) -> list[Path]:
    found = (path.relative_to(folder).as_posix() for path in folder.glob(pattern))
    return [folder / name for name in one_variant(found)]


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


def _fetch_all(download: hub.Download) -> Path:
    done = download.num_bytes - download.missing_bytes
    return hub.fetch_all(download, hub.LoggedProgress(download.repo_id, download.num_bytes, done))


def _fetch(hub_id: str, commit: str, fetch: Callable[[hub.Download], Path]) -> Path:
    """Download what is missing of a model, by `fetch`; return its folder. Raise `ModelNotFound`."""
    try:
        return fetch(hub.plan_download(hub_id, commit))
    except HubUnavailable:
        folder = hub.snapshot_folder(hub_id, commit)
        if folder.is_dir() and hub.missing_files(hub_id, commit) is None:
            return folder  # another tool has fetched it; what it lacks is named when it is loaded
        raise


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
    if problem := missing_weights(folder.parent):
        return f"{folder.parent.name}: {problem}"
    pickles = [path.name for pattern in _PICKLES for path in folder.glob(pattern)]
    if pickles:
        return (
            f"{folder}: only pickled weights ({', '.join(sorted(pickles))}), which can run code "
            "and are never opened; convert them to safetensors"
        )
    if any(folder.glob("*.gguf")) or any(folder.parent.glob("*.gguf")):
        return (
            f"{folder}: weights in GGUF are not read from a folder; make a model of that file once with "
            "`diffuserve import FILE --as NAME`"
        )
    return f"{folder}: no safetensors weights"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, at most 200 characters."""
    return (str(error).strip().splitlines() or [""])[0][:200]
