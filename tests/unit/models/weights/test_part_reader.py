"""Parts of tensors are read as safetensors reads them, and little else is asked of the disk."""

import os
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from diffuserve.models.layers.tensor_parallel import TensorShard
from diffuserve.models.weights.part_reader import read_part
from diffuserve.models.weights.stored_tensors import stored_tensors

WIDE = 6 * 4096  # of float32: a third of a row is more than what is read by pieces at the least


@pytest.fixture(scope="module")
def tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"wide": (300, WIDE), "narrow": (300, 30), "bias": (30,), "kernel": (6, 4, 3, 3)}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


@pytest.fixture(scope="module")
def file(tensors: dict[str, Tensor], tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("weights") / "model.safetensors"
    save_file(tensors, file)
    return file


@pytest.fixture
def asked() -> Iterator[list[int]]:
    """The bytes of each read."""
    sizes: list[int] = []
    read = os.preadv

    def counted(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        sizes.append(sum(map(len, buffers)))
        return read(descriptor, buffers, offset)

    with patch.object(os, "preadv", counted):
        yield sizes


def check(file: Path, tensors: dict[str, Tensor], name: str, share: TensorShard | None) -> Tensor:
    part = read_part(file, stored_tensors(file)[name], torch.float32, share)
    whole = tensors[name]
    assert torch.equal(part, whole if share is None else share.of(whole))
    return part


@pytest.mark.parametrize("name", ["wide", "narrow", "bias", "kernel"])
def test_a_whole_tensor_is_what_was_stored(file: Path, tensors: dict[str, Tensor], name: str) -> None:
    check(file, tensors, name, None)


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("wide", TensorShard(0, 300, ((100, 200),))),
        ("wide", TensorShard(0, 300, ((0, 50), (150, 200)))),
        ("wide", TensorShard(1, WIDE, ((WIDE // 3, 2 * WIDE // 3),))),
        ("wide", TensorShard(1, WIDE, ((0, 100), (WIDE // 2, WIDE)))),
        ("narrow", TensorShard(0, 300, ((299, 300),))),
        ("bias", TensorShard(0, 30, ((10, 20),))),
        ("kernel", TensorShard(0, 6, ((3, 6),))),
    ],
)
def test_a_share_is_read_and_no_other_byte(
    file: Path, tensors: dict[str, Tensor], asked: list[int], name: str, share: TensorShard
) -> None:
    part = check(file, tensors, name, share)
    assert sum(asked) == part.nbytes


def test_rows_of_which_a_share_has_little_are_read_whole(
    file: Path, tensors: dict[str, Tensor], asked: list[int]
) -> None:
    check(file, tensors, "narrow", TensorShard(1, 30, ((10, 20),)))
    assert asked == [tensors["narrow"].nbytes]


def test_a_read_that_brings_less_goes_on(file: Path, tensors: dict[str, Tensor]) -> None:
    read = os.preadv

    def short(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        return read(descriptor, [buffers[0][:1000]], offset)

    with patch.object(os, "preadv", short):
        check(file, tensors, "narrow", None)


def test_a_file_that_ends_before_is_an_error(file: Path, tmp_path: Path) -> None:
    stored = stored_tensors(file)["wide"]
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(file.read_bytes()[: stored.offset + stored.num_bytes // 2])
    with pytest.raises(OSError, match="the file ends before byte"):
        read_part(cut, stored, torch.float32)
