"""Weights of 8 bits with the scales of several programs: what they stand for, and what stays in 8 bits."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.quantization import Quantization
from diffuserve.models.checkpoint_files.checkpoint_file import CheckpointFile, FewBits
from diffuserve.models.checkpoint_files.open_checkpoint import open_checkpoint

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
ROWS, COLUMNS = 8, 16


def codes(dtype: torch.dtype = E4M3) -> Tensor:
    numbers = torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0)) * 100
    return numbers.to(dtype)


def opened(tmp_path: Path, tensors: dict[str, Tensor]) -> CheckpointFile:
    save_file(tensors, tmp_path / "a.safetensors")
    return open_checkpoint(tmp_path / "a.safetensors")


SCALES = {
    "one number of ComfyUI": ("a.scale_weight", torch.tensor(0.003)),
    "one number in a vector": ("a.weight_scale", torch.tensor([0.003])),
    "one number in bf16": ("a.weight_scale", torch.tensor(0.003).bfloat16()),
    "one for each row": ("a.weight_scale", torch.linspace(0.001, 0.01, ROWS)),
    "one for each row, upright": ("a.weight_scale", torch.linspace(0.001, 0.01, ROWS)[:, None]),
    "blocks": ("a.weight_scale_inv", torch.linspace(0.001, 0.01, 4).view(2, 2)),
}


@pytest.mark.parametrize(("name", "scale"), SCALES.values(), ids=SCALES)
def test_a_weight_is_its_codes_times_its_scale(name: str, scale: Tensor, tmp_path: Path) -> None:
    others = {
        "a.bias": torch.ones(ROWS),
        "a.scale_input": torch.ones(1),
        "scaled_fp8": torch.zeros(0).to(E4M3),
    }
    file = opened(tmp_path, {"a.weight": codes(), name: scale, **others})
    assert {key: info.dtype for key, info in file.tensors.items()} == {
        "a.weight": "bfloat16",
        "a.bias": "float32",
    }
    whole = scale.float()
    if name == "a.weight_scale_inv":
        whole = whole.repeat_interleave(ROWS // 2, 0).repeat_interleave(COLUMNS // 2, 1)
    expected = codes().float() * (whole[:, None] if whole.shape == (ROWS,) else whole)
    assert torch.equal(file.read("a.weight"), expected.bfloat16())
    if name == "a.weight_scale_inv":
        assert file.tensors["a.weight"].few_bits is None
    else:
        assert file.tensors["a.weight"].few_bits == FewBits(Quantization.FP8)
        kept = file.read_quantized("a.weight")
        torch.testing.assert_close(kept.unpacked(torch.float32), expected, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_a_plain_cast_is_read_exactly(dtype: torch.dtype, tmp_path: Path) -> None:
    file = opened(tmp_path, {"a.weight": codes(dtype), "a.bias": codes(dtype)[0].clone()})
    assert torch.equal(file.read("a.weight").float(), codes(dtype).float())
    assert torch.equal(file.read("a.bias").float(), codes(dtype)[0].float())
    assert file.tensors["a.bias"].few_bits is None
    if dtype is E5M2:
        assert file.tensors["a.weight"].few_bits is None
    else:
        assert torch.equal(file.read_quantized("a.weight").unpacked(torch.float32), codes().float())


def test_integers_with_scales_are_weights_and_others_are_not(tmp_path: Path) -> None:
    integers = torch.arange(ROWS * COLUMNS, dtype=torch.int8).view(ROWS, COLUMNS)
    tensors = {"a.weight": integers, "a.weight_scale": torch.full((ROWS,), 0.5), "ids": integers.clone()}
    file = opened(tmp_path, tensors)
    assert torch.equal(file.read("a.weight").float(), integers * 0.5)
    assert file.read_quantized("a.weight").kind is Quantization.INT8
    assert torch.equal(file.read("ids"), integers)


def test_files_of_other_numbers_stay_as_they_are(tmp_path: Path) -> None:
    file = opened(tmp_path, {"a.weight": torch.ones(2, 2), "a.weight_scale": torch.ones(1)})
    assert set(file.tensors) == {"a.weight", "a.weight_scale"}


@pytest.mark.parametrize("shape", [(3,), (ROWS, 3), (3, 1), (2, 2, 1), (0,)])
def test_scales_that_do_not_fit_are_refused(shape: tuple[int, ...], tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match=r"a.weight_scale of shape .* fits no a.weight"):
        opened(tmp_path, {"a.weight": codes(), "a.weight_scale": torch.ones(shape)})


def test_scales_that_are_exponents_are_refused(tmp_path: Path) -> None:
    scale = torch.zeros(ROWS, COLUMNS // 4, dtype=torch.uint8)
    with pytest.raises(InvalidModel, match=r"is in U8, as in MXFP8; .*--quantization fp8"):
        opened(tmp_path, {"a.weight": codes(), "a.weight_scale": scale})
