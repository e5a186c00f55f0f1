"""Opens a file of weights by what it is. Importing this loads no torch."""

from pathlib import Path

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.checkpoint_files.checkpoint_file import CheckpointFile
from diffuserve.models.checkpoint_files.fp8_file import with_scales
from diffuserve.models.checkpoint_files.gguf_file import open_gguf
from diffuserve.models.checkpoint_files.safetensors_file import open_safetensors

_PICKLES = {".ckpt", ".pt", ".pth", ".bin", ".pkl"}
_SUFFIXES = (".safetensors", ".gguf")


def open_checkpoint(path: Path) -> CheckpointFile:
    """Return a file of weights, its header read and checked. Raise `InvalidModel` for any other."""
    check_suffix(path)
    if not path.is_file():
        raise InvalidModel(
            f"{path}: {'a folder' if path.is_dir() else 'no such file'}; give a file of weights"
        )
    return open_gguf(path) if path.suffix.lower() == ".gguf" else with_scales(open_safetensors(path))


def check_suffix(path: Path) -> None:
    """Raise `InvalidModel` for a file that its name says is not read, before it is opened or downloaded."""
    suffix = path.suffix.lower()
    if suffix in _PICKLES:
        raise InvalidModel(
            f"{path}: pickled weights, which can run code and are never opened; look for the same model as "
            ".safetensors, or have its owner convert it"
        )
    if suffix not in _SUFFIXES:
        raise InvalidModel(f"{path}: no file of weights that is read here: {' or '.join(_SUFFIXES)}")
