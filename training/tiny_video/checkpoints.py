"""Averaged weights of every stage, small enough to be kept beside the code."""

from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

_AVERAGE, _WEIGHT, _STEP = "average:", "weight:", "step"


def write_checkpoint(state: Path, checkpoint: Path) -> list[str]:
    """Write the averaged weights of every stage in `state` as bf16, and return the stages' names.

    Optimizer state is left out: it is twice as large as the weights, and made anew in some hundred steps.
    """
    checkpoint.mkdir(parents=True, exist_ok=True)
    names = []
    for path in sorted(state.glob("*.safetensors")):
        tensors = load_file(path)
        if _STEP not in tensors:
            continue  # encoded clips, which are no stage's state
        weights = {
            name.removeprefix(_AVERAGE): value.to(torch.bfloat16)
            for name, value in tensors.items()
            if name.startswith(_AVERAGE)
        }
        target = checkpoint / path.name
        save_file(weights, target, metadata={_STEP: str(int(tensors[_STEP]))})
        target.chmod(0o644)  # safetensors are written for their owner alone
        names.append(path.stem)
    return names


def load_average(path: Path, name: str, module: nn.Module) -> None:
    """Put the averaged weights of a stage's module `name` into `module`; the state at `path` stays."""
    prefix = f"{_AVERAGE}{name}."
    weights = {
        key.removeprefix(prefix): value for key, value in load_file(path).items() if key.startswith(prefix)
    }
    module.load_state_dict(weights)


def adopt_checkpoint(checkpoint: Path, state: Path) -> list[str]:
    """Write the stages of `checkpoint` that `state` lacks in the form that `Course` goes on from.

    Return their names. Both the weights and their average begin as what the checkpoint holds; optimizers
    begin anew.
    """
    adopted = []
    for path in sorted(checkpoint.glob("*.safetensors")):
        target = state / path.name
        if target.exists():
            continue
        with safe_open(path, framework="pt") as file:
            step = int(file.metadata()[_STEP])
        weights = {name: value.float() for name, value in load_file(path).items()}
        tensors = {f"{_WEIGHT}{name}": value for name, value in weights.items()}
        tensors |= {f"{_AVERAGE}{name}": value.clone() for name, value in weights.items()}
        save_file(tensors | {_STEP: torch.tensor(step)}, target)
        adopted.append(path.stem)
    return adopted
