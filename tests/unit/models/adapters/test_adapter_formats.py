"""Adapter files of every format give the pairs that diffusers' own converters give."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.loaders import lora_conversion_utils as reference
from safetensors.torch import save_file
from torch import Tensor

from diffuserve.models.adapters.files.adapter_file import open_adapter
from diffuserve.models.adapters.files.adapter_plan import plan_adapter
from diffuserve.models.adapters.files.read_adapter import read_adapter
from diffuserve.models.adapters.files.recognize_adapter import recognize_adapter

Tensors = dict[str, Tensor]
RANK, WIDTH = 2, 12

FLUX = {
    "double_blocks.0.img_attn.qkv": (WIDTH, 3 * WIDTH),
    "double_blocks.0.txt_attn.qkv": (WIDTH, 3 * WIDTH),
    "double_blocks.0.img_attn.proj": (WIDTH, WIDTH),
    "double_blocks.0.img_mlp.0": (WIDTH, 4 * WIDTH),
    "double_blocks.0.txt_mlp.2": (4 * WIDTH, WIDTH),
    "double_blocks.0.img_mod.lin": (WIDTH, 6 * WIDTH),
    "single_blocks.0.linear1": (WIDTH, 7 * 3072),  # the width that the reference takes for granted
    "single_blocks.0.linear2": (5 * WIDTH, WIDTH),
    "single_blocks.0.modulation.lin": (WIDTH, 3 * WIDTH),
}
FLUX2 = {
    "double_blocks.0.img_attn.qkv": (WIDTH, 3 * WIDTH),
    "double_blocks.0.txt_attn.proj": (WIDTH, WIDTH),
    "double_blocks.0.img_mlp.0": (WIDTH, 6 * WIDTH),
    "single_blocks.0.linear1": (WIDTH, 9 * WIDTH),
    "single_blocks.0.linear2": (4 * WIDTH, WIDTH),
    "img_in": (WIDTH, WIDTH),
    "time_in.in_layer": (WIDTH, WIDTH),
}
Z_IMAGE = {
    "layers.0.attention.to_q": (WIDTH, WIDTH),
    "layers.11.attention.to_out.0": (WIDTH, WIDTH),
    "layers.0.feed_forward.w1": (WIDTH, 2 * WIDTH),
    "noise_refiner.0.adaLN_modulation.0": (WIDTH, 4 * WIDTH),
    "context_refiner.1.feed_forward.w2": (2 * WIDTH, WIDTH),
    "cap_embedder.1": (WIDTH, WIDTH),
}
QWEN_IMAGE = {
    "transformer_blocks.0.attn.to_q": (WIDTH, WIDTH),
    "transformer_blocks.0.attn.add_k_proj": (WIDTH, WIDTH),
    "transformer_blocks.41.attn.to_add_out": (WIDTH, WIDTH),
    "transformer_blocks.0.img_mlp.net.0.proj": (WIDTH, 4 * WIDTH),
    "transformer_blocks.0.txt_mod.1": (WIDTH, 6 * WIDTH),
    "proj_out": (WIDTH, WIDTH),
}
WAN = {
    f"blocks.0.{layer}": (WIDTH, WIDTH)
    for attention in ("self_attn", "cross_attn")
    for layer in (f"{attention}.q", f"{attention}.k", f"{attention}.v", f"{attention}.o")
} | {"blocks.0.ffn.0": (WIDTH, 4 * WIDTH), "blocks.0.ffn.2": (4 * WIDTH, WIDTH)}
Layers = Mapping[str, tuple[int, int]]


def _kohya(layers: Layers, prefix: str = "lora_unet_") -> Tensors:
    return _named(layers, lambda name: prefix + name.replace(".", "_"), "lora_down", "lora_up", alpha=True)


def _comfy(layers: Layers) -> Tensors:
    return _named(layers, lambda name: f"diffusion_model.{name}", "lora_A", "lora_B", alpha=False)


def _named(layers: Layers, name: Callable[[str], str], down: str, up: str, *, alpha: bool) -> Tensors:
    """Return the same random numbers for the same layers, whatever their names."""
    torch.manual_seed(0)
    tensors: Tensors = {}
    for layer, (inputs, outputs) in layers.items():
        tensors[f"{name(layer)}.{down}.weight"] = torch.randn(RANK, inputs)
        tensors[f"{name(layer)}.{up}.weight"] = torch.randn(outputs, RANK)
        if alpha:
            tensors[f"{name(layer)}.alpha"] = torch.tensor(3.0)
    return tensors


def _read(path: Path, tensors: Tensors, family: str, metadata: dict[str, str] | None = None) -> Tensors:
    """Return what a file adds to weights, by the name of component and layer."""
    file = path / "adapter.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file, metadata)
    opened = open_adapter(file)
    assert family in recognize_adapter(opened)
    components = read_adapter(plan_adapter(opened, family))
    return {
        f"{component}.{layer}": _product(pair.down, pair.up) * pair.scale
        for component, pairs in components.items()
        for layer, pair in pairs.items()
    }


def _product(down: Tensor, up: Tensor) -> Tensor:
    return (up.flatten(1) @ down.flatten(1)).view(up.shape[0], *down.shape[1:])


def _products(converted: Mapping[str, Tensor]) -> Tensors:
    """Return what the reference's pairs add."""
    downs = {name: tensor for name, tensor in converted.items() if ".lora_A." in name}
    return {
        name.partition(".lora_A.")[0]: _product(down, converted[name.replace("lora_A", "lora_B")])
        for name, down in downs.items()
    }


