"""The models on this machine: those that ship with the package, and those in the hub's cache."""

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from diffuserve.domain.errors import InvalidModel, ModelNotFound
from diffuserve.domain.models.dtypes import SAFETENSORS_DTYPES
from diffuserve.models.bundled import bundled_models, missing_weights
from diffuserve.models.folders import hub
from diffuserve.models.folders.local_models import find_imported, local_models
from diffuserve.models.folders.model_paths import is_model
from diffuserve.models.folders.names import HUB_COMMITS, full_name, is_hub_id
from diffuserve.models.registry import read_spec


@dataclass(frozen=True, kw_only=True)
class InstalledModel:
    """A model on this machine. `problem` says why it cannot be served, and is empty where it can.

    `name` is what `--model` takes. `width`, `height` and `num_inference_steps` are the model's defaults.
    """

    name: str
    source: str
    path: Path
    num_bytes: int
    dtype: str
    family: str = ""
    run_by: str = ""
    width: int = 0
    height: int = 0
    num_inference_steps: int = 0
    problem: str = ""


def installed_models() -> list[InstalledModel]:
    """Return the bundled models, then imported ones, then those that were downloaded, whole or in part."""
    bundled = [_described(name, "bundled", path) for name, path in bundled_models().items()]
    imported = [_described(name, "imported", path) for name, path in local_models().items()]
    return [*bundled, *imported, *_downloaded()]


def describe_model(name: str, folder: Path) -> InstalledModel:
    """Return what is known of a model in a folder of this machine; `name` is what it was asked for by."""
    found = next((model for model in installed_models() if model.path == folder), None)
    return _described(name, "folder", folder) if found is None else found


def dtype_of(folder: Path) -> str:
    """Return the dtype of the largest file's first tensor, which stands for all; empty if unknown."""
    from safetensors import SafetensorError, safe_open

    files = sorted(folder.glob("*/*.safetensors"), key=lambda file: file.stat().st_size)
    try:
        with safe_open(files[-1], framework="np") as reader:
            for name in reader.keys():  # noqa: SIM118 (a reader is no dict)
                dtype = str(reader.get_slice(name).get_dtype())
                return SAFETENSORS_DTYPES.get(dtype, dtype)
    except (IndexError, SafetensorError, OSError):
        pass
    return ""


@dataclass(frozen=True)
class Removal:
    """Removal of a model: its paths, and the bytes that this frees."""

    model: str
    paths: tuple[Path, ...]
    num_bytes: int

    def carry_out(self) -> None:
        """Remove the folders and files."""
        for path in self.paths:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def plan_removal(model: str) -> Removal:
    """Return what belongs to a model of this machine alone. Raise `ModelNotFound` if there is none."""
    name = full_name(model)
    if model in bundled_models():
        raise ModelNotFound(f"model {model!r} is part of the package and cannot be removed by itself")
    if (imported := find_imported(model)) is not None:
        return Removal(model, (imported,), _size_of(imported))
    if not is_hub_id(name):
        raise ModelNotFound(f"model {model!r} was not downloaded by diffuserve; remove its folder yourself")
    repo_id, _, commit = name.partition("@")
    repo, folder = hub.repo_folder(repo_id), hub.snapshot_folder(repo_id, commit)
    if not repo.is_dir() or (commit and folder not in _snapshots(repo)):
        raise ModelNotFound(f"model {model!r} is not on this machine; `diffuserve list` shows those that are")
    if not commit or len(_snapshots(repo)) == 1:
        return Removal(repo_id, (repo,), _size_of(repo))
    own = _files_of_one_commit(repo_id, folder)
    return Removal(f"{repo_id}@{commit}", (folder, *own), sum(path.stat().st_size for path in own))


def _downloaded() -> Iterator[InstalledModel]:
    for repo_id in hub.cached_repositories():
        snapshots = [path for path in _snapshots(hub.repo_folder(repo_id)) if is_model(path)]
        whole = [path.name for path in snapshots if not hub.missing_files(repo_id, path.name)]
        for path in snapshots:
            is_known = whole == [path.name] or HUB_COMMITS.get(repo_id) == path.name
            name = repo_id if is_known or len(snapshots) == 1 else f"{repo_id}@{path.name}"
            yield _described(name, "hub", path, is_whole=path.name in whole)


def _described(name: str, source: str, path: Path, is_whole: bool = True) -> InstalledModel:
    model = InstalledModel(
        name=name, source=source, path=path, num_bytes=_size_of(path), dtype=dtype_of(path)
    )
    if problem := missing_weights(path):
        return replace(model, problem=problem)
    if not is_whole:
        return replace(model, problem=f"incomplete: `diffuserve pull {name}` continues")
    try:
        spec = read_spec(str(path))
    except InvalidModel as error:
        return replace(model, problem=str(error))
    return replace(
        model,
        family=spec.family,
        run_by=spec.run_by,
        width=spec.width if spec.has_size else 0,
        height=spec.height,
        num_inference_steps=spec.num_inference_steps,
    )


def _snapshots(repo: Path) -> list[Path]:
    folder = repo / "snapshots"
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


def _size_of(folder: Path) -> int:
    """Return the bytes of the files in a folder; two names of one file count once."""
    files = {path.resolve() for path in folder.rglob("*") if path.is_file()}
    return sum(file.stat().st_size for file in files)


def _files_of_one_commit(repo_id: str, snapshot: Path) -> list[Path]:
    """Return the files that no other commit of the repository uses."""
    folders = {folder: _blobs_of(folder) for folder in _snapshots(hub.repo_folder(repo_id))}
    uses = Counter(blob for blobs in folders.values() for blob in blobs)
    return sorted(blob for blob in folders[snapshot] if uses[blob] == 1)


def _blobs_of(snapshot: Path) -> set[Path]:
    """Return what the links of a snapshot point to: no further, since other repositories may share that."""
    links = (path for path in snapshot.rglob("*") if path.is_symlink())
    return {Path(os.path.normpath(path.parent / path.readlink())) for path in links}
