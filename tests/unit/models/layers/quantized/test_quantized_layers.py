"""The layers that are quantized, by their full names: those of checkpoints and those of modules."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from diffuserve.domain.models.quantization import Quantization
from diffuserve.models.bundled import bundled_models
from diffuserve.models.families.flux.config import TRANSFORMER_LAYERS as FLUX_LAYERS
from diffuserve.models.families.flux.config import FluxConfig
from diffuserve.models.families.flux.transformer import FluxTransformer
from diffuserve.models.families.stable_diffusion.config import UNET_LAYERS
from diffuserve.models.families.wan.config import TRANSFORMER_LAYERS as WAN_LAYERS
from diffuserve.models.layers.attention import choose_kernel
from diffuserve.models.layers.quantized.quantized_layers import QuantizedLayers
from diffuserve.models.layers.quantized.quantized_linear import QuantizedLinear, quantize_layers
from diffuserve.models.registry import load_pipeline, open_quantizable
from diffuserve.models.text.quantized_layers import CLIP_LAYERS, T5_LAYERS
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import tensor_names
from diffuserve.testing.unet_checkpoints import write_unet_checkpoint
from diffuserve.testing.wan_checkpoints import write_wan_checkpoint

NONE, INT8, FP8, INT4 = Quantization


@pytest.mark.parametrize(
    ("layers", "taken", "left"),
    [
        (
            FLUX_LAYERS,
            (
                "single_transformer_blocks.37.proj_out",
                "single_transformer_blocks.0.attn.to_qkv",
                "transformer_blocks.18.attn.add_k_proj",
                "transformer_blocks.0.ff_context.net.2",
            ),
            (
                "proj_out",
                "x_embedder",
                "context_embedder",
                "time_text_embed.timestep_embedder.linear_1",
                "transformer_blocks.0.norm1.linear",
                "single_transformer_blocks.0.norm.linear",
                "norm_out.linear",
            ),
        ),
        (
            WAN_LAYERS,
            ("blocks.0.attn1.to_qkv", "blocks.29.attn2.add_v_proj", "blocks.0.ffn.net.0.proj"),
            ("proj_out", "patch_embedding", "condition_embedder.time_proj"),
        ),
        (
            UNET_LAYERS,
            (
                "down_blocks.0.attentions.1.transformer_blocks.0.attn2.to_out.0",
                "mid_block.attentions.0.transformer_blocks.9.ff.net.0.proj",
            ),
            (
                "time_embedding.linear_1",
                "down_blocks.0.attentions.1.proj_in",
                "down_blocks.0.resnets.0.time_emb_proj",
            ),
        ),
        (T5_LAYERS, ("encoder.block.23.layer.1.DenseReluDense.wi_1",), ("shared", "lm_head")),
        (CLIP_LAYERS, ("text_model.encoder.layers.0.mlp.fc2",), ("text_projection",)),
    ],
)
def test_names_are_matched_whole(
    layers: QuantizedLayers, taken: tuple[str, ...], left: tuple[str, ...]
) -> None:
    assert [layers.kind_of(name, FP8) is not NONE for name in taken] == [True] * len(taken)
    assert [layers.kind_of(name, FP8) is NONE for name in left] == [True] * len(left)
    assert {layers.kind_of(name, NONE) for name in taken} == {NONE}


@pytest.mark.parametrize("wanted", [INT8, FP8, INT4])
def test_text_encoders_are_in_8_bit_integers(wanted: Quantization) -> None:
    assert CLIP_LAYERS.kind_of("text_model.encoder.layers.0.mlp.fc2", wanted) is INT8
    assert FLUX_LAYERS.kind_of("single_transformer_blocks.0.proj_out", wanted) is wanted


MODULES: dict[str, Callable[[Any], list[nn.Module]]] = {
    "flux": lambda flux: [flux.transformer, flux.text_encoder.clip, flux.text_encoder.t5],
    "sd": lambda diffusion: [diffusion.unet, *diffusion.text.encoders],
    "xl": lambda diffusion: [diffusion.unet, *diffusion.text.encoders],
    "t2v": lambda wan: [*wan.experts, wan.text.model],
    "i2v": lambda wan: [*wan.experts, wan.text.model],
}
"""The quantized modules of a pipeline, by the kind of its folder."""


@pytest.fixture(scope="module", params=list(MODULES))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Return a kind of folders, and one of it."""
    kind, target = request.param, tmp_path_factory.mktemp("models")
    if kind == "flux":
        return kind, bundled_models()["tiny-flux"]
    is_wan = kind.endswith("2v")
    return kind, write_wan_checkpoint(target, kind=kind) if is_wan else write_unet_checkpoint(
        target, kind=kind
    )


def test_what_is_quantized_lies_within_blocks(model: tuple[str, Path]) -> None:
    """Embedders and the last product, on which everything depends, are outside of them."""
    blocks = re.compile(r"(.*\.)?(\w*blocks|block|layers)\.\d+\..*")
    for taken in quantized_weights(model[1]).values():
        assert taken
        assert all(blocks.fullmatch(name) for name in taken)


def test_modules_have_the_layers_quantized_that_their_files_have(model: tuple[str, Path]) -> None:
    kind, folder = model
    pipeline = load_pipeline(str(folder), LoadPlan(torch.device("cpu"), torch.float32, quantization=INT8))
    stored = sum(map(len, quantized_weights(folder).values()))
    layers = [pair for module in MODULES[kind](pipeline) for pair in module.named_modules()]
    assert stored == sum(num_fused(name) for name, layer in layers if isinstance(layer, QuantizedLinear))


def quantized_weights(folder: Path) -> dict[str, list[str]]:
    """Return the names of the layers that are quantized in the files of each component."""
    opened, _, components = open_quantizable(str(folder))
    return {
        component: [
            layer
            for name in sorted(tensor_names(opened.weights(component)))
            if layers.kind_of(layer := name.removesuffix(".weight"), INT8) is not NONE
        ]
        for component, layers in components.items()
    }


def num_fused(name: str) -> int:
    """Return how many of the files' products a layer is."""
    fused = {"to_qkv": 3, "add_qkv_proj": 3, "to_kv": 2, "to_added_kv": 2}
    return fused.get(name.rpartition(".")[2], 1)


def bytes_of(module: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in module.parameters())


@pytest.mark.parametrize(("kind", "share"), [(INT8, 0.64), (FP8, 0.64), (INT4, 0.48)])
def test_flux_1_takes_less_memory(kind: Quantization, share: float) -> None:
    """Leave the modulations, a quarter of its weights, as they are."""
    kernel = choose_kernel(torch.device("cpu"), torch.bfloat16)
    with torch.device("meta"):
        transformer = FluxTransformer(FluxConfig(), kernel).to(torch.bfloat16)
        before = bytes_of(transformer)
        quantize_layers(transformer, FLUX_LAYERS, kind)
    assert before > 23e9
    assert share - 0.02 <= bytes_of(transformer) / before <= share
