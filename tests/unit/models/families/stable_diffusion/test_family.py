"""Folders of Stable Diffusion tell abilities, defaults, memory and price by their configs."""

import json
from pathlib import Path
from typing import Any

import pytest

from diffuserve.domain.errors import InvalidModel, ModelNotCapable
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.requests.samplers import DIFFUSION_SAMPLERS
from diffuserve.models.families.stable_diffusion.config import UNetConfig
from diffuserve.models.families.stable_diffusion.family import STABLE_DIFFUSION
from diffuserve.models.families.stable_diffusion.scheduler import own_sampler, samplers
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.registry import check_model, read_offer, read_spec
from diffuserve.samplers.registry import checkpoint_sampler, named_sampler

SDXL: dict[str, Any] = {
    "sample_size": 128,
    "block_out_channels": [320, 640, 1280],
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"],
    "transformer_layers_per_block": [1, 2, 10],
    "attention_head_dim": [5, 10, 20],
    "cross_attention_dim": 2048,
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}
SD15: dict[str, Any] = {"sample_size": 64, "cross_attention_dim": 768}
SD21: dict[str, Any] = {
    "sample_size": 96,
    "cross_attention_dim": 1024,
    "attention_head_dim": [5, 10, 20, 20],
    "use_linear_projection": True,
}
VAE = {"block_out_channels": [128, 256, 512, 512], "layers_per_block": 2}
EULER = {"_class_name": "EulerDiscreteScheduler", "timestep_spacing": "leading"}
PNDM = {"_class_name": "PNDMScheduler", "skip_prk_steps": True}
TRAILING = {"timestep_spacing": "trailing"}


def write(folder: Path, unet: dict[str, Any], scheduler: dict[str, Any], **settings: Any) -> str:
    """Write the configs of a folder, without weights."""
    is_xl = "addition_embed_type" in unet
    files: dict[str, dict[str, Any]] = {
        "model_index.json": {
            "_class_name": "StableDiffusionXLPipeline" if is_xl else "StableDiffusionPipeline"
        },
        "unet/config.json": unet,
        "vae/config.json": VAE,
        "scheduler/scheduler_config.json": scheduler,
        "text_encoder/config.json": {"hidden_size": 768 if is_xl else unet["cross_attention_dim"]},
        "diffuserve.json": settings,
    }
    if is_xl:
        files["text_encoder_2/config.json"] = {
            "hidden_size": 1280,
            "projection_dim": 1280,
            "num_attention_heads": 20,
        }
    for name, values in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(values))
    return str(folder)


def spec_of(folder: Path, unet: dict[str, Any], scheduler: dict[str, Any], **settings: Any) -> ModelSpec:
    return read_spec(write(folder, unet, scheduler, **settings))


