"""Decides where each part of a model comes from that is made of a file. Importing this loads no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diffuserve.domain.errors import InvalidModel, InvalidParams
from diffuserve.models.checkpoint_files.checkpoint_file import CheckpointFile
from diffuserve.models.checkpoint_files.kinds import ModelKind, PartLayout, Tensors
from diffuserve.models.checkpoint_files.open_checkpoint import open_checkpoint
from diffuserve.models.checkpoint_files.recognize import RecognizedFile, part_prefix, recognize
from diffuserve.models.checkpoint_files.shapes import derive_config
from diffuserve.models.folders import hub
from diffuserve.models.folders.folder import ModelFolder, find_local_model
from diffuserve.models.folders.model_paths import INDEX_FILE, existing
from diffuserve.models.folders.names import HUB_COMMITS, full_name, is_hub_id

_OPTIONAL = frozenset({"safety_checker", "feature_extractor", "image_encoder", "image_processor"})
"""Components that pipelines do without, where the base has none."""
_LICENSES = ("modelspec.license", "general.license", "license")
_MAX_TEXT, _MAX_SHOWN = 500, 5
_OF_TRAINING = (
    "model_ema.",
    "alphas_cumprod",
    "betas",
    "sqrt_",
    "posterior_",
    "log_one_minus_",
    "logvar",
    "lvlb_weights",
    "denoiser.",
    "v_pred",
    "ztsnr",
    "cond_stage_model.logit_scale",
    "conditioner.embedders.1.model.logit_scale",
)
"""Beginnings of tensors that the files of Stable Diffusion have kept from their training."""


@dataclass(frozen=True)
class ConvertedPart:
    """A component whose tensors are in a file of the authors' layout, after `prefix`."""

    file: CheckpointFile
    prefix: str
    layout: PartLayout
    config: Mapping[str, Any]

    @property
    def names(self) -> dict[str, str]:
        """The names of its tensors in the file, and those without the prefix."""
        return _without_prefix(self.file, self.prefix)


@dataclass(frozen=True)
class CopiedPart:
    """A component that is in a folder of diffusers' format already; `changes` are to values of its config."""

    folder: Path
    changes: Mapping[str, Any] = field(default_factory=dict)


Part = ConvertedPart | CopiedPart


@dataclass(frozen=True)
class ImportPlan:
    """The parts of a model by component, and its index: what `write_model` makes a folder of."""

    recognized: RecognizedFile
    base: ModelFolder
    parts: Mapping[str, Part]

    @property
    def index(self) -> dict[str, Any]:
        """Content of its `model_index.json`: the base's, with the class that the file's kind has."""
        classes, given = self.recognized.kind.pipelines, self.base.pipeline_class
        left_out = _components(self.base).keys() - self.parts
        return {
            **self.base.index,
            **{name: [None, None] for name in left_out},
            "_class_name": given if given in classes else classes[0],
        }

    @property
    def settings(self) -> dict[str, Any]:
        """Content of its `diffuserve.json`: defaults and limits of its kind and of the base, but its name."""
        own = {name: value for name, value in self.base.settings.items() if name != "name"}
        return {**self.recognized.kind.defaults, **own}

    @property
    def left_out(self) -> list[str]:
        """Some of the file's tensors that belong to no part, and are not known to be of no use."""
        file = self.recognized.file
        used = {
            name for part in self.parts.values() if isinstance(part, ConvertedPart) for name in part.names
        }
        left = (name for name in file.tensors if name not in used and not name.startswith(_OF_TRAINING))
        return sorted(left)[:_MAX_SHOWN]

    @property
    def origin(self) -> dict[str, Any]:
        """Record of where the model comes from, with the file's license if it states one."""
        file = self.recognized.file
        license = next((file.metadata[key] for key in _LICENSES if file.metadata.get(key)), None)
        base = (
            self.base.path.name if self.base.hub_id is None else f"{self.base.hub_id}@{self.base.path.name}"
        )
        title = file.metadata.get("modelspec.title") or file.metadata.get("general.name")
        return {
            "file": file.path.name,
            "kind": self.recognized.kind.title,
            "base": base,
            "title": title and title[:_MAX_TEXT],
            "license": license and license[:_MAX_TEXT],
        }


