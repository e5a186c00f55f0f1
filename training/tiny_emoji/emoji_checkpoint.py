"""Checkpoints let training go on on another machine: averaged weights of every stage, and the tokenizers."""

import shutil
import tempfile
from pathlib import Path

from safetensors.torch import load_file
from torch import nn

from checkpoints import adopt_checkpoint, write_checkpoint
from packed import pack, unpack

TOKENIZERS = "tokenizers"
BESIDE_THE_CODE = Path(__file__).parent / "checkpoint"
_ARCHIVE = "xztar"


def export(state: Path, folder: Path) -> list[Path]:
    """Write every stage in `state` packed into `folder`; return the files."""
    with tempfile.TemporaryDirectory() as plain:
        names = write_checkpoint(state, Path(plain))
        files = [pack(Path(plain) / f"{name}.safetensors", folder) for name in names]
    archive = shutil.make_archive(str(folder / TOKENIZERS), _ARCHIVE, state / TOKENIZERS)
    return [*files, Path(archive)]


def adopt(folder: Path, state: Path) -> list[str]:
    """Put what `folder` holds and `state` lacks into `state`; return the stages' names."""
    tokenizers = folder / f"{TOKENIZERS}.tar.xz"
    if tokenizers.exists() and not (state / TOKENIZERS).exists():
        shutil.unpack_archive(tokenizers, state / TOKENIZERS, filter="data")
    with tempfile.TemporaryDirectory() as plain:
        for packed in folder.glob("*.safetensors.xz"):
            if not (state / packed.name.removesuffix(".xz")).exists():
                unpack(packed, Path(plain))
        return adopt_checkpoint(Path(plain), state)


def load_averages(path: Path, modules: dict[str, nn.Module]) -> None:
    """Put the averaged weights of a stage's state at `path` into its modules; it is only read."""
    tensors = load_file(path)
    for prefix, module in modules.items():
        for name, value in module.named_parameters():
            value.data.copy_(tensors[f"average:{prefix}.{name}"])
