"""Files in their authors' layouts become folders that hold the same tensors, and draw the same images."""

import fcntl
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from PIL.Image import Image
from safetensors.torch import load_file, save_file

from diffuserve.domain.errors import InvalidModel, InvalidParams
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.engine.engine import Engine
from diffuserve.models.checkpoint_files import write_model as module
from diffuserve.models.checkpoint_files.import_plan import plan_import
from diffuserve.models.checkpoint_files.write_model import write_model
from diffuserve.models.registry import read_spec
from diffuserve.testing.checkpoints import write_flux_checkpoint
from diffuserve.testing.unet_checkpoints import write_unet_checkpoint
from diffuserve.testing.wan_checkpoints import write_wan_checkpoint
from support.original_layouts import (
    Layout,
    clip_layout,
    flux_layout,
    image_vae_layout,
    open_clip_layout,
    read_part,
    t5_layout,
    unet_layout,
    wan_layout,
    wan_vae_layout,
    write_original,
    z_image_layout,
)
from support.tiny_pipelines.folders import tiny_folder

COMFY = "model.diffusion_model."
Parts = Mapping[str, tuple[str, Layout]]


@dataclass(frozen=True)
class Original:
    """A file of some components of a folder, which is its base too."""

    file: Path
    folder: Path
    parts: Parts


SD_PARTS: Parts = {
    "unet": (COMFY, unet_layout()),
    "vae": ("first_stage_model.", image_vae_layout),
    "text_encoder": ("cond_stage_model.transformer.", clip_layout),
}
XL_PARTS: Parts = {
    **SD_PARTS,
    "text_encoder": ("conditioner.embedders.0.transformer.", clip_layout),
    "text_encoder_2": ("conditioner.embedders.1.model.", open_clip_layout),
}
FLUX_PARTS: Parts = {
    "transformer": (COMFY, flux_layout),
    "vae": ("vae.", image_vae_layout),
    "text_encoder": ("text_encoders.clip_l.transformer.", clip_layout),
    "text_encoder_2": ("text_encoders.t5xxl.transformer.", t5_layout),
}


def sd_file(folder: Path, kind: str = "sd", **options: object) -> Original:
    base = write_unet_checkpoint(folder / "base", kind=kind, seed=3, **options)  # type: ignore[arg-type]
    parts = XL_PARTS if kind == "xl" else SD_PARTS
    return Original(write_original(folder / "file.safetensors", base, parts), base, parts)


def flux_file(folder: Path, kind: str = "dev", parts: Parts = FLUX_PARTS) -> Original:
    base = write_flux_checkpoint(folder / "base", kind=kind, seed=3)  # type: ignore[arg-type]
    return Original(write_original(folder / "file.safetensors", base, parts), base, parts)


def wan_file(folder: Path, kind: str, **options: object) -> Original:
    base = write_wan_checkpoint(folder / "base", kind=kind, seed=3, **options)  # type: ignore[arg-type]
    parts: Parts = {"transformer": ("", wan_layout)}
    return Original(write_original(folder / "file.safetensors", base, parts), base, parts)


def tiny_wan_file(folder: Path) -> Original:
    original = wan_file(folder, "tiny")
    (original.folder / "diffuserve.json").write_text('{"num_frames": 1}')
    return original


def imported(original: Original, folder: Path) -> Path:
    write_model(plan_import(original.file, str(original.folder)), folder / "made")
    return folder / "made"


def assert_equal_parts(made: Path, original: Original) -> None:
    """Compare names and bits; versions of transformers name CLIP's tensors with a prefix and without."""
    for component in original.parts:
        found, wanted = read_part(made, component), read_part(original.folder, component)
        plain = {name.removeprefix("text_model."): tensor for name, tensor in found.items()}
        expected = {name.removeprefix("text_model."): tensor for name, tensor in wanted.items()}
        assert plain.keys() == expected.keys(), component
        assert all(torch.equal(plain[name], expected[name]) for name in expected), component


@pytest.mark.parametrize("kind", ["sd", "xl"])
def test_a_full_file_of_stable_diffusion_holds_the_tensors_of_its_modules(kind: str, tmp_path: Path) -> None:
    original = sd_file(tmp_path, kind)
    assert_equal_parts(imported(original, tmp_path), original)


def test_a_file_with_two_resnets_in_each_block_is_converted_too(tmp_path: Path) -> None:
    base = write_unet_checkpoint(tmp_path / "base", kind="sd", layers_per_block=2)
    parts: Parts = {"unet": (COMFY, unet_layout(2))}
    original = Original(write_original(tmp_path / "file.safetensors", base, parts), base, parts)
    assert_equal_parts(imported(original, tmp_path), original)


def test_a_file_for_inpainting_becomes_a_pipeline_of_its_own_on_a_plain_base(tmp_path: Path) -> None:
    original = sd_file(tmp_path, in_channels=9)
    plain = write_unet_checkpoint(tmp_path / "plain", kind="sd")
    write_model(plan_import(original.file, str(plain)), tmp_path / "made")
    assert_equal_parts(tmp_path / "made", original)
    index = json.loads((tmp_path / "made" / "model_index.json").read_text())
    assert index["_class_name"] == "StableDiffusionInpaintPipeline"