def plan_import(path: Path, base: str | None = None, given: Mapping[str, Path] | None = None) -> ImportPlan:
    """Return how a model is made of a file; `given` are files or folders for other components, by name.

    Parts that the file lacks come from the model `base`, or from the one that its kind names. Raise
    `InvalidModel` for a file that is no model, or whose model lacks parts that are not on this machine.
    """
    recognized = recognize(open_checkpoint(path))
    kind = recognized.kind
    _check_expert(recognized)
    folder = _open_base(base or kind.base, recognized)
    components = _components(folder)
    if kind.denoiser not in components:
        raise _wrong_base(recognized, folder, f"it has no {kind.denoiser}")
    sources = {name: _source(name, recognized, folder, given or {}) for name in components}
    unknown = sorted((given or {}).keys() - components.keys())
    if unknown:
        raise InvalidParams("parts", unknown[0], f"is no part of {kind.title}: {', '.join(components)}")
    missing = [name for name, source in sources.items() if source is None and name not in _OPTIONAL]
    if missing:
        raise InvalidModel(_explain_missing(recognized, missing, base))
    return ImportPlan(
        recognized, folder, {name: source for name, source in sources.items() if source is not None}
    )


def _components(folder: ModelFolder) -> dict[str, list[str]]:
    """Return the components of a model's index, each with its library and class."""
    return {
        name: value
        for name, value in folder.index.items()
        if name.isidentifier() and not name.startswith("_") and _is_named_class(value)
    }


def _is_named_class(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(word, str) for word in value)


def _source(
    name: str, recognized: RecognizedFile, base: ModelFolder, given: Mapping[str, Path]
) -> Part | None:
    """Return where a component comes from; `None` if it is nowhere."""
    kind, own = recognized.kind, recognized.prefixes
    if name in given and given[name].is_dir():
        return CopiedPart(given[name])
    if name in given:
        if name not in kind.parts:
            raise InvalidParams("parts", f"{name}={given[name]}", "must be a folder: it has no weights")
        file = open_checkpoint(given[name])
        return _converted(name, file, part_prefix(file, name, kind.parts[name]), recognized, base)
    if name in own:
        return _converted(name, recognized.file, own[name], recognized, base)
    if not _is_whole(base, name, needs_weights=name in _weighted(base)):
        return None
    return CopiedPart(base.path / name, _told_schedule(recognized.file) if name == "scheduler" else {})


def _told_schedule(file: CheckpointFile) -> dict[str, Any]:
    """Return what a file says of its schedule: models that predict velocities have a tensor that says so."""
    if "v_pred" not in file.tensors:
        return {}
    return {"prediction_type": "v_prediction", "rescale_betas_zero_snr": "ztsnr" in file.tensors}


def _converted(
    name: str, file: CheckpointFile, prefix: str, recognized: RecognizedFile, base: ModelFolder
) -> ConvertedPart:
    layout = recognized.kind.parts[name]
    before = base.json(f"{name}/config.json")
    names = _without_prefix(file, prefix)
    tensors: Tensors = {short: file.tensors[own] for own, short in names.items()}
    try:
        config = derive_config(layout.converter, tensors, before)
    except (KeyError, IndexError, ValueError) as error:
        raise InvalidModel(f"{file.path}: its {layout.title} is incomplete: {str(error)[:200]}") from error
    differs = [key for key in recognized.kind.fixed if key in config and config[key] != before.get(key)]
    if name == recognized.kind.denoiser and differs:
        raise _wrong_base(recognized, base, f"its {differs[0]} is {before.get(differs[0])}")
    return ConvertedPart(file, prefix, layout, config)


