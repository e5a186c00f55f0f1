"""Every tensor of a random FLUX.2 takes part, and equal arguments write equal weights."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from diffuserve.testing.flux2_checkpoints import Flux2Kind, write_flux2_checkpoint

UNDRAWN = "bn.num_batches_tracked"


def tensors_of(folder: Path) -> dict[str, Tensor]:
    return {
        f"{file.parent.name}/{name}": tensor
        for file in folder.rglob("*.safetensors")
        for name, tensor in load_file(file).items()
        if name != UNDRAWN
    }


@pytest.mark.parametrize("kind", ["klein", "dev"])
def test_tensors_are_random_and_those_of_their_seed(kind: Flux2Kind, tmp_path: Path) -> None:
    first, same, third = (
        tensors_of(write_flux2_checkpoint(tmp_path / str(number), kind=kind, seed=seed))
        for number, seed in enumerate((5, 5, 6))
    )
    assert first.keys() == same.keys() == third.keys()
    assert all(torch.equal(tensor, same[name]) for name, tensor in first.items())
    assert not any(torch.equal(tensor, third[name]) for name, tensor in first.items())
    assert all(tensor.std() > 0.02 for tensor in first.values() if tensor.numel() > 1)