@pytest.mark.parametrize("kind", ["schnell", "dev", "fill", "kontext"])
def test_a_file_of_flux_holds_the_tensors_of_its_modules(kind: str, tmp_path: Path) -> None:
    original = flux_file(tmp_path, kind)
    made = imported(original, tmp_path)
    assert_equal_parts(made, original)
    config = json.loads((made / "transformer" / "config.json").read_text())
    assert config == json.loads((original.folder / "transformer" / "config.json").read_text())


@pytest.mark.parametrize("kind", ["t2v", "i2v", "ti2v", "a14b-i2v"])
def test_a_file_of_wan_holds_the_tensors_of_its_transformer(kind: str, tmp_path: Path) -> None:
    original = wan_file(tmp_path, kind)
    assert_equal_parts(imported(original, tmp_path), original)


def test_a_model_of_two_experts_is_made_of_two_files(tmp_path: Path) -> None:
    parts: Parts = {"transformer": ("", wan_layout), "transformer_2": ("", wan_layout)}
    base = write_wan_checkpoint(tmp_path / "base", kind="a14b", seed=3)
    high, low = (
        write_original(
            tmp_path / f"wan2.2_t2v_{noise}_noise_14B.safetensors", base, {component: parts[component]}
        )
        for noise, component in (("high", "transformer"), ("low", "transformer_2"))
    )
    write_model(plan_import(high, str(base), {"transformer_2": low}), tmp_path / "made")
    assert_equal_parts(tmp_path / "made", Original(high, base, parts))
    with pytest.raises(InvalidModel, match="import the one for high noise"):
        plan_import(low, str(base))


def test_the_vae_of_wan_is_converted_from_a_file_of_its_own(tmp_path: Path) -> None:
    original = wan_file(tmp_path, "t2v", vae={"dim_mult": [1, 2, 4, 4]})  # the converter knows no others
    vae = write_original(tmp_path / "vae.safetensors", original.folder, {"vae": ("", wan_vae_layout)})
    plan = plan_import(original.file, str(original.folder), {"vae": vae})
    write_model(plan, tmp_path / "made")
    assert_equal_parts(
        tmp_path / "made", Original(original.file, original.folder, {"vae": ("", wan_vae_layout)})
    )


def test_a_file_of_z_image_holds_the_tensors_of_its_transformer(tmp_path: Path) -> None:
    original = z_image_file(tmp_path)
    assert_equal_parts(imported(original, tmp_path), original)


def z_image_file(folder: Path) -> Original:
    base = tiny_folder("z-image", folder)
    parts: Parts = {"transformer": (COMFY, z_image_layout)}
    return Original(write_original(folder / "z_image.safetensors", base, parts), base, parts)


def test_turbo_keeps_its_defaults_under_any_name(tmp_path: Path) -> None:
    original = z_image_file(tmp_path)
    turbo = original.file.rename(tmp_path / "turbo.safetensors")
    spec = read_spec(str(imported(Original(turbo, original.folder, original.parts), tmp_path)))
    assert (spec.num_inference_steps, spec.guidance_scale) == (9, 0.0)


def test_a_text_encoder_of_an_older_file_has_no_name_of_its_own(tmp_path: Path) -> None:
    base = write_unet_checkpoint(tmp_path / "base", kind="sd")
    parts: Parts = {
        "unet": (COMFY, unet_layout()),
        "text_encoder": ("cond_stage_model.transformer.", lambda tensors: tensors),
    }
    original = Original(write_original(tmp_path / "file.safetensors", base, parts), base, parts)
    assert "cond_stage_model.transformer.embeddings.token_embedding.weight" in load_file(original.file)
    plan = plan_import(original.file, str(base))
    assert plan.recognized.lacks == ["vae"]
    assert_equal_parts(imported(original, tmp_path), original)


