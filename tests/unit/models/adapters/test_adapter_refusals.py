"""What cannot be applied is refused by the tensor's name, a foreign base by its shapes: by headers alone."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from diffuserve.domain.errors import InvalidAdapter, InvalidModel, InvalidParams
from diffuserve.domain.requests.adapter_use import AdapterUse
from diffuserve.models.adapters.files.adapter_file import open_adapter
from diffuserve.models.adapters.files.adapter_plan import plan_adapter
from diffuserve.models.adapters.files.base_layers import plan_for, plan_without_base
from diffuserve.models.adapters.files.read_adapter import read_adapter
from diffuserve.models.adapters.files.recognize_adapter import recognize_adapter
from diffuserve.models.adapters.sources import AdapterSources
from diffuserve.models.checkpoint_files.open_checkpoint import open_checkpoint
from diffuserve.models.folders.folder import ModelFolder

LAYER = "transformer_blocks.0.attn.to_q"
MODULE = f"transformer.{LAYER}"
Tensors = dict[str, Tensor]


def _pair(module: str = MODULE, inputs: int = 8, outputs: int = 8, rank: int = 2) -> Tensors:
    return {
        f"{module}.lora_A.weight": torch.randn(rank, inputs),
        f"{module}.lora_B.weight": torch.randn(outputs, rank),
    }


def _saved(folder: Path, tensors: Tensors, metadata: dict[str, str] | None = None) -> Path:
    save_file(tensors, folder / "adapter.safetensors", metadata)
    return folder / "adapter.safetensors"


@pytest.mark.parametrize(
    ("tensors", "told"),
    [
        (
            {f"{MODULE}.lora_magnitude_vector": torch.ones(8)},
            f"{MODULE}.lora_magnitude_vector is a magnitude of DoRA",
        ),
        ({f"{MODULE}.lokr_w1": torch.ones(2, 2)}, f"{MODULE}.lokr_w1 is a factor of LoKr"),
        ({f"{MODULE}.hada_w1_a": torch.ones(2, 2)}, f"{MODULE}.hada_w1_a is a factor of LoHa"),
        ({f"{MODULE}.lora_A.bias": torch.ones(8)}, f"{MODULE}.lora_A.bias adds to what is between"),
        ({f"{MODULE}.lora_B.bias": torch.ones(7)}, f"{MODULE}.lora_B.bias has the shape (7,)"),
        ({f"{MODULE}.diff_b": torch.ones(8)}, f"{MODULE}.diff_b adds to a bias"),
        ({f"{MODULE}.diff": torch.ones(8, 8)}, f"{MODULE}.diff changes a whole weight"),
        (
            _pair("transformer.transformer_blocks.0.attn.to_x"),
            "attn.to_x.lora_A.weight: FLUX.1 has no such layer",
        ),
        ({f"{MODULE}.alpha": torch.ones(3)}, f"{MODULE}.alpha has the shape (3,)"),
        ({"surprise.weight": torch.ones(2, 2)}, "surprise.weight is no part of a LoRA"),
        (_pair("double_blocks.0.txt_attn.qkv", outputs=25), "txt_attn.qkv.lora_B.weight: 25 outputs"),
        (
            _pair("single_transformer_blocks.0.proj_mlp", rank=4096),
            "proj_mlp.lora_A.weight has the rank 4,096",
        ),
        (
            {"double_blocks.0.img_mlp.0.lora_A.weight": torch.ones(2, 8)},
            "double_blocks.0.img_mlp.0 has no up matrix",
        ),
    ],
)
def test_what_cannot_be_applied_is_named(tmp_path: Path, tensors: Tensors, told: str) -> None:
    file = open_adapter(_saved(tmp_path, {**_pair(), **tensors}))
    with pytest.raises(InvalidAdapter) as refused:
        plan_adapter(file, "flux")
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("ending", "kind"),
    [
        ("hada_w1_a", "LoHa"),
        ("lokr_w1", "LoKr"),
        ("dora_scale", "DoRA"),
        ("oft_blocks", "OFT"),
    ],
)
def test_a_file_of_another_method_is_told_by_its_kind(tmp_path: Path, ending: str, kind: str) -> None:
    module = "lycoris_transformer_blocks_0_attn_to_q"
    file = open_adapter(_saved(tmp_path, {f"{module}.{ending}": torch.ones(2, 2)}))
    for read in (recognize_adapter, plan_without_base):
        with pytest.raises(InvalidAdapter, match=rf"{ending} is .* of {kind}, and LoRA alone is applied"):
            read(file)


def test_numbers_that_are_not_finite_are_named(tmp_path: Path) -> None:
    tensors = _pair()
    tensors[f"{MODULE}.lora_B.weight"][3, 1] = torch.nan
    plan = plan_adapter(open_adapter(_saved(tmp_path, tensors)), "flux")
    with pytest.raises(InvalidAdapter, match=r"to_q\.lora_B\.weight has numbers that are not finite"):
        read_adapter(plan)


@pytest.mark.parametrize("alpha", ["1e9", "NaN", "true", '"8"'])
def test_a_stated_alpha_is_bounded(tmp_path: Path, alpha: str) -> None:
    metadata = {"lora_adapter_metadata": f'{{"transformer.lora_alpha": {alpha}}}'}
    with pytest.raises(InvalidAdapter, match=r"transformer\.lora_alpha of its header"):
        plan_adapter(open_adapter(_saved(tmp_path, _pair(), metadata)), "flux")


@pytest.mark.parametrize("page", ["<!DOCTYPE html><html>Log in</html>", "\n<html>", "<?xml version='1.0'?>"])
def test_a_page_that_was_saved_in_place_of_weights_is_told(tmp_path: Path, page: str) -> None:
    (tmp_path / "ink.safetensors").write_text(page)
    with pytest.raises(InvalidAdapter, match="a web page, not weights: the download failed"):
        open_adapter(tmp_path / "ink.safetensors")
    with pytest.raises(InvalidModel, match="a web page, not weights"):
        open_checkpoint(tmp_path / "ink.safetensors")


def test_weights_whose_header_has_the_length_of_a_sign_are_no_page(tmp_path: Path) -> None:
    header = b'{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'.ljust(0x3C)
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    assert path.read_bytes()[:1] == b"<"
    assert list(open_checkpoint(path).tensors) == ["x"]


def test_pickles_folders_and_endless_headers_are_not_opened(tmp_path: Path) -> None:
    pickle, endless = tmp_path / "adapter.pt", tmp_path / "endless.safetensors"
    endless.write_bytes((2**40).to_bytes(8, "little"))
    for path, told in ((pickle, "alone"), (tmp_path / "no.safetensors", "no such"), (endless, "a header of")):
        with pytest.raises(InvalidAdapter, match=told):
            open_adapter(path)


def test_families_that_share_names_are_told_by_others(tmp_path: Path) -> None:
    attention = open_adapter(_saved(tmp_path, _pair()))
    assert recognize_adapter(attention) == ("flux", "flux2", "qwen_image")
    alone = open_adapter(_saved(tmp_path, {**_pair(), **_pair("transformer.transformer_blocks.0.img_mod.1")}))
    assert recognize_adapter(alone) == ("qwen_image",)
    with pytest.raises(InvalidAdapter, match="no LoRA for a model that takes adapters"):
        recognize_adapter(open_adapter(_saved(tmp_path, {"weight": torch.ones(2)})))


def _base(folder: Path, width: int) -> ModelFolder:
    (folder / "transformer").mkdir()
    index = {"_class_name": "FluxPipeline", "transformer": ["diffusers", "FluxTransformer2DModel"]}
    (folder / "model_index.json").write_text(json.dumps(index))
    weights = {f"{LAYER}.weight": torch.zeros(width, width)}
    save_file(weights, folder / "transformer" / "diffusion_pytorch_model.safetensors")
    return ModelFolder(folder)


def test_a_base_of_other_widths_or_layers_is_named(tmp_path: Path) -> None:
    base = _base(tmp_path, width=8)
    assert plan_for(open_adapter(_saved(tmp_path, _pair())), base).rank == 2
    with pytest.raises(InvalidAdapter, match=r"changes \(16, 8\) numbers .* which has \(8, 8\)"):
        plan_for(open_adapter(_saved(tmp_path, _pair(outputs=16))), base)
    for foreign in (MODULE.replace(".0.", ".7."), "unet.mid_block.attentions.0.proj_in"):
        with pytest.raises(InvalidAdapter, match=r"made for"):
            plan_for(open_adapter(_saved(tmp_path, _pair(foreign))), base)


def test_models_without_a_layout_know_their_own_layers(tmp_path: Path) -> None:
    (tmp_path / "transformer").mkdir()
    index = {"_class_name": "SanaPipeline", "transformer": ["diffusers", "SanaTransformer2DModel"]}
    (tmp_path / "model_index.json").write_text(json.dumps(index))
    layer, kernel = "transformer_blocks.0.attn1.to_q", "patch_embed.proj"
    weights = {f"{layer}.weight": torch.zeros(8, 8), f"{kernel}.weight": torch.zeros(8, 4, 2, 2)}
    save_file(weights, tmp_path / "transformer" / "diffusion_pytorch_model.safetensors")
    base = ModelFolder(tmp_path)
    for written in (f"transformer.{layer}", f"base_model.model.{layer}", "transformer_blocks_0_attn1_to_q"):
        plan = plan_for(open_adapter(_saved(tmp_path, _pair(written))), base)
        assert {component: [*pairs] for component, pairs in plan.pairs.items()} == {"transformer": [layer]}
    families, plan = plan_without_base(open_adapter(_saved(tmp_path, _pair(f"transformer.{layer}"))))
    assert (families, [*plan.pairs["transformer"]]) == (("any_pipeline",), [layer])
    for tensors, told in (
        (_pair(f"transformer.{layer}", outputs=16), r"changes \(16, 8\) numbers .* which has \(8, 8\)"),
        (_pair(f"transformer.{kernel}"), r"changes \(8, 8\) numbers .* which has \(8, 4, 2, 2\)"),
        (
            {**_pair(f"transformer.{layer}"), **_pair("transformer.x")},
            "x.lora_A.weight: SanaPipeline has no such",
        ),
    ):
        with pytest.raises(InvalidAdapter, match=told):
            plan_for(open_adapter(_saved(tmp_path, tensors)), base)


@pytest.mark.parametrize("given", ["text_model.", ""])
@pytest.mark.parametrize("held", ["text_model.", ""])
def test_text_encoders_have_the_name_of_their_module_or_not(tmp_path: Path, given: str, held: str) -> None:
    base, layer = _base(tmp_path, width=8), "encoder.layers.0.mlp.fc1"
    (tmp_path / "text_encoder").mkdir()
    weights = {f"{held}{layer}.weight": torch.zeros(8, 8)}
    save_file(weights, tmp_path / "text_encoder" / "model.safetensors")
    plan = plan_for(open_adapter(_saved(tmp_path, _pair(f"text_encoder.{given}{layer}"))), base)
    assert list(plan.pairs["text_encoder"]) == [f"text_model.{layer}"]


def test_a_fused_layer_beside_its_parts_says_nothing_new(tmp_path: Path) -> None:
    parts = [_pair(f"lora_unet_layers_0_attention_to_{name}") for name in ("q", "k", "v")]
    fused = _pair("lora_unet_layers_0_attention_qkv", outputs=24)
    file = open_adapter(_saved(tmp_path, {**parts[0], **parts[1], **parts[2], **fused}))
    assert plan_adapter(file, "z_image").ignored == tuple(sorted(fused))
    with pytest.raises(InvalidAdapter, match="to_q is changed twice"):
        plan_adapter(open_adapter(_saved(tmp_path, {**parts[0], **fused})), "z_image")


@pytest.mark.parametrize(("name", "way"), [("copper-moon", "ships with tiny-flux"), ("ink", "adapter_files")])
def test_an_unknown_name_of_an_adapter_says_how_it_can_be_known(name: str, way: str) -> None:
    with pytest.raises(InvalidParams, match=way):
        AdapterSources().with_digests((AdapterUse(name),))