def _same(ours: Tensors, theirs: Tensors) -> None:
    assert ours.keys() == theirs.keys()
    for name, product in ours.items():
        torch.testing.assert_close(product, theirs[name], rtol=0, atol=2e-5, msg=name)


@pytest.mark.parametrize(
    ("family", "tensors", "convert"),
    [
        ("flux", _kohya(FLUX), reference._convert_kohya_flux_lora_to_diffusers),
        ("flux2", _kohya(FLUX2), reference._convert_kohya_flux2_lora_to_diffusers),
        ("flux2", _comfy(FLUX2), reference._convert_non_diffusers_flux2_lora_to_diffusers),
        ("z_image", _kohya(Z_IMAGE), reference._convert_non_diffusers_z_image_lora_to_diffusers),
        ("z_image", _comfy(Z_IMAGE), reference._convert_non_diffusers_z_image_lora_to_diffusers),
        ("qwen_image", _kohya(QWEN_IMAGE), reference._convert_non_diffusers_qwen_lora_to_diffusers),
        ("qwen_image", _comfy(QWEN_IMAGE), reference._convert_non_diffusers_qwen_lora_to_diffusers),
        ("wan", _kohya(WAN), reference._convert_musubi_wan_lora_to_diffusers),
        ("wan", _comfy(WAN), reference._convert_non_diffusers_wan_lora_to_diffusers),
    ],
)
def test_equals_the_reference(
    tmp_path: Path, family: str, tensors: Tensors, convert: Callable[[Tensors], Any]
) -> None:
    _same(_read(tmp_path, tensors, family), _products(convert(dict(tensors))))


def test_biases_of_wan_are_those_of_the_reference(tmp_path: Path) -> None:
    tensors = {name.replace("lora_A", "lora_down"): each for name, each in _comfy(WAN).items()}
    tensors = {name.replace("lora_B", "lora_up"): each for name, each in tensors.items()}
    for layer, (_, outputs) in WAN.items():
        tensors[f"diffusion_model.{layer}.diff_b"] = torch.randn(outputs)
    tensors |= {
        "diffusion_model.blocks.0.self_attn.q.alpha": torch.tensor(3.0),
        "diffusion_model.head.head.diff": torch.randn(WIDTH, WIDTH),
        "diffusion_model.head.head.diff_b": torch.randn(WIDTH),
    }
    left_out = {
        "diffusion_model.time_projection.1.diff_b": torch.randn(6 * WIDTH),
        "diffusion_model.blocks.0.norm3.diff_b": torch.randn(WIDTH),
        "diffusion_model.patch_embedding.diff": torch.randn(WIDTH, WIDTH),
    }
    converted = reference._convert_non_diffusers_wan_lora_to_diffusers({**tensors, **left_out})
    _same(_read(tmp_path, {**tensors, **left_out}, "wan"), _products(converted))
    plan = plan_adapter(open_adapter(tmp_path / "adapter.safetensors"), "wan")
    assert set(plan.ignored) == {*left_out}
    for layer, pair in read_adapter(plan)["transformer"].items():
        assert pair.bias is not None
        assert torch.equal(pair.bias, converted[f"transformer.{layer}.lora_B.bias"])


def test_a_bias_of_peft_counts_as_its_matrices_do(tmp_path: Path) -> None:
    layers = {"blocks.1.attn2.to_q": (WIDTH, WIDTH)}
    tensors = _named(layers, lambda name: f"transformer.{name}", "lora_A", "lora_B", alpha=True)
    bias = tensors["transformer.blocks.1.attn2.to_q.lora_B.bias"] = torch.randn(WIDTH)
    save_file(tensors, tmp_path / "adapter.safetensors")
    [pair] = read_adapter(plan_adapter(open_adapter(tmp_path / "adapter.safetensors"), "wan"))[
        "transformer"
    ].values()
    assert pair.bias is not None
    torch.testing.assert_close(pair.bias, 1.5 * bias)


def test_files_may_name_the_second_transformer_of_wan(tmp_path: Path) -> None:
    layers = {"blocks.1.attn2.to_q": (WIDTH, WIDTH)}
    tensors = _named(layers, lambda name: f"transformer_2.{name}", "lora_A", "lora_B", alpha=False)
    assert set(_read(tmp_path, tensors, "wan")) == {"transformer_2.blocks.1.attn2.to_q"}


