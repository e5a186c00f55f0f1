"""Checkpoints let training go on on another machine: averaged weights of every stage, and the tokenizers."""

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

import emoji_denoiser
import emoji_text
from packed import COARSE, FINE, pack, unpack

TOKENIZERS = "tokenizers"
BESIDE_THE_CODE = Path(__file__).parent / "checkpoint"
_ARCHIVE = "xztar"
_AVERAGE, _WEIGHT, _STEP = "average:", "weight:", "step"


def export(state: Path, folder: Path) -> list[Path]:
    """Write every stage in `state` packed into `folder`; return the files.

    Heads, which only ask the text encoders what they know, are left out: they begin anew.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = [
        Path(shutil.make_archive(str(folder / TOKENIZERS), _ARCHIVE, state / TOKENIZERS)),
    ]
    for path in sorted(state.glob("*.safetensors")):
        tensors = load_file(path)
        if _STEP not in tensors:
            continue  # pictures, which are no stage's state
        averages = {
            name.removeprefix(_AVERAGE): value
            for name, value in tensors.items()
            if name.startswith(_AVERAGE) and not name.startswith(_AVERAGE + emoji_text.HEADS)
        }
        target = folder / f"{path.stem}-{int(tensors[_STEP])}.xz"
        for older in folder.glob(f"{path.stem}-*.xz"):
            older.unlink()
        # The denoiser is most of the bytes, and goes on learning, which mends what it loses.
        target.write_bytes(pack(averages, COARSE if path.stem == emoji_denoiser.NAME else FINE))
        files.append(target)
    return files


def adopt(folder: Path, state: Path) -> list[str]:
    """Put what `folder` holds and `state` lacks into `state`; return the stages' names.

    Both the weights and their averages begin as the folder's; optimizers begin anew.
    """
    tokenizers = folder / f"{TOKENIZERS}.tar.xz"
    if tokenizers.exists() and not (state / TOKENIZERS).exists():
        shutil.unpack_archive(tokenizers, state / TOKENIZERS, filter="data")
    adopted = []
    for packed in sorted(folder.glob("*-*.xz")):
        stage, _, step = packed.stem.rpartition("-")
        target = state / f"{stage}.safetensors"
        if not target.exists():
            weights = unpack(packed.read_bytes())
            tensors = {f"{_WEIGHT}{name}": value for name, value in weights.items()}
            tensors |= {f"{_AVERAGE}{name}": value.clone() for name, value in weights.items()}
            save_file(tensors | {_STEP: torch.tensor(int(step))}, target)
            adopted.append(stage)
    return adopted


def load_averages(path: Path, modules: dict[str, nn.Module]) -> None:
    """Put the averaged weights of a stage's state at `path` into its modules; it is only read."""
    tensors = load_file(path)
    for prefix, module in modules.items():
        for name, value in module.named_parameters():
            value.data.copy_(tensors[f"{_AVERAGE}{prefix}.{name}"])
