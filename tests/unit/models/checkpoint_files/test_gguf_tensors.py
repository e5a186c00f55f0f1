"""Numbers of GGUF files: equal to those of the package `gguf`, and how close they stay in few bits."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor

from diffuserve.domain.models.quantization import Quantization
from diffuserve.models.checkpoint_files import gguf_tensors
from diffuserve.models.checkpoint_files.checkpoint_file import FewBits
from diffuserve.models.checkpoint_files.gguf_file import open_gguf
from support.gguf_files import KINDS, random_blocks, write_gguf

INT8, INT4 = Quantization.INT8, Quantization.INT4
FOUR_BITS = ("Q4_0", "Q4_1", "Q4_K")
ROWS, COLUMNS = 24, 512


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a matrix of each kind; it is read in several chunks, the last of which is smaller."""
    monkeypatch.setattr(gguf_tensors, "_CHUNK", 5 * 512)
    tensors = {kind: (kind, random_blocks(kind, ROWS, COLUMNS)) for kind in KINDS}
    return write_gguf(tmp_path / "a.gguf", tensors)


def reference(kind: str) -> Tensor:
    """Return the weights of a matrix by the package's own functions, in one go."""
    return torch.from_numpy(gguf.dequantize(random_blocks(kind, ROWS, COLUMNS), Kind[kind]))


def decibels(found: Tensor, expected: Tensor) -> float:
    noise = (found.double() - expected.double()).square().sum()
    return float(10 * torch.log10(expected.double().square().sum() / noise))


@pytest.mark.parametrize("kind", KINDS)
def test_blocks_are_dequantized_as_the_package_does(kind: str, path: Path) -> None:
    file = open_gguf(path)
    info = file.tensors[kind]
    assert (info.shape, info.dtype, info.stored_as) == ((ROWS, COLUMNS), "bfloat16", kind)
    assert torch.equal(file.read(kind), reference(kind).to(torch.bfloat16))


@pytest.mark.parametrize("kind", KINDS)
def test_a_matrix_stays_in_few_bits_and_closer_than_in_bf16_where_codes_are_kept(
    kind: str, path: Path
) -> None:
    file = open_gguf(path)
    weight = file.read_quantized(kind)
    assert file.tensors[kind].few_bits == FewBits(weight.kind, weight.group)
    assert (weight.kind, weight.group) == (INT4 if kind in FOUR_BITS else INT8, 32)
    assert 8 * weight.nbytes / (ROWS * COLUMNS) == (5 if kind in FOUR_BITS else 8.5)
    least = {"Q8_0": 150, "Q4_0": 150, "Q4_1": 140, "Q4_K": 60}.get(kind, 43)
    assert decibels(weight.unpacked(torch.float32), reference(kind)) > least


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_plain_numbers_are_read_to_the_bit(kind: str, tmp_path: Path) -> None:
    numbers = torch.randn(8, 24, dtype=torch.float32)
    dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind]
    stored = numbers.to(dtype)
    data = stored.view(torch.uint8).numpy() if kind == "BF16" else stored.numpy()
    file = open_gguf(write_gguf(tmp_path / "a.gguf", {"w": (kind, data)}))
    assert file.read("w").dtype is dtype
    assert torch.equal(file.read("w"), stored)
    assert file.tensors["w"].few_bits is None


def test_infinite_scales_give_what_they_say_and_no_warning(tmp_path: Path) -> None:
    blocks = random_blocks("Q8_0", 2, 32)
    blocks[0, :2] = np.frombuffer(np.float16(np.inf).tobytes(), np.uint8)
    read = open_gguf(write_gguf(tmp_path / "a.gguf", {"w": ("Q8_0", blocks)})).read("w")
    assert not read[0].isfinite().any()
    assert read[1].isfinite().all()