def test_formats_of_flux_are_equal(tmp_path: Path) -> None:
    plain = _read(tmp_path, _comfy(FLUX), "flux")
    scaled = {name: product * 3 / RANK for name, product in plain.items()}
    _same(_read(tmp_path, _kohya(FLUX), "flux"), scaled)
    as_fal = _named(FLUX, lambda name: f"base_model.model.{name}", "lora_A", "lora_B", alpha=False)
    _same(_read(tmp_path, as_fal, "flux"), plain)


def test_xlabs(tmp_path: Path) -> None:
    layers = {
        "double_blocks.0.processor.qkv_lora1": (WIDTH, 3 * WIDTH),
        "double_blocks.0.processor.qkv_lora2": (WIDTH, 3 * WIDTH),
        "double_blocks.0.processor.proj_lora2": (WIDTH, WIDTH),
        "single_blocks.0.processor.qkv_lora": (WIDTH, 3 * WIDTH),
        "single_blocks.0.processor.proj_lora": (5 * WIDTH, WIDTH),
    }
    tensors = _named(layers, str, "down", "up", alpha=False)
    converted = reference._convert_xlabs_flux_lora_to_diffusers(dict(tensors))
    _same(_read(tmp_path, tensors, "flux"), _products(converted))


def test_diffusers_own_format_with_and_without_alphas(tmp_path: Path) -> None:
    layers = {
        "single_transformer_blocks.0.attn.to_q": (WIDTH, WIDTH),
        "single_transformer_blocks.0.proj_mlp": (WIDTH, WIDTH),
    }
    tensors = _named(layers, lambda name: f"transformer.{name}", "lora_A", "lora_B", alpha=False)
    plain = _products(tensors)
    _same(_read(tmp_path, tensors, "flux"), plain)
    metadata = (
        '{"transformer.lora_alpha": 8, "transformer.r": 2, "transformer.alpha_pattern": {"proj_mlp": 3}}'
    )
    first, second = plain
    stated = {first: plain[first] * 4, second: plain[second] * 1.5}
    _same(_read(tmp_path, tensors, "flux", {"lora_adapter_metadata": metadata}), stated)
    # A layer without an alpha gets the commonest.
    one_alpha = {**tensors, f"{first}.alpha": torch.tensor(4.0)}
    _same(_read(tmp_path, one_alpha, "flux"), {name: product * 2 for name, product in plain.items()})


def test_flux_leaves_out_what_the_reference_does(tmp_path: Path) -> None:
    embedder = {"img_in": (WIDTH, WIDTH), "final_layer.linear": (WIDTH, WIDTH)}
    save_file(_kohya(FLUX | embedder), tmp_path / "adapter.safetensors")
    plan = plan_adapter(open_adapter(tmp_path / "adapter.safetensors"), "flux")
    assert {name.partition(".")[0] for name in plan.ignored} == {
        "lora_unet_img_in",
        "lora_unet_final_layer_linear",
    }


def test_sdxl_of_kohya_with_its_block_numbers(tmp_path: Path) -> None:
    from diffusers.utils import convert_state_dict_to_peft, convert_unet_state_dict_to_peft

    unet = _kohya(
        {
            "input_blocks.4.1.transformer_blocks.0.attn1.to_q": (WIDTH, WIDTH),
            "input_blocks.4.1.transformer_blocks.1.attn2.to_out.0": (WIDTH, WIDTH),
            "middle_block.1.transformer_blocks.9.ff.net.0.proj": (WIDTH, 8 * WIDTH),
            "output_blocks.3.1.proj_in": (WIDTH, WIDTH),
            "label_emb.0.0": (WIDTH, WIDTH),
        }
    )
    kernels = {"lora_unet_input_blocks_5_0_in_layers_2": (3, 3), "lora_unet_input_blocks_3_0_op": (3, 3)}
    kernels["lora_unet_output_blocks_2_2_conv"] = (3, 3)
    for name, sides in kernels.items():
        unet[f"{name}.lora_down.weight"] = torch.randn(RANK, WIDTH, *sides)
        unet[f"{name}.lora_up.weight"] = torch.randn(WIDTH, RANK, 1, 1)
        unet[f"{name}.alpha"] = torch.tensor(3.0)
    attention = "text_model.encoder.layers.3.self_attn"
    layers = {f"{attention}.q_proj": (WIDTH, WIDTH), f"{attention}.out_proj": (WIDTH, WIDTH)}
    text = _kohya(layers, "lora_te1_") | _kohya(layers, "lora_te2_")
    tensors = unet | text

    class Config:
        layers_per_block = 2

    mapped = reference._maybe_map_sgm_blocks_to_diffusers(dict(tensors), Config())
    converted, _ = reference._convert_non_diffusers_lora_to_diffusers(mapped)
    peft = convert_unet_state_dict_to_peft({k: v for k, v in converted.items() if k.startswith("unet.")})
    texts = convert_state_dict_to_peft({k: v for k, v in converted.items() if k.startswith("text_")})
    expected = {name: product * 3 / RANK for name, product in _products(peft | texts).items()}
    _same(_read(tmp_path, tensors, "stable_diffusion"), expected)
