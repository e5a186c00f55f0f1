"""Halves of blocks that are compiled ahead of time: exported, kept in files, and loaded without a compiler.

A half is the part of a block before its attention, or the part after it. Attention stays a kernel of its own,
so that a half works on any number of tokens and sequences. Weights are arguments of a half: one file serves
all blocks of a kind, and all models of one shape.
"""

import importlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from diffuserve.domain.errors import DeviceUnavailable

Compiled = Callable[..., tuple[Tensor, ...]]
"""A loaded half: it takes its weights by name, then its tensors."""


@dataclass(frozen=True)
class BlockHalf:
    """A half of a block: a module, the prefixes of the weights that it reads, and tensors to trace it with.

    Each tensor may have any number of rows from 2 on.
    """

    module: nn.Module
    prefixes: tuple[str, ...]
    tensors: Sequence[Tensor]

    def weights(self) -> dict[str, Tensor]:
        """Return the module's weights that it reads, by name."""
        return weights_of(self.module, self.prefixes)


@dataclass(frozen=True)
class CompilableBlocks:
    """The halves of a model's blocks, by name; they depend only on `shape` and the dtype."""

    shape: str
    dtype: torch.dtype
    halves: Mapping[str, BlockHalf]


def weights_of(module: nn.Module, prefixes: tuple[str, ...]) -> dict[str, Tensor]:
    """Return the weights of a module whose names have one of these prefixes, in order."""
    return {name: weight for name, weight in module.named_parameters() if name.startswith(prefixes)}


class _WithWeights(nn.Module):
    """A half whose weights are arguments; the module is no submodule, so that an export keeps none of it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module = (module,)

    def forward(self, weights: dict[str, Tensor], *tensors: Tensor) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = torch.func.functional_call(self._module[0], weights, tensors)
        return found


def export_half(half: BlockHalf) -> torch.export.ExportedProgram:
    """Trace a half; nothing is compiled."""
    rows = [{0: torch.export.Dim.DYNAMIC} for _ in half.tensors]
    weights = half.weights()
    with torch.no_grad():
        return torch.export.export(
            _WithWeights(half.module),
            (weights, *(tensor.clone() for tensor in half.tensors)),  # the same one twice would be one input
            dynamic_shapes=({name: None for name in weights}, tuple(rows)),
            strict=False,
        )


def compile_half(half: BlockHalf, file: Path) -> None:
    """Write a half's compiled code. It takes a minute. Raise `DeviceUnavailable` without a C++ compiler."""
    if shutil.which("g++") is None:
        raise DeviceUnavailable("g++ is not there, and compiling needs it: install it, then try again")
    inductor = importlib.import_module("torch._inductor")
    inductor.aoti_compile_and_package(export_half(half), package_path=str(file))


def load_half(file: Path) -> Compiled:
    """Load a half's code into this process; nothing is traced."""
    inductor = importlib.import_module("torch._inductor")
    package = inductor.aoti_load_package(str(file))

    def run(weights: Mapping[str, Tensor], *tensors: Tensor) -> tuple[Tensor, ...]:
        # The code assumes the traced tensors' layout of rows, and does not check it.
        found = package(dict(weights), *(tensor.contiguous() for tensor in tensors))
        return tuple(found)

    return run
