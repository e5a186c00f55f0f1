"""Files in few bits become folders that keep them where layers can, and draw what its weights draw."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from diffuserve import Engine, GenerationParams
from diffuserve.domain.models.quantization import Quantization
from diffuserve.models.checkpoint_files.few_bits import Rows, pieces_after
from diffuserve.models.checkpoint_files.import_plan import plan_import
from diffuserve.models.checkpoint_files.open_checkpoint import open_checkpoint
from diffuserve.models.checkpoint_files.write_model import write_model
from diffuserve.models.layers.quantized.quantized_linear import QuantizedLinear
from diffuserve.models.registry import check_model, load_pipeline
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.testing.checkpoints import write_flux_checkpoint
from diffuserve.testing.qwen_image_checkpoints import write_qwen_image_checkpoint
from diffuserve.testing.wan_checkpoints import write_wan_checkpoint
from diffuserve.testing.z_image_checkpoints import write_z_image_checkpoint
from support.gguf_files import quantized_file
from support.original_layouts import Layout, flux_layout, read_part, t5_layout, wan_layout, z_image_layout

INT8, FP8, INT4 = Quantization.INT8, Quantization.FP8, Quantization.INT4
E4M3 = torch.float8_e4m3fn
BLOCKS = (
    r"((double_|single_)?blocks\..*|transformer_blocks\..*(attn|mlp).*|layers\..*(qkv|out|w[123]))\.weight"
)
WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module")
def flux(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = {"num_attention_heads": 4, "attention_head_dim": 64, "axes_dims_rope": (16, 24, 24)}
    layers = {"num_layers": 1, "num_single_layers": 1}
    return write_flux_checkpoint(tmp_path_factory.mktemp("flux") / "base", seed=3, transformer=shape | layers)


@pytest.fixture(scope="module")
def wan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape: dict[str, Any] = {"num_attention_heads": 4, "attention_head_dim": 64, "ffn_dim": 512}
    return write_wan_checkpoint(tmp_path_factory.mktemp("wan") / "base", seed=3, num_layers=1, **shape)


@pytest.fixture(scope="module")
def qwen_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape: dict[str, Any] = {
        "num_attention_heads": 4,
        "attention_head_dim": 64,
        "axes_dims_rope": (16, 24, 24),
    }
    return write_qwen_image_checkpoint(
        tmp_path_factory.mktemp("qwen-image") / "base", seed=3, num_layers=1, **shape
    )


@pytest.fixture(scope="module")
def z_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_z_image_checkpoint(tmp_path_factory.mktemp("z-image") / "base", seed=3)


def imported(file: Path, base: Path, folder: Path) -> tuple[Path, list[str]]:
    """Import a file, and return its folder with what was said of its numbers."""
    said: list[str] = []
    write_model(plan_import(file, str(base)), folder / "made", tell=said.append)
    return folder / "made", said


def gguf_of(
    base: Path, layout: Layout, kinds: Mapping[str, str], folder: Path, architecture: str = "flux"
) -> Path:
    tensors = layout(read_part(base, "transformer"))
    return quantized_file(folder / "file.gguf", tensors, kinds, architecture)


def drawn(folder: Path) -> np.ndarray:
    params = GenerationParams(prompt="a cat", seed=1, width=64, height=64, num_inference_steps=2)
    with Engine.load(str(folder), device="cpu", dtype="float32") as engine:
        return np.asarray(engine.generate(params).images[0], dtype=np.float64)


def decibels(found: np.ndarray, expected: np.ndarray) -> float:
    return float(10 * np.log10(255**2 / np.square(found - expected).mean().clip(1e-9)))


def layer_of(folder: Path, name: str) -> QuantizedLinear:
    pipeline: Any = load_pipeline(str(folder), LoadPlan(torch.device("cpu"), torch.float32))
    transformer = pipeline.experts[0] if hasattr(pipeline, "experts") else pipeline.transformer
    layer = transformer.get_submodule(name)
    assert isinstance(layer, QuantizedLinear)
    return layer


# Each layout in one kind of blocks, and the first in both: how blocks are read does not go by the layout.
@pytest.mark.parametrize(
    ("model", "layout", "architecture", "kind", "least"),
    [
        ("flux", flux_layout, "flux", "Q8_0", 42),
        ("flux", flux_layout, "flux", "Q4_0", 22),
        ("qwen_image", t5_layout, "qwen_image", "Q8_0", 42),
        ("wan", wan_layout, "wan", "Q4_0", 22),
        ("z_image", z_image_layout, "lumina2", "Q8_0", 42),
        pytest.param("qwen_image", t5_layout, "qwen_image", "Q4_0", 22, marks=pytest.mark.slow),
        pytest.param("wan", wan_layout, "wan", "Q8_0", 42, marks=pytest.mark.slow),
        pytest.param("z_image", z_image_layout, "lumina2", "Q4_0", 22, marks=pytest.mark.slow),
    ],
)
def test_a_gguf_file_draws_what_its_weights_drew_but_for_their_bits(
    kind: str,
    least: float,
    model: str,
    layout: Layout,
    architecture: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    base: Path = request.getfixturevalue(model)
    folder, said = imported(gguf_of(base, layout, {BLOCKS: kind}, tmp_path, architecture), base, tmp_path)
    assert said[0].startswith("transformer: weights in few bits")
    assert said[0].endswith(f" in {kind}")
    assert decibels(drawn(folder), drawn(base)) > least


def test_all_weights_become_floats_where_that_is_asked_for(flux: Path, tmp_path: Path) -> None:
    file = gguf_of(flux, flux_layout, {BLOCKS: "Q8_0"}, tmp_path)
    write_model(plan_import(file, str(flux)), tmp_path / "made", keeps_few_bits=False)
    assert {tensor.dtype for tensor in load_file(tmp_path / "made" / WEIGHTS).values()} == {
        torch.bfloat16,
        torch.float32,
    }
    check_model(str(tmp_path / "made"), FP8)


def test_parts_of_a_joined_matrix_keep_their_codes(flux: Path, tmp_path: Path) -> None:
    """FLUX.1's files have queries, keys, values and the feed-forward layer's input in one matrix."""
    file = gguf_of(flux, flux_layout, {BLOCKS: "Q4_K"}, tmp_path)
    layer = layer_of(imported(file, flux, tmp_path)[0], "single_transformer_blocks.0.attn.to_qkv")
    whole = open_checkpoint(file).read_quantized("single_blocks.0.linear1.weight").rows(0, 3 * 256)
    assert (layer.kind, layer.group) == (INT4, 32)
    assert torch.equal(layer.quantized.codes, whole.codes)
    assert torch.equal(layer.quantized.scale, whole.scale)
    assert layer.quantized.zero is not None
    assert torch.equal(layer.quantized.zero, whole.zero)


def test_parts_of_a_fused_layer_that_differ_meet_in_8_bits(wan: Path, tmp_path: Path) -> None:
    """Files of mixed kinds give values more bits than queries and keys."""
    kinds = {r".*self_attn\.v\.weight": "Q6_K", BLOCKS: "Q4_K"}
    file = gguf_of(wan, wan_layout, kinds, tmp_path, "wan")
    folder, said = imported(file, wan, tmp_path)
    assert said[0].endswith("9 in Q4_K, 1 in Q6_K")
    layer = layer_of(folder, "blocks.0.attn1.to_qkv")
    assert (layer.kind, layer.group) == (INT8, 32)
    expected = torch.cat([open_checkpoint(file).read(f"blocks.0.self_attn.{part}.weight") for part in "qkv"])
    error = layer.quantized.unpacked(torch.float32) - expected.float()
    assert error.square().sum() < 10**-4.3 * expected.float().square().sum()


def test_layers_on_which_all_depends_are_dequantized_and_that_is_said(flux: Path, tmp_path: Path) -> None:
    folder, said = imported(gguf_of(flux, flux_layout, {".*": "Q8_0"}, tmp_path), flux, tmp_path)
    assert said[1].startswith("transformer: weights that become bfloat16")
    written = load_file(folder / WEIGHTS)
    assert written["transformer_blocks.0.norm1.linear.weight"].dtype is torch.bfloat16
    assert written["transformer_blocks.0.ff.net.2.weight"].dtype is torch.int8
    assert (folder / WEIGHTS).stat().st_size < 0.6 * (flux / WEIGHTS).stat().st_size


def test_models_whose_layers_are_not_ours_are_dequantized(
    qwen_image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffuserve.models.checkpoint_files.write_model.known_families", dict)
    file = gguf_of(qwen_image, t5_layout, {BLOCKS: "Q8_0"}, tmp_path, "qwen_image")
    folder, said = imported(file, qwen_image, tmp_path)
    assert [line.partition(":")[2].partition(":")[0] for line in said] == [" weights that become bfloat16"]
    found, expected = load_file(folder / WEIGHTS), load_file(qwen_image / WEIGHTS)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name].float(), tensor, rtol=0, atol=float(tensor.abs().max()) / 80)


def scaled(name: str, weight: Tensor) -> dict[str, Tensor]:
    scale = weight.abs().max() / 448
    return {name: (weight / scale).to(E4M3), name.replace(".weight", ".scale_weight"): scale}


def cast(name: str, weight: Tensor) -> dict[str, Tensor]:
    return {name: weight.to(E4M3)}


def by_row(name: str, weight: Tensor) -> dict[str, Tensor]:
    scale = weight.abs().amax(1, keepdim=True) / 448
    return {name: (weight / scale).to(E4M3), f"{name}_scale": scale}


@pytest.mark.parametrize("store", [scaled, cast, by_row])
def test_fp8_stays_fp8_to_the_bit(
    store: Callable[[str, Tensor], dict[str, Tensor]], flux: Path, tmp_path: Path
) -> None:
    tensors: dict[str, Tensor] = {}
    for name, tensor in flux_layout(read_part(flux, "transformer")).items():
        is_matrix = tensor.ndim == 2 and "blocks." in name
        tensors |= store(name, tensor) if is_matrix else {name: tensor.contiguous()}
    save_file(tensors, tmp_path / "file.safetensors")
    folder, said = imported(tmp_path / "file.safetensors", flux, tmp_path)
    assert said[0].startswith("transformer: weights in few bits")
    layer = layer_of(folder, "transformer_blocks.0.attn.to_qkv")
    stored = open_checkpoint(tmp_path / "file.safetensors").read_quantized(
        "double_blocks.0.img_attn.qkv.weight"
    )
    assert layer.kind is FP8
    assert torch.equal(layer.quantized.unpacked(torch.float32), stored.unpacked(torch.float32))
    assert decibels(drawn(folder), drawn(flux)) > 30


def test_rows_are_followed_through_cuts_and_joins_alone() -> None:
    whole = (torch.Size((6, 4)), (Rows("a", 0, 6),))
    halves = [torch.Size((3, 4))] * 2
    first, second = (Rows("a", 0, 3),), (Rows("a", 3, 6),)
    assert pieces_after("chunk", [whole], halves) == [first, second]
    assert pieces_after("cat", [(halves[0], second), (halves[1], first)], [whole[0]]) == [second + first]
    swapped = (whole[0], second + first)
    parts = [torch.Size((2, 4)), torch.Size((4, 4))]
    assert pieces_after("split", [swapped], parts) == [
        (Rows("a", 3, 5),),
        (Rows("a", 5, 6), Rows("a", 0, 3)),
    ]
    assert pieces_after("chunk", [whole], [torch.Size((6, 2))] * 2) == [None, None]
    assert pieces_after("cat", [whole, whole], [torch.Size((6, 8))]) == [None]
    assert pieces_after("cat", [whole, (torch.Size((1, 4)), None)], [torch.Size((7, 4))]) == [None]
    assert pieces_after("mul", [whole], [whole[0]]) == [None]
