"""Weights are loaded into their places, or the tensor at fault is named."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.layers.linear import Linear
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import Placement, checkpoint_dtype, load_weights

CPU = torch.device("cpu")
PLACEMENTS = {
    "out.weight": Placement("out.weight"),
    "out.bias": Placement("out.bias"),
    **{f"to_{x}.weight": Placement("to_qkv.weight", i, 3) for i, x in enumerate("qkv")},
    **{f"to_{x}.bias": Placement("to_qkv.bias", i, 3) for i, x in enumerate("qkv")},
}


class Attention(nn.Module):
    """A module that fuses three products of the checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.to_qkv = Linear(4, 18)
        self.out = Linear(6, 4)


def make_tensors(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {"out.weight": (4, 6), "out.bias": (4,)}
    for name in "qkv":
        shapes |= {f"to_{name}.weight": (6, 4), f"to_{name}.bias": (6,)}
    return {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}


def write(folder: Path, *shards: Mapping[str, Tensor]) -> list[Path]:
    files = [folder / f"model-{index}.safetensors" for index in range(len(shards))]
    for file, tensors in zip(files, shards, strict=True):
        save_file(dict(tensors), file)
    return files


def load(files: list[Path], dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    with torch.device("meta"):
        module = Attention()
    load_weights(module, files, PLACEMENTS, LoadPlan(CPU, dtype))
    return module.state_dict()


def test_every_tensor_is_loaded_into_its_place(tmp_path: Path) -> None:
    tensors = make_tensors()
    loaded = load(write(tmp_path, tensors))
    for kind in ("weight", "bias"):
        assert torch.equal(loaded[f"out.{kind}"], tensors[f"out.{kind}"])
        fused = torch.cat([tensors[f"to_{name}.{kind}"] for name in "qkv"])
        assert torch.equal(loaded[f"to_qkv.{kind}"], fused)


def test_sharded_weights_equal_unsharded_ones(tmp_path: Path) -> None:
    tensors = make_tensors()
    (tmp_path / "whole").mkdir()
    whole = load(write(tmp_path / "whole", tensors))
    shards: list[dict[str, Tensor]] = [{}, {}, {}]
    for index, name in enumerate(reversed(sorted(tensors))):
        shards[index % 3][name] = tensors[name]
    sharded = load(write(tmp_path, *shards))
    assert whole.keys() == sharded.keys()
    assert all(torch.equal(tensor, sharded[name]) for name, tensor in whole.items())


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16])
def test_weights_are_converted_to_the_requested_dtype(
    tmp_path: Path, stored: torch.dtype, wanted: torch.dtype
) -> None:
    tensors = make_tensors(stored)
    loaded = load(write(tmp_path, tensors), wanted)
    assert {tensor.dtype for tensor in loaded.values()} == {wanted}
    assert torch.equal(loaded["out.weight"], tensors["out.weight"].to(wanted))
    assert torch.equal(loaded["to_qkv.weight"][6:12], tensors["to_k.weight"].to(wanted))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_dtype_of_a_checkpoint_is_read_without_its_tensors(tmp_path: Path, dtype: torch.dtype) -> None:
    assert checkpoint_dtype(write(tmp_path, make_tensors(dtype))) == dtype


def test_the_dtype_of_most_numbers_stands_for_all(tmp_path: Path) -> None:
    """Files that were quantized by others have their vectors in float32, and those come first."""
    tensors = {"a.bias": torch.ones(8), "b.weight": torch.ones(8, 8, dtype=torch.bfloat16)}
    tensors["c.weight"] = torch.ones(99, 99, dtype=torch.int8)
    assert checkpoint_dtype(write(tmp_path, tensors)) == torch.bfloat16


@pytest.mark.parametrize("name", ["out.bias", "to_k.weight"])
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    tensors = make_tensors()
    del tensors[name]
    with pytest.raises(InvalidModel, match=rf"{tmp_path}: .*missing {name}$"):
        load(write(tmp_path, tensors))


def test_an_unexpected_tensor_is_named_with_its_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match=r"model-0\.safetensors: unexpected tensor 'lora\.weight'"):
        load(write(tmp_path, make_tensors() | {"lora.weight": torch.ones(1)}))


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("out.weight", (6, 4), r"\(6, 4\), expected \(4, 6\)"),
        ("out.bias", (4, 1), r"\(4, 1\), expected \(4,\)"),
        ("to_k.weight", (18, 4), r"\(18, 4\), expected \(6, 4\)"),
        ("to_q.bias", (1,), r"\(1,\), expected \(6,\)"),
    ],
)
def test_a_misshaped_tensor_is_named_with_both_shapes(
    tmp_path: Path, name: str, shape: tuple[int, ...], expected: str
) -> None:
    with pytest.raises(InvalidModel, match=rf"model-0\.safetensors: {name} has shape {expected}"):
        load(write(tmp_path, make_tensors() | {name: torch.zeros(shape)}))


def test_loaded_weights_need_no_gradient(tmp_path: Path) -> None:
    with torch.device("meta"):
        module = Attention()
    load_weights(module, write(tmp_path, make_tensors()), PLACEMENTS, LoadPlan(CPU, torch.float32))
    assert not any(parameter.requires_grad for parameter in module.parameters())


def test_reading_can_be_followed(tmp_path: Path) -> None:
    sizes: list[int] = []
    with torch.device("meta"):
        module = Attention()
    plan = LoadPlan(CPU, torch.float32, on_read=sizes.append)
    load_weights(module, write(tmp_path, make_tensors()), PLACEMENTS, plan)
    assert sum(sizes) == sum(tensor.nbytes for tensor in make_tensors().values())
