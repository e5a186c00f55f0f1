"""Models are told by names and shapes alone, and what is no model is refused by its own name."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.checkpoint_files.checkpoint_file import TensorInfo
from diffuserve.models.checkpoint_files.open_checkpoint import open_checkpoint
from diffuserve.models.checkpoint_files.recognize import recognize

COMFY = "model.diffusion_model."
UNET = {"input_blocks.0.0.weight": (320, 4, 3, 3)}
XL = {**UNET, "label_emb.0.0.weight": (1280, 2816)}
FLUX = {
    "double_blocks.0.img_attn.qkv.weight": (9216, 3072),
    "img_in.weight": (3072, 64),
    "final_layer.linear.weight": (64, 3072),
}
DEV = {**FLUX, "guidance_in.in_layer.weight": (3072, 256)}
WAN = {
    "head.modulation": (1, 2, 5120),
    "head.head.weight": (64, 5120),
    "patch_embedding.weight": (5120, 16, 1, 2, 2),
}
Z_IMAGE = {"layers.0.adaLN_modulation.0.weight": (15360, 256), "cap_embedder.0.weight": (2560,)}
QWEN = {"transformer_blocks.0.img_mod.1.weight": (18432, 3072), "txt_norm.weight": (3584,)}
VAE = {"decoder.up.0.block.0.norm1.weight": (128,)}
CLIP = {"text_model.embeddings.token_embedding.weight": (49408, 768)}

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Listed:
    """A file that is known by a list of its tensors."""

    path: Path
    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str] = field(default_factory=dict)

    def read(self, name: str) -> Any:
        raise AssertionError("recognizing reads no tensor")

    def read_quantized(self, name: str) -> Any:
        raise AssertionError("recognizing reads no tensor")


def listed(shapes: Shapes, name: str = "file", stored_as: str = "BF16", **metadata: str) -> Listed:
    tensors = {each: TensorInfo(shape, "bfloat16", stored_as) for each, shape in shapes.items()}
    return Listed(Path(f"/files/{name}.safetensors"), tensors, metadata)


def prefixed(prefix: str, shapes: Shapes) -> Shapes:
    return {f"{prefix}{name}": shape for name, shape in shapes.items()}


@pytest.mark.parametrize("prefix", ["", COMFY])
@pytest.mark.parametrize(
    ("shapes", "name", "kind"),
    [
        (UNET, "file", "sd-1.5"),
        ({"input_blocks.0.0.weight": (320, 9, 3, 3)}, "file", "sd-1.5-inpaint"),
        (XL, "file", "sdxl"),
        (XL | {"input_blocks.0.0.weight": (320, 9, 3, 3)}, "file", "sdxl-inpaint"),
        (FLUX, "file", "flux-schnell"),
        (DEV, "file", "flux-dev"),
        (DEV, "flux1-Kontext-dev", "flux-kontext"),
        (DEV | {"img_in.weight": (3072, 384)}, "file", "flux-fill"),
        (WAN, "file", "wan-2.1-t2v-14b"),
        (WAN, "wan2.2_t2v_high_noise_14B_fp16", "wan-2.2-t2v-a14b"),
        (WAN | {"patch_embedding.weight": (1536, 16, 1, 2, 2)}, "file", "wan-2.1-t2v-1.3b"),
        (WAN | {"patch_embedding.weight": (5120, 36, 1, 2, 2)}, "file", "wan-2.2-i2v-a14b"),
        (
            WAN | {"patch_embedding.weight": (5120, 36, 1, 2, 2), "img_emb.proj.0.weight": (1280,)},
            "file",
            "wan-2.1-i2v-14b",
        ),
        (
            WAN | {"patch_embedding.weight": (3072, 48, 1, 2, 2), "head.head.weight": (192, 3072)},
            "file",
            "wan-2.2-ti2v-5b",
        ),
        (Z_IMAGE, "file", "z-image"),
        (Z_IMAGE, "z_image_turbo_bf16", "z-image-turbo"),
        (QWEN, "file", "qwen-image"),
        (QWEN, "Qwen_Image_Edit-Q8_0", "qwen-image-edit"),
    ],
)
def test_a_model_is_told_by_its_tensors(shapes: Shapes, name: str, kind: str, prefix: str) -> None:
    assert recognize(listed(prefixed(prefix, shapes), name)).kind.name == kind


def test_the_parts_of_a_full_file_are_told_apart_from_those_that_it_lacks() -> None:
    clip = prefixed("text_encoders.clip_l.transformer.", CLIP)
    full = {**prefixed(COMFY, DEV), **prefixed("vae.", VAE), **clip}
    found = recognize(listed(full))
    assert found.prefixes == {
        "transformer": COMFY,
        "vae": "vae.",
        "text_encoder": "text_encoders.clip_l.transformer.",
    }
    assert found.lacks == ["text_encoder_2"]


@pytest.mark.parametrize(
    ("shapes", "refusal"),
    [
        ({"lora_unet_down_blocks_0.lora_down.weight": (8, 320)}, "a LoRA"),
        ({"transformer.blocks.0.attn.to_q.lora_A.weight": (8, 320)}, "a LoRA"),
        ({"lycoris_blocks_0.lokr_w1": (8, 8)}, "a LoRA"),
        ({"control_model.input_blocks.0.0.weight": (320, 4, 3, 3)}, "a ControlNet"),
        ({"controlnet_blocks.0.weight": (3072, 3072)}, "a ControlNet"),
        (VAE, "a VAE alone, .* --parts vae=FILE"),
        (CLIP, "a CLIP text encoder alone"),
        (
            {"decoder.conv_in.weight": (512, 4, 3, 3), "encoder.conv_in.weight": (128, 3, 3, 3)},
            "a VAE in diff",
        ),
        ({"transformer_blocks.0.norm1.linear.weight": (9, 9)}, "in diffusers' own layout"),
        ({"transformer_blocks.0.qkv_proj.smooth_factor": (9,)}, "SVDQuant"),
        ({"double_blocks.0.img_attn.qkv.qweight": (9, 9)}, "GPTQ or AWQ"),
        ({"double_blocks.0.img_mlp.0.weight.quant_state.bitsandbytes__nf4": (9,)}, "bitsandbytes"),
        (XL | {"conditioner.embedders.0.model.transformer.resblocks.0.ln_1.weight": (9,)}, "the refiner"),
        (XL | {"label_emb.0.0.weight": (1536, 2560)}, "the refiner"),
        (UNET | {"cond_stage_model.model.ln_final.weight": (9,)}, "Stable Diffusion 2"),
        ({"input_blocks.0.0.weight": (320, 8, 3, 3)}, "InstructPix2Pix"),
        (DEV | {"img_in.weight": (3072, 128)}, "Canny or Depth"),
        (FLUX | {"distilled_guidance_layer.in_proj.weight": (9, 9)}, "Chroma"),
        (WAN | {"vace_blocks.0.after_proj.bias": (9,)}, "VACE"),
        ({"image_proj.proj.weight": (9, 9)}, "IP-Adapter"),
        ({"emb_params": (8, 768)}, "textual inversion"),
        ({"conv_first.weight": (64, 3, 3, 3), "conv_last.weight": (3, 64, 3, 3)}, "an upscaler"),
        (
            {"something.else": (9,)},
            "not a model that is known by its tensors, which begin with something.else",
        ),
    ],
)
def test_what_is_no_model_is_refused_by_its_own_name(shapes: Shapes, refusal: str) -> None:
    with pytest.raises(InvalidModel, match=refusal):
        recognize(listed(shapes))


def test_numbers_for_other_kernels_are_refused() -> None:
    fp4 = {"double_blocks.0.img_attn.qkv.weight": (9, 9), "double_blocks.0.img_attn.qkv.weight_scale_2": (1,)}
    with pytest.raises(InvalidModel, match="NVFP4"):
        recognize(listed(fp4, stored_as="U8"))
    with pytest.raises(InvalidModel, match="SVDQuant"):
        recognize(listed(DEV, model_class="NunchakuFluxTransformer2dModel"))


class TestFiles:
    def test_pickles_are_refused_before_they_are_opened(self, tmp_path: Path) -> None:
        for suffix in (".ckpt", ".pt", ".pth", ".bin", ".pkl"):
            with pytest.raises(InvalidModel, match="pickled weights, which can run code"):
                open_checkpoint(tmp_path / f"model{suffix}")

    def test_other_files_and_folders_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(InvalidModel, match="no file of weights"):
            open_checkpoint(tmp_path / "model.onnx")
        with pytest.raises(InvalidModel, match="no such file"):
            open_checkpoint(tmp_path / "model.safetensors")
        (tmp_path / "folder.safetensors").mkdir()
        with pytest.raises(InvalidModel, match="a folder"):
            open_checkpoint(tmp_path / "folder.safetensors")

    @pytest.mark.parametrize(
        "header",
        [
            b"",
            b"\xff" * 8,  # a header of 16 EiB
            (1 << 40).to_bytes(8, "little") + b"{}",
            b"\x02" + bytes(7) + b"[]",
            b"\x02" + bytes(7) + b"{}",  # no tensors
            b"\x05" + bytes(7) + b"{}",  # the file ends before the header does
        ],
    )
    def test_a_header_that_is_none_is_refused(self, header: bytes, tmp_path: Path) -> None:
        path = tmp_path / "model.safetensors"
        path.write_bytes(header)
        with pytest.raises(InvalidModel, match=str(path)):
            open_checkpoint(path)

    @pytest.mark.parametrize(
        "entries",
        [
            {"a": ("F32", [4], [0, 17])},  # beyond the end
            {"a": ("F32", [4], [0, 12])},  # fewer bytes than the shape has
            {"a": ("F32", [2], [0, 8]), "b": ("F32", [2], [4, 12])},  # over one another
            {"a": ("F32", [1], [0, 4]), "b": ("F32", [2], [8, 16])},  # a hole
            {"a": ("F32", [-4], [0, 16])},
            {"a": ("F32", [1 << 62, 1 << 62], [0, 16])},
            {"a": ("F32", [4], [16, 0])},
            {"a": ("Q9", [4], [0, 16])},
        ],
    )
    def test_offsets_that_lie_are_refused(
        self, entries: Mapping[str, tuple[str, list[int], list[int]]], tmp_path: Path
    ) -> None:
        with pytest.raises(InvalidModel, match="truncated or not a safetensors file"):
            open_checkpoint(write_header(tmp_path, entries))

    def test_an_honest_header_is_read_without_torch_and_its_content_when_asked_for(
        self, tmp_path: Path
    ) -> None:
        loaded = "torch" in sys.modules
        file = open_checkpoint(write_header(tmp_path, {"a": ("F32", [2, 2], [0, 16])}))
        assert ("torch" in sys.modules) == loaded
        assert file.tensors == {"a": TensorInfo((2, 2), "float32", "F32")}
        assert file.read("a").tolist() == [[0.0, 0.0], [0.0, 0.0]]

    def test_a_file_that_shrank_since_is_no_crash(self, tmp_path: Path) -> None:
        path = write_header(tmp_path, {"a": ("F32", [2, 2], [0, 16])})
        file = open_checkpoint(path)
        path.write_bytes(path.read_bytes()[:-4])
        with pytest.raises(InvalidModel, match="a cannot be read"):
            file.read("a")


def write_header(folder: Path, entries: Mapping[str, tuple[str, list[int], list[int]]]) -> Path:
    """Write a file whose header says this, before 16 bytes of zeros."""
    header = {
        name: {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        for name, (dtype, shape, offsets) in entries.items()
    }
    text = json.dumps(header).encode()
    path = folder / "model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(16))
    return path
