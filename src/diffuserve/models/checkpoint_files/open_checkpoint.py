"""Opens a file of weights by what it is. Importing this loads no torch."""

from pathlib import Path

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.checkpoint_files.checkpoint_file import CheckpointFile
from diffuserve.models.checkpoint_files.fp8_file import with_scales
from diffuserve.models.checkpoint_files.gguf_file import open_gguf
from diffuserve.models.checkpoint_files.safetensors_file import open_safetensors

_PICKLES = {".ckpt", ".pt", ".pth", ".bin", ".pkl"}


def open_checkpoint(path: Path) -> CheckpointFile:
    """Return a file of weights, its header read and checked. Raise `InvalidModel` for any other."""
    suffix = path.suffix.lower()
    if suffix in _PICKLES:
        raise InvalidModel(
            f"{path}: pickled weights, which can run code and are never opened; look for the same model as "
            ".safetensors, or have its owner convert it"
        )
    if not path.is_file():
        raise InvalidModel(f"{path}: no such file")
    if suffix == ".safetensors":
        return with_scales(open_safetensors(path))
    if suffix == ".gguf":
        return open_gguf(path)
    raise InvalidModel(f"{path}: not a file of weights that is read; give a .safetensors or .gguf file")