def test_text_encoders_as_comfyui_has_them_fit_too(tmp_path: Path) -> None:
    original = flux_file(tmp_path)

    def with_projection(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {**clip_layout(tensors), "text_projection.weight": torch.eye(4), "logit_scale": torch.ones(())}

    def embedded(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name.replace("shared", "encoder.embed_tokens"): tensor for name, tensor in tensors.items()}

    layouts = {"text_encoder": with_projection, "text_encoder_2": embedded}
    given = {
        name: write_original(tmp_path / f"{name}.safetensors", original.folder, {name: ("", layout)})
        for name, layout in layouts.items()
    }
    told: list[str] = []
    write_model(plan_import(original.file, str(original.folder), given), tmp_path / "made", tell=told.append)
    assert_equal_parts(tmp_path / "made", original)
    assert told == ["text_encoder: left out 1 tensors that its class does not have: text_projection.weight"]


def test_a_file_that_predicts_velocities_gets_their_schedule(tmp_path: Path) -> None:
    original = sd_file(tmp_path, "xl")
    save_file({**load_file(original.file), "v_pred": torch.ones(0), "ztsnr": torch.ones(0)}, original.file)
    made = imported(original, tmp_path)
    scheduler = json.loads((made / "scheduler" / "scheduler_config.json").read_text())
    assert (scheduler["prediction_type"], scheduler["rescale_betas_zero_snr"]) == ("v_prediction", True)
    assert scheduler["beta_end"] == 0.012


class TestAnImportThatFails:
    def test_leaves_nothing_behind_and_the_next_one_succeeds(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        original = flux_file(tmp_path)
        with monkeypatch.context() as patched:
            patched.setattr(module, "write_tensors", fail_at(2))
            with pytest.raises(KeyboardInterrupt):
                imported(original, tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "file.safetensors"]
        assert_equal_parts(imported(original, tmp_path), original)

    def test_what_a_kill_has_left_is_no_model_and_is_written_anew(self, tmp_path: Path) -> None:
        original = flux_file(tmp_path)
        left = tmp_path / ".made.partial" / "transformer"
        left.mkdir(parents=True)
        (left / "diffusion_pytorch_model.safetensors").write_bytes(b"half of it")
        assert_equal_parts(imported(original, tmp_path), original)
        assert not left.exists()

    def test_two_imports_of_one_name_do_not_meet(self, tmp_path: Path) -> None:
        original = flux_file(tmp_path)
        partial_folder = tmp_path / ".made.partial"
        partial_folder.mkdir()
        (partial_folder / "others").write_text("work")
        other = os.open(partial_folder, os.O_RDONLY)
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(InvalidParams, match="another process"):
            imported(original, tmp_path)
        os.close(other)
        assert (partial_folder / "others").exists()

    def test_tensors_that_do_not_fit_the_config_are_named_before_any_is_written(self, tmp_path: Path) -> None:
        original = flux_file(tmp_path, parts={"transformer": ("", flux_layout)})
        tensors = load_file(original.file)
        tensors["txt_in.weight"] = torch.zeros(64, 31)
        save_file(tensors, original.file)
        with pytest.raises(InvalidModel, match=r"context_embedder.weight is \(64, 31\), not \(64, 32\)"):
            imported(original, tmp_path)
        del tensors["double_blocks.1.txt_mlp.2.bias"]
        save_file(tensors, original.file)
        with pytest.raises(InvalidModel, match=r"incomplete: .*double_blocks.1.txt_mlp.2.bias"):
            imported(original, tmp_path)

    @pytest.mark.parametrize(
        ("name", "shape", "refusal"),
        [
            ("img_in.weight", (64,), "is incomplete"),
            (
                "single_blocks.77777777.linear1.weight",
                (4, 4),
                "77,777,778 blocks, where models have at most 512",
            ),
            ("double_blocks.x.img_attn.qkv.weight", (4, 4), "is incomplete"),
            ("double_blocks.0.img_attn.qkv.weight", (3,), "is incomplete|is .* not"),
        ],
    )
    def test_a_header_that_lies_is_refused(
        self, name: str, shape: tuple[int, ...], refusal: str, tmp_path: Path
    ) -> None:
        original = flux_file(tmp_path, parts={"transformer": ("", flux_layout)})
        tensors = load_file(original.file)
        save_file({**tensors, name: torch.zeros(shape)}, original.file)
        with pytest.raises(InvalidModel, match=refusal):
            imported(original, tmp_path)

    def test_tensors_without_a_place_are_left_out_and_named(self, tmp_path: Path) -> None:
        original = flux_file(tmp_path, parts={"transformer": ("", flux_layout)})
        save_file({**load_file(original.file), "extra.weight": torch.zeros(2)}, original.file)
        told: list[str] = []
        write_model(plan_import(original.file, str(original.folder)), tmp_path / "made", tell=told.append)
        assert told == ["transformer: left out 1 tensors that its class does not have: extra.weight"]
        assert_equal_parts(tmp_path / "made", original)

    def test_a_full_disk_is_told_before_the_first_byte(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        original = flux_file(tmp_path)
        free = type("Usage", (), {"free": 1_000_000_000})
        monkeypatch.setattr("shutil.disk_usage", lambda _: free)
        with pytest.raises(InvalidParams, match="XDG_DATA_HOME"):
            imported(original, tmp_path)


def fail_at(count: int) -> object:
    calls = iter(range(1, count + 1))

    def write(path: Path, *rest: object) -> None:
        path.write_bytes(b"some of it")
        if next(calls) == count:
            raise KeyboardInterrupt

    return write


class TestTheSameImage:
    @pytest.mark.parametrize("make", [sd_file, flux_file, tiny_wan_file, z_image_file])
    def test_is_drawn_from_the_folder_and_from_the_file(
        self, make: Callable[[Path], Original], tmp_path: Path
    ) -> None:
        original = make(tmp_path)
        assert drawn(imported(original, tmp_path)) == drawn(original.folder)


def drawn(folder: Path) -> Image:
    params = GenerationParams(prompt="a cat", seed=1, width=64, height=64, num_inference_steps=2)
    with Engine.load(str(folder), device="cpu", dtype="float32") as engine:
        return engine.generate(params).images[0]
