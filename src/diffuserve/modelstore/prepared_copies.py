"""Prepared copies of models on this machine: found, and made once. Importing this loads no torch."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from diffuserve.domain.errors import DiffuserveError, ModelNotFound
from diffuserve.domain.models.parts import ALL_PARTS
from diffuserve.domain.models.quantization import Quantization
from diffuserve.models.folders.folder import find_local_model
from diffuserve.models.machine.hardware import is_cpu
from diffuserve.models.registry import load_pipeline, weight_files
from diffuserve.models.weights.fingerprint import known_hash
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.modelstore.cache import HeldCopy, ModelCache
from diffuserve.modelstore.config import ModelStoreConfig
from diffuserve.modelstore.layout import MODELS

_LAYOUT = 1
"""Version of how weights are stored in copies. It grows when equal keys would no longer mean equal numbers,
as after a change of how weights are fused, quantized or ordered."""


@dataclass(frozen=True)
class LoadOptions:
    """The options of loading a model on which a copy of its weights depends."""

    model: str
    device: str | None = None
    dtype: str | None = None
    quantization: Quantization | None = None


def find_copy(options: LoadOptions, config: ModelStoreConfig) -> HeldCopy | None:
    """Return the prepared copy of a model, which this process then keeps; `None` if there is none."""
    try:
        return _cache(config).hold_copy(copy_key(options))
    except DiffuserveError:
        return None  # loading the model reports the error


def make_copy(options: LoadOptions, config: ModelStoreConfig) -> HeldCopy:
    """Return the prepared copy of a model, which is made unless it is there.

    The model is loaded for it, as a whole, into the host's memory. Raise as `load_pipeline`, and
    `ModelCacheFull` or `InvalidParams` where it cannot be stored.
    """

    def write(folder: Path, make_room: Callable[[int], None]) -> None:
        from diffuserve.models.machine.devices import choose_device, parse_dtype
        from diffuserve.models.machine.host import one_thread
        from diffuserve.models.weights.prepared import NewCopy

        plan = LoadPlan(
            choose_device(options.device),
            parse_dtype(options.dtype),
            quantization=options.quantization,
            stay_on_host=True,
            copy=NewCopy(folder, make_room),
        )
        with one_thread():
            load_pipeline(options.model, plan)

    return _cache(config).make_copy(copy_key(options), f"the prepared copy of {options.model}", write)


def is_cached(model: str, config: ModelStoreConfig) -> bool:
    """Return whether a model's folder is in this machine's cache of the model store."""
    return Path(model).is_relative_to(config.model_cache / MODELS)


def copied_files(copy: Path, files: Sequence[Path]) -> list[Path]:
    """Return the files to read instead of a model's: the copy's for all folders that it has."""
    folders = dict.fromkeys(file.parent for file in files)
    found = {folder: sorted(copy.glob(f"{folder.name}.*.safetensors")) for folder in folders}
    own = {folder: [file for file in files if file.parent == folder] for folder in folders}
    return [file for folder in folders for file in found[folder] or own[folder]]


def copy_key(options: LoadOptions) -> str:
    """Return the name of a model's copy: the hash of its files' identities and of how they are loaded.

    Raise `ModelNotFound` for a model that is not on this machine, and as `open_model` does.
    """
    if find_local_model(options.model) is None:
        raise ModelNotFound(f"{options.model} is not on this machine yet")
    files = weight_files(options.model, ALL_PARTS)
    described = {
        "layout": _LAYOUT,
        "files": [[file.parent.name, file.name, *_identity(file)] for file in files],
        "device": "cpu" if is_cpu(options.device) else "cuda",
        "dtype": options.dtype,
        "quantization": options.quantization or Quantization.NONE,
    }
    return hashlib.sha256(json.dumps(described).encode()).hexdigest()


def _identity(file: Path) -> tuple[str | int, ...]:
    """Return the identity of a file's content without reading the file."""
    if (known := known_hash(file)) is not None:
        return (known,)
    found = file.stat()
    return (str(file.resolve()), found.st_size, found.st_mtime_ns, found.st_ino)


def _cache(config: ModelStoreConfig) -> ModelCache:
    return ModelCache(config.model_cache, config.model_cache_bytes)
