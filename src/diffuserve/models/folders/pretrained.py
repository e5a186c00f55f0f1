"""Loads what diffusers and transformers read of a model folder: the only calls of `from_pretrained`.

Left to themselves they ask on the terminal whether to run a folder's Python code, ask the hub for files
that the folder lacks, open pickles, draw missing weights at random, and build what a config describes,
whatever its size. A test keeps other calls out of this project.
"""

from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any, TypeVar

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.folders.folder import ModelFolder, first_line

T = TypeVar("T")

_NO_CODE: Mapping[str, bool] = {"local_files_only": True, "trust_remote_code": False}
_CONFIG = "config.json"
_MAX_LAYERS, _MAX_NUMBER = 512, 1 << 24
_SPARE_PARAMETERS = 1 << 20


def load_processor(kind: Any, folder: Path) -> Any:
    """Return the tokenizer or image processor of a folder. Raise `InvalidModel` if it cannot be loaded."""
    return _guarded(kind, folder, lambda: kind.from_pretrained(str(folder), **_NO_CODE))


def load_module(kind: Any, folder: Path, **options: Any) -> Any:
    """Return a module with a folder's weights, ready for inference.

    Raise `InvalidModel` for a config that is out of bounds or describes more than the files hold, for
    weights that are missing, of other shapes or no safetensors, and for a folder that needs its own code.
    """
    files = ModelFolder(folder.parent).weights(folder.name)
    _check_numbers(folder, ModelFolder(folder).json(_CONFIG))
    described = _guarded(kind, folder, lambda: _count_described(kind, folder))
    held = _count_held(files)
    if described > 2 * held + _SPARE_PARAMETERS:
        raise InvalidModel(
            f"{folder}: {_CONFIG} describes {described:,} parameters, and the files hold {held:,}"
        )
    module, report = _guarded(
        kind,
        folder,
        lambda: kind.from_pretrained(
            str(folder), use_safetensors=True, output_loading_info=True, **_NO_CODE, **options
        ),
    )
    if report["missing_keys"]:  # the libraries have initialized them at random
        raise InvalidModel(f"{folder}: the weights lack {', '.join(sorted(report['missing_keys'])[:3])}")
    return module.eval()


def expected_shapes(kind: Any, folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a module that a folder's config describes, by name; none is allocated.

    Those that share the memory of another are left out. Raise `InvalidModel` for a config that is out of
    bounds, or that the class cannot be built by.
    """
    import torch

    _check_numbers(folder, ModelFolder(folder).json(_CONFIG))
    with torch.device("meta"):
        module = _guarded(kind, folder, lambda: _build_empty(kind, folder))
    tied = set(getattr(module, "_tied_weights_keys", None) or ())
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items() if name not in tied}


def _guarded(kind: Any, folder: Path, load: Callable[[], T]) -> T:
    """Call `load`; the libraries raise many kinds of errors for an invalid folder."""
    import torch

    _quiet_transformers()
    try:
        return load()
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        reason = first_line(error) or type(error).__name__
        raise InvalidModel(f"{folder}: {kind.__name__} cannot load it ({reason})") from error


def _quiet_transformers() -> None:
    """Silence the progress bars and notices of transformers, which are about its inner parts."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def _check_numbers(folder: Path, values: object, name: str = _CONFIG) -> None:
    """Raise `InvalidModel` for a number in a config, at any depth, that no model has."""
    if isinstance(values, dict):
        for key, value in values.items():
            _check_numbers(folder, value, key)
    elif isinstance(values, list):
        for value in values:
            _check_numbers(folder, value, name)
    elif isinstance(values, int):
        limit = _MAX_LAYERS if "layers" in name else _MAX_NUMBER
        if abs(values) > limit:
            raise InvalidModel(f"{folder}/{_CONFIG}: {name}={values} is out of bounds (at most {limit:,})")


def _count_described(kind: Any, folder: Path) -> int:
    """Return the number of parameters that the config asks for; none is allocated."""
    import torch

    with torch.device("meta"):
        return sum(parameter.numel() for parameter in _build_empty(kind, folder).parameters())


def _build_empty(kind: Any, folder: Path) -> Any:
    if hasattr(kind, "load_config"):  # a class of diffusers
        return kind.from_config(kind.load_config(str(folder), local_files_only=True))
    if hasattr(kind, "config_class"):
        return kind._from_config(kind.config_class.from_pretrained(str(folder), **_NO_CODE))
    from transformers import AutoConfig

    return kind.from_config(AutoConfig.from_pretrained(str(folder), **_NO_CODE), trust_remote_code=False)


def _count_held(files: list[Path]) -> int:
    """Return the number of scalars in safetensors files, by their headers."""
    from safetensors import safe_open

    total = 0
    for file in files:
        with safe_open(file, framework="pt") as reader:
            total += sum(prod(reader.get_slice(name).get_shape()) for name in reader.keys())  # noqa: SIM118
    return total