def _without_prefix(file: CheckpointFile, prefix: str) -> dict[str, str]:
    others = _KNOWN_PREFIXES if not prefix else ()
    return {
        name: name.removeprefix(prefix)
        for name in file.tensors
        if name.startswith(prefix) and not name.startswith(others)
    }


_KNOWN_PREFIXES = ("first_stage_model.", "vae.", "cond_stage_model.", "conditioner.", "text_encoders.")
"""Prefixes of the other parts of a file whose denoiser has none."""


def _weighted(base: ModelFolder) -> set[str]:
    """Return the components that have weights: modules, unlike tokenizers and schedulers."""
    return {
        name
        for name, (_, kind) in _components(base).items()
        if not kind.endswith(("Tokenizer", "TokenizerFast", "Scheduler", "Processor", "Extractor"))
    }


def _is_whole(base: ModelFolder, name: str, needs_weights: bool) -> bool:
    if not (base.path / name).is_dir() or not any((base.path / name).iterdir()):
        return False
    try:
        return not needs_weights or bool(base.weights(name))
    except InvalidModel:
        return False


def _open_base(base: str, recognized: RecognizedFile) -> ModelFolder:
    """Return the folder that gives the other parts. Raise `InvalidModel` or `InvalidParams` without one."""
    name, path = full_name(base), existing(base)
    if path is None and is_hub_id(name):
        return _open_download(*name.partition("@")[::2], recognized)
    found = find_local_model(base)
    assert found is not None, "only a hub id may be known without being here"
    return found


def _open_download(repo_id: str, commit: str, recognized: RecognizedFile) -> ModelFolder:
    """Return a model in the hub's cache, downloaded as a whole or in part."""
    known = commit or HUB_COMMITS.get(repo_id)
    folders = [hub.snapshot_folder(repo_id, known)] if known else hub.snapshots(repo_id)
    found = [folder for folder in folders if (folder / INDEX_FILE).is_file()]
    if len(found) > 1:
        commits = " or ".join(f"{repo_id}@{folder.name}" for folder in found)
        raise InvalidParams("base", repo_id, f"is here at {len(found)} commits: give {commits}")
    if not found:
        needed = [name for name in recognized.lacks if name != "transformer_2"] or ["tokenizer"]
        raise InvalidModel(_explain_missing(recognized, needed, repo_id))
    return ModelFolder(found[0], repo_id)


def _explain_missing(recognized: RecognizedFile, missing: list[str], base: str | None) -> str:
    kind = recognized.kind
    wanted = kind.base if base in (None, full_name(kind.base)) or not is_hub_id(full_name(base)) else base
    has = ", ".join(recognized.prefixes)
    return (
        f"{recognized.file.path}: {kind.title}, of which it has {has}; what it lacks is not on this machine: "
        f"{', '.join(missing)}. Get it with `diffuserve pull {wanted} --parts {','.join(missing)}`, or give "
        f"folders or files of your own: --parts {missing[0]}=PATH"
    )


def _wrong_base(recognized: RecognizedFile, base: ModelFolder, why: str) -> InvalidModel:
    return InvalidModel(
        f"{base.path}: no base of {recognized.file.path}, which is {recognized.kind.title}: {why}; give "
        f"--base {recognized.kind.base}"
    )


def _check_expert(recognized: RecognizedFile) -> None:
    """Raise `InvalidModel` for the second expert of a model of two, which is no denoiser by itself."""
    path = recognized.file.path
    if "transformer_2" in recognized.kind.parts and "low_noise" in path.stem.lower().replace("-", "_"):
        raise InvalidModel(
            f"{path}: the expert for low noise, one of two; import the one for high noise, and give this as "
            f"--parts transformer_2={path}"
        )


def kind_of(path: Path) -> ModelKind:
    """Return the kind of model that a file holds. Raise `InvalidModel` as `plan_import`."""
    return recognize(open_checkpoint(path)).kind