@pytest.mark.parametrize(
    ("unet", "scheduler", "side"), [(SDXL, EULER, 1024), (SD15, PNDM, 512), (SD21, PNDM, 768)]
)
def test_sizes_are_the_checkpoints_own(
    unet: dict[str, Any], scheduler: dict[str, Any], side: int, tmp_path: Path
) -> None:
    spec = spec_of(tmp_path, unet, scheduler)
    assert (spec.width, spec.height, spec.size_multiple) == (side, side, 8)
    assert (spec.min_size, spec.max_size, spec.max_pixels) == (side // 2, 2 * side, 4 * side**2)
    assert (spec.num_inference_steps, spec.guidance_scale, spec.guidance_passes) == (20, 7.5, 2)
    assert spec.has_negative_prompt
    assert spec.samplers == DIFFUSION_SAMPLERS
    assert spec.max_sequence_length == 77


@pytest.mark.parametrize(
    ("unet", "scheduler", "expected"),
    [
        (SDXL, {"_class_name": "EulerAncestralDiscreteScheduler", **TRAILING}, (4, 0.0, 2)),
        (SDXL, EULER | TRAILING | {"prediction_type": "sample"}, (4, 0.0, 2)),
        (SDXL, EULER | TRAILING | {"prediction_type": "v_prediction"}, (20, 7.5, 2)),
        (SD15, {"_class_name": "LCMScheduler"}, (4, 1.0, 2)),
        (SD15 | {"time_cond_proj_dim": 256}, {"_class_name": "LCMScheduler"}, (4, 8.5, 1)),
    ],
)
def test_distilled_checkpoints_take_few_steps(
    unet: dict[str, Any], scheduler: dict[str, Any], expected: tuple[int, float, int], tmp_path: Path
) -> None:
    spec = spec_of(tmp_path, unet, scheduler)
    assert (spec.num_inference_steps, spec.guidance_scale, spec.guidance_passes) == expected


@pytest.mark.parametrize(
    ("version", "side"), [("0.2.2", 512), ("0.8.1", 512), ("0.9.0", 256), ("0.42.1", 256)]
)
def test_sizes_that_old_versions_of_diffusers_wrote_are_corrected(
    version: str, side: int, tmp_path: Path
) -> None:
    assert spec_of(tmp_path, SD15 | {"sample_size": 32, "_diffusers_version": version}, PNDM).width == side


def test_settings_override_defaults(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, SDXL, EULER, width=512, num_inference_steps=8, guidance_scale=2.0, min_size=256)
    assert (spec.width, spec.num_inference_steps, spec.guidance_scale, spec.min_size) == (512, 8, 2.0, 256)


def test_guidance_that_is_an_input_has_no_negative_prompt(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, SD15 | {"time_cond_proj_dim": 256}, {"_class_name": "LCMScheduler"})
    guided = spec.resolve(GenerationParams(prompt="a star", guidance_scale=5.0), seed=0)
    assert spec.workload(guided).num_sequences == 1
    with pytest.raises(ModelNotCapable, match="has no negative prompt"):
        spec.resolve(GenerationParams(prompt="a star", negative_prompt="red"), seed=0)


_DPM, _UNIPC = {"_class_name": "DPMSolverMultistepScheduler"}, {"_class_name": "UniPCMultistepScheduler"}
_KARRAS = {"use_karras_sigmas": True}
SCHEDULERS: tuple[dict[str, Any], ...] = (
    EULER,
    EULER | _KARRAS,
    EULER | {"use_exponential_sigmas": True},
    PNDM,
    {"_class_name": "DDIMScheduler"},
    {"_class_name": "EulerAncestralDiscreteScheduler"},
    {"_class_name": "LCMScheduler"},
    _DPM,
    _DPM | _KARRAS,
    _DPM | {"solver_order": 3},
    _DPM | {"solver_type": "heun"},
    _DPM | {"algorithm_type": "sde-dpmsolver++"},
    _DPM | _KARRAS | {"algorithm_type": "sde-dpmsolver++"},
    _UNIPC,
    _UNIPC | _KARRAS,
    _UNIPC | {"solver_order": 3},
    _UNIPC | {"solver_type": "bh1"},
)


@pytest.mark.parametrize("config", SCHEDULERS, ids=str)
def test_a_checkpoints_own_sampler_has_the_name_that_builds_it(config: dict[str, Any]) -> None:
    """Compare with every sampler that requests can name."""
    own, named = checkpoint_sampler(config), config | {"skip_prk_steps": True}
    names = [name for name in DIFFUSION_SAMPLERS if named_sampler(name, named) == own]
    assert own_sampler(config) == (names[0] if names else "")


def test_a_solver_that_is_not_there_is_replaced_with_a_warning(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, SD15, {"_class_name": "HeunDiscreteScheduler"})
    (warning,) = spec.sampler_warnings(GenerationParams(prompt="a star"))
    assert spec.sampler == "euler"
    assert "HeunDiscreteScheduler" in warning
    assert not spec.sampler_warnings(GenerationParams(prompt="a star", sampler="ddim"))


@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
def test_every_sampler_that_is_offered_can_be_built(prediction: str) -> None:
    config = EULER | {"prediction_type": prediction}
    for name in samplers(config):
        named_sampler(name, config)
    if prediction == "sample":
        with pytest.raises(InvalidModel):
            named_sampler("pndm", config)


def test_memory_and_price_of_sdxl_are_near_what_was_counted(tmp_path: Path) -> None:
    """10 kB a latent pixel and pass in half precision; 2,700 operations for each pair of latent pixels."""
    folder = write(tmp_path, SDXL, EULER)
    spec, fit = read_offer(folder)
    guided = spec.resolve(GenerationParams(prompt="a star"), seed=0)
    workload = spec.workload(guided)
    assert workload.step_tokens == 2 * 128 * 128
    step_bytes = STABLE_DIFFUSION.min_step_bytes(ModelFolder(Path(folder)), workload)
    assert step_bytes == pytest.approx(10_000 * workload.step_tokens, rel=0.1)
    assert UNetConfig.from_dict(SDXL).pair_operations == pytest.approx(2_700, rel=0.1)
    unguided = spec.workload(spec.resolve(GenerationParams(prompt="a star", guidance_scale=1.0), seed=0))
    # 6.76 TFLOP a pass of 1024², at 400 TFLOP/s.
    assert fit.step_seconds([unguided]) == pytest.approx(6.76 / 400, rel=0.5)
    assert fit.step_seconds([workload]) > 1.6 * fit.step_seconds([unguided])


@pytest.mark.parametrize(
    ("unet", "words"),
    [
        (SDXL | {"cross_attention_dim": 768}, "cross_attention_dim=768 must be .* 2048 in all"),
        (SDXL | {"projection_class_embeddings_input_dim": 2560}, "=2560 must be 2816"),
        (
            SDXL | {"projection_class_embeddings_input_dim": None},
            "needs projection_class_embeddings_input_dim",
        ),
        (SD15 | {"out_channels": 8}, "out_channels=8 must be 4, as the VAE's latent_channels=4"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(unet: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match=words):
        read_spec(write(tmp_path, unet, EULER))


def test_a_folder_without_weights_is_refused_by_the_component(tmp_path: Path) -> None:
    folder = write(tmp_path, SD15, PNDM)
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "tokenizer_config.json").write_text("{}")
    with pytest.raises(InvalidModel, match="text_encoder: no safetensors weights"):
        check_model(folder)
