"""Every tensor of a random Z-Image takes part, and equal arguments write equal weights."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from diffuserve.testing.z_image_checkpoints import write_z_image_checkpoint

COMPONENTS = ("transformer", "vae", "text_encoder")


def tensors_of(folder: Path, component: str) -> dict[str, Tensor]:
    files = (folder / component).glob("*.safetensors")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def test_tensors_are_random_and_those_of_their_seed_in_any_number_of_files(tmp_path: Path) -> None:
    whole = write_z_image_checkpoint(tmp_path / "whole", seed=5)
    split = write_z_image_checkpoint(tmp_path / "split", seed=5, num_files=3)
    other = write_z_image_checkpoint(tmp_path / "other", seed=6)
    assert len(list((split / "transformer").glob("*.safetensors"))) >= 3
    for component in COMPONENTS:
        first, same, third = (tensors_of(folder, component) for folder in (whole, split, other))
        assert first.keys() == same.keys() == third.keys()
        assert all(torch.equal(tensor, same[name]) for name, tensor in first.items())
        assert not any(torch.equal(tensor, third[name]) for name, tensor in first.items())
        assert all(tensor.std() > 0.02 for tensor in first.values() if tensor.numel() > 1)
