"""Folders whose weights have scales for small groups, as those that are made of GGUF files."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.quantization import SMALL_GROUP, Quantization
from diffuserve.models.bundled import bundled_models
from diffuserve.models.layers.quantized.quantization import quantize_weight
from diffuserve.models.layers.quantized.quantized_linear import QuantizedLinear
from diffuserve.models.registry import load_pipeline
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.prepared import NewCopy, WholeCopy

INT8, INT4 = Quantization.INT8, Quantization.INT4
TRANSFORMER = "transformer/diffusion_pytorch_model.safetensors"
BLOCK = "transformer_blocks.0."
KINDS = {
    "ff.net.2": INT4,
    "attn.to_out.0": INT8,
    "attn.to_q": INT4,
    "attn.to_k": INT4,
    "attn.to_v": INT8,
    "attn.add_q_proj": INT4,
    "attn.add_k_proj": INT4,
    "attn.add_v_proj": INT4,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write the bundled model with some weights of its first block in groups of 32."""
    folder = shutil.copytree(bundled_models()["tiny-flux"], tmp_path / "grouped")
    tensors = load_file(folder / TRANSFORMER)
    for layer, kind in KINDS.items():
        weight = quantize_weight(tensors.pop(name := f"{BLOCK}{layer}.weight"), kind, SMALL_GROUP)
        tensors |= {f"{name}{ending}": part.contiguous() for ending, part in weight.tensors.items()}
    save_file(tensors, folder / TRANSFORMER)
    return folder


def stored(folder: Path, layer: str) -> Tensor:
    """Return what a weight in a folder stands for."""
    plain = load_file(bundled_models()["tiny-flux"] / TRANSFORMER)[f"{BLOCK}{layer}.weight"]
    return quantize_weight(plain, KINDS[layer], SMALL_GROUP).unpacked(torch.float32)


def layer_of(folder: Path, name: str, plan: LoadPlan | None = None) -> QuantizedLinear:
    pipeline = load_pipeline(str(folder), plan or LoadPlan(torch.device("cpu"), torch.float32))
    layer = pipeline.transformer.get_submodule(f"{BLOCK}{name}")  # type: ignore[attr-defined]
    assert isinstance(layer, QuantizedLinear)
    return layer


@pytest.mark.parametrize("name", ["ff.net.2", "attn.to_out.0"])
def test_a_layer_takes_over_the_groups_of_its_weight(name: str, folder: Path) -> None:
    layer = layer_of(folder, name)
    assert (layer.kind, layer.group) == (KINDS[name], SMALL_GROUP)
    assert torch.equal(layer.quantized.unpacked(torch.float32), stored(folder, name))


def test_parts_of_one_kind_keep_their_codes_and_others_meet_in_8_bits(folder: Path) -> None:
    text = layer_of(folder, "attn.add_qkv_proj")
    parts = [stored(folder, f"attn.add_{part}_proj") for part in "qkv"]
    assert (text.kind, text.group) == (INT4, SMALL_GROUP)
    assert torch.equal(text.quantized.unpacked(torch.float32), torch.cat(parts))
    image = layer_of(folder, "attn.to_qkv")
    assert (image.kind, image.group) == (INT8, SMALL_GROUP)
    expected = torch.cat([stored(folder, f"attn.to_{part}") for part in "qkv"])
    found = image.quantized.unpacked(torch.float32)
    assert (found - expected).square().sum() < 1e-4 * expected.square().sum()


def test_a_prepared_copy_has_the_same_groups(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    written = LoadPlan(torch.device("cpu"), torch.float32, copy=NewCopy(tmp_path / "copy", lambda _: None))
    first = layer_of(folder, "ff.net.2", written).quantized
    read = LoadPlan(torch.device("cpu"), torch.float32, copy=WholeCopy(tmp_path / "copy", is_strict=True))
    again = layer_of(folder, "ff.net.2", read)
    assert again.quantized.group == SMALL_GROUP
    assert torch.equal(again.quantized.unpacked(torch.float32), first.unpacked(torch.float32))


@pytest.mark.parametrize("columns", [3, 7, 48])
def test_groups_of_another_size_are_refused(columns: int, folder: Path) -> None:
    tensors, name = load_file(folder / TRANSFORMER), f"{BLOCK}ff.net.2.weight"
    for ending in ("_scale", "_zero"):
        tensors[name + ending] = torch.ones(len(tensors[name]), columns, dtype=torch.float16)
    save_file(tensors, folder / TRANSFORMER)
    with pytest.raises(InvalidModel, match=r"ff\.net\.2"):
        layer_of(folder, "ff.net.2")
