"""The components of a pipeline's folder, checked before anything of it is imported.

`model_index.json` names a library and a class for each. Only classes of diffusers and transformers are
used: a module of the folder's own would be code of strangers, and pickled weights can run code.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.text.nearest import did_you_mean
from diffuserve.domain.text.shortened import shortened
from diffuserve.models.families.any_pipeline.reading.signature import Signature
from diffuserve.models.families.any_pipeline.reading.sources import (
    class_sources,
    installed_version,
    public_names,
    transformers_has,
)
from diffuserve.models.folders.folder import ModelFolder

LEFT_OUT: Final = frozenset({"safety_checker"})
"""Components that are not loaded: this project judges images by itself, and says so."""
_ALWAYS_NEEDED = frozenset({"transformer", "unet", "prior", "vae", "movq", "vqvae", "scheduler"})
_MAX_JSON_BYTES = 16 * 1024 * 1024
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_CLASS = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")


_NEEDS: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        ("PixtralProcessor", "Qwen2VLProcessor", "Qwen2_5_VLProcessor", "Qwen3VLProcessor"), "torchvision"
    ),
    **dict.fromkeys(("CosineDPMSolverMultistepScheduler", "DPMSolverSDEScheduler"), "torchsde"),
}
"""Classes that need packages beside those of the extra; torchvision must fit the build of torch."""


class Kind(StrEnum):
    """Kind of a component, which says what its folder must have."""

    MODEL = "model"
    SCHEDULER = "scheduler"
    GUIDER = "guider"
    TOKENIZER = "tokenizer"
    PROCESSOR = "processor"


_FILES: Final[Mapping[Kind, tuple[str, ...]]] = {
    Kind.MODEL: ("config.json",),
    Kind.SCHEDULER: ("scheduler_config.json",),
    Kind.GUIDER: ("guider_config.json",),
    Kind.TOKENIZER: ("tokenizer_config.json",),
    Kind.PROCESSOR: ("preprocessor_config.json", "processor_config.json", "config.json"),
}
"""A file of which the folder of such a component has one."""
_ENDINGS = (
    ("Scheduler", Kind.SCHEDULER),
    ("Guidance", Kind.GUIDER),
    ("Tokenizer", Kind.TOKENIZER),
    ("TokenizerFast", Kind.TOKENIZER),
    ("Processor", Kind.PROCESSOR),
    ("ProcessorFast", Kind.PROCESSOR),
    ("FeatureExtractor", Kind.PROCESSOR),
)


@dataclass(frozen=True)
class PipelineComponent:
    """A component as `model_index.json` names it."""

    name: str
    library: str
    class_name: str

    @property
    def kind(self) -> Kind:
        """Kind of the component, which its class's name says by its end."""
        kind = next((kind for end, kind in _ENDINGS if self.class_name.endswith(end)), Kind.MODEL)
        is_text = self.library == "transformers"  # diffusers' tokenizers are models: of sounds
        return Kind.MODEL if kind is Kind.TOKENIZER and not is_text else kind


def read_components(folder: ModelFolder, signature: Signature) -> tuple[PipelineComponent, ...]:
    """Return the components that are loaded, in the constructor's order.

    Raise `InvalidModel` for one that is missing, that the class does not take, or whose library or class is
    none of diffusers' and transformers'.
    """
    _check_unexpected(folder, signature)
    _check_settings(folder, signature)
    named = ((name, _pair(folder, signature, name)) for name in signature.components)
    found = tuple(PipelineComponent(name, *pair) for name, pair in named if pair is not None)
    for component in found:
        _check_class(folder, component)
    return found


def check_component(folder: ModelFolder, component: PipelineComponent) -> None:
    """Raise `InvalidModel` if a component lacks its config or weights, or its class a package."""
    path = folder.component(component.name)
    needed = _NEEDS.get(component.class_name)
    if needed is not None and find_spec(needed) is None:
        raise InvalidModel(
            f"{path}: {component.class_name} needs {needed}, which is not installed; pip install {needed}, "
            "of the version that fits torch"
        )
    files = _FILES[component.kind]
    config = next((name for name in files if (path / name).is_file()), None)
    if config is None:
        raise InvalidModel(f"{path}: {' or '.join(files)} is missing, for {component.class_name}")
    read_json(path / config)
    if component.kind is Kind.MODEL:
        folder.weights(component.name)


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object; diffusers writes infinities too. Raise `InvalidModel` if it is none."""
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise InvalidModel(f"{path}: more than {_MAX_JSON_BYTES:,} bytes")
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError, OSError) as error:
        raise InvalidModel(f"{path}: not valid JSON ({type(error).__name__})") from error
    if not isinstance(content, dict):
        raise InvalidModel(f"{path}: must hold a JSON object")
    return content


def _pair(folder: ModelFolder, signature: Signature, name: str) -> tuple[str, str] | None:
    """Return a component's library and class; `None` if it is left out."""
    if name in LEFT_OUT:
        return None
    value = folder.index.get(name)
    if value is None or (isinstance(value, list) and value[:2] == [None, None] and not signature.is_modular):
        if _is_needed(folder, signature, name):
            raise InvalidModel(
                f"{_place(folder)} names no {name}, which {signature.name} needs; "
                "take the whole model as it was published"
            )
        return None
    match value:
        case [str(library), str(class_name)]:
            return library, class_name
        case [str(library), str(class_name), dict(origin)] if signature.is_modular:
            _check_is_here(folder, name, origin)
            return library, class_name
        case [None, None, {"type_hint": [str(library), str(class_name)]}] if signature.is_modular:
            return (library, class_name) if (folder.path / name).is_dir() else None
    raise _not_a_pair(folder, name, value)


def _is_needed(folder: ModelFolder, signature: Signature, name: str) -> bool:
    if signature.is_modular:  # blocks build some of their components, and leave others out
        return name in _ALWAYS_NEEDED
    return name not in signature.optional and (name not in folder.index or name in _ALWAYS_NEEDED)


def _check_is_here(folder: ModelFolder, name: str, origin: Mapping[str, Any]) -> None:
    """Raise `InvalidModel` for a component of another repository, or of a folder with another name."""
    if origin.get("subfolder") != name or not (folder.path / name).is_dir():
        repository = shortened(origin.get("pretrained_model_name_or_path"))
        raise InvalidModel(
            f"{_place(folder)}: {name} is the folder {shortened(origin.get('subfolder'))} of {repository}; "
            f"put it into {name}/ of this folder"
        )


def _place(folder: ModelFolder) -> str:
    """Return the path of the index, for messages."""
    return f"{folder.path}/{folder.index_file}"


def _not_a_pair(folder: ModelFolder, name: str, value: object) -> InvalidModel:
    return InvalidModel(
        f"{_place(folder)}: {name}={shortened(value)} must be a library and a class, "
        'such as ["diffusers", "AutoencoderKL"]'
    )


def _check_unexpected(folder: ModelFolder, signature: Signature) -> None:
    """Raise `InvalidModel` for a name that is no name, and a component that the class does not take."""
    for name, value in folder.index.items():
        if name.startswith("_"):
            continue
        if not _NAME.fullmatch(name):
            raise InvalidModel(f"{_place(folder)}: {shortened(name)} is no name of a component")
        if signature.is_modular:
            continue  # components of other workflows, which are not loaded
        is_known = name in signature.components or name in signature.settings or name in LEFT_OUT
        if not is_known and _names_class(value):
            raise InvalidModel(
                f"{_place(folder)}: {signature.name} of diffusers {installed_version()} takes no "
                f"{name}{did_you_mean(name, signature.components)}; it has {', '.join(signature.components)}"
            )


def _names_class(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(each, str) for each in value)


def _check_settings(folder: ModelFolder, signature: Signature) -> None:
    """Raise `InvalidModel` for a setting of the constructor that has another type than its default."""
    for name, default in signature.settings.items():
        value = folder.index.get(name)
        if value is None or default is None or _is_like(value, default):
            continue
        raise InvalidModel(
            f"{_place(folder)}: {name}={shortened(value)} must be like its default {default!r}"
        )


def _is_like(value: Any, default: Any) -> bool:
    """Return whether a setting is a truth value or a number if its default is; classes check others."""
    if isinstance(default, bool):
        return isinstance(value, bool)
    if isinstance(default, int | float):
        return isinstance(value, int | float) and not isinstance(value, bool)
    return True


def _check_class(folder: ModelFolder, component: PipelineComponent) -> None:
    """Raise `InvalidModel` unless diffusers or transformers has a component's class."""
    library, name = component.library, component.class_name
    origin = f"{_place(folder)}: {component.name}={[library, name]}"
    if not _CLASS.fullmatch(name) or not _has_library(library):
        raise InvalidModel(
            f"{shortened(origin, 300)} is code of the folder or of another library, which is never run; "
            "only classes of diffusers and transformers are used"
        )
    if not _has_class(library, name):
        owner = "transformers" if library == "transformers" else f"diffusers {installed_version()}"
        raise InvalidModel(
            f"{origin}: {owner} has no {name}; the model may need another version, or code of its own"
        )


def _has_library(library: str) -> bool:
    return library in ("diffusers", "transformers") or any(
        source.room == library and not source.is_deprecated for source in class_sources().values()
    )


def _has_class(library: str, name: str) -> bool:
    if library == "diffusers":
        return name in public_names()
    if library == "transformers":
        return transformers_has(name)
    source = class_sources().get(name)
    return source is not None and source.room == library
