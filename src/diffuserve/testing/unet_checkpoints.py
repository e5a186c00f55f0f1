"""Small Stable Diffusion checkpoints with random weights, in diffusers' format.

As in `checkpoints`, images show noise, but every tensor of the architecture takes part in them.
"""

import json
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from diffuserve.models.bundled import bundled_models
from diffuserve.testing.checkpoints import (
    as_module,
    bundled_config,
    redraw_weights,
    require_libraries,
    save_module,
)

Kind = Literal["xl", "sd", "lcm", "lcm-xl", "refiner-xl"]

_TEXT_DIM, _PROJECTION_DIM, _TIME_DIM = 32, 24, 8
_SIZES = 6  # numbers of an image's sizes, which the XL layout reads
_NOISE: dict[str, Any] = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}
_SCHEDULERS: Mapping[str, dict[str, Any]] = {
    "xl": {"_class_name": "EulerDiscreteScheduler", "timestep_spacing": "leading", "steps_offset": 1},
    "sd": {"_class_name": "PNDMScheduler", "skip_prk_steps": True, "steps_offset": 1, "clip_sample": False},
    "lcm": {"_class_name": "LCMScheduler", "original_inference_steps": 50, "steps_offset": 1},
}
_TEXT_ENCODERS: Mapping[str, tuple[str, ...]] = {"refiner-xl": ("text_encoder_2",)}
_PIPELINES = {
    "xl": "StableDiffusionXLPipeline",
    "lcm-xl": "StableDiffusionXLPipeline",
    "refiner-xl": "StableDiffusionXLImg2ImgPipeline",
    "sd": "StableDiffusionPipeline",
    "lcm": "StableDiffusionPipeline",
}


def write_unet_checkpoint(
    folder: Path,
    *,
    kind: Kind = "xl",
    scheduler: Mapping[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    **unet: Any,
) -> Path:
    """Write a random Stable Diffusion checkpoint into `folder` and return it.

    `xl` has SDXL's two text encoders and layout, `sd` those of Stable Diffusion 1; `lcm` and `lcm-xl` are
    these distilled with guidance as an input, and `refiner-xl` has SDXL's second text encoder alone. With
    `in_channels=9` a checkpoint fills in. `scheduler` overrides values of the kind's
    `scheduler_config.json`, and further options those of the UNet. It draws 64×64 pixels by default. The
    tokenizers are the bundled tiny-flux's. Equal arguments write equal weights.

    Raise `ImportError` with the remedy unless diffusers and transformers are installed.
    """
    require_libraries()
    is_xl = kind.endswith("xl")
    names = _TEXT_ENCODERS.get(kind, ("text_encoder", "text_encoder_2") if is_xl else ("text_encoder",))
    with torch.random.fork_rng(devices=[]):  # the constructors draw from the global generator
        components = {"unet": _unet(kind, unet), "vae": _vae(is_xl)}
        components |= {name: _clip(has_projection=name == "text_encoder_2") for name in names}
    generator = torch.Generator().manual_seed(seed)
    for name, module in components.items():
        redraw_weights(module, generator)
        nn.Module.to(module, dtype)
        save_module(module, folder / name)
    for name in names:
        tokenizer = name.replace("text_encoder", "tokenizer")
        shutil.copytree(bundled_models()["tiny-flux"] / "tokenizer", folder / tokenizer, dirs_exist_ok=True)
    own = _SCHEDULERS["lcm" if kind.startswith("lcm") else "xl" if is_xl else "sd"]
    _write_json(folder / "scheduler" / "scheduler_config.json", _NOISE | own | dict(scheduler or {}))
    _write_index(folder, kind, scheduler or own)
    return folder


def _unet(kind: Kind, options: Mapping[str, Any]) -> nn.Module:
    from diffusers import UNet2DConditionModel

    is_xl, is_refiner = kind.endswith("xl"), kind.startswith("refiner")
    num_sizes = _SIZES - is_refiner  # a refiner has one score in place of two sizes
    layout: dict[str, Any] = {
        "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
        "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
        "attention_head_dim": 4,
        "cross_attention_dim": _TEXT_DIM,
    }
    xl: dict[str, Any] = {
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        "attention_head_dim": (2, 4),
        "transformer_layers_per_block": (1, 2),
        "use_linear_projection": True,
        "cross_attention_dim": _TEXT_DIM if is_refiner else 2 * _TEXT_DIM,
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": _TIME_DIM,
        "projection_class_embeddings_input_dim": _PROJECTION_DIM + num_sizes * _TIME_DIM,
    }
    return as_module(
        UNet2DConditionModel(
            **{
                "block_out_channels": (32, 64),
                "layers_per_block": 1,
                "norm_num_groups": 8,
                "sample_size": 8,
                "time_cond_proj_dim": 12 if kind.startswith("lcm") else None,
                **(xl if is_xl else layout),
                **options,
            }
        )
    )


def _vae(is_xl: bool) -> nn.Module:
    from diffusers import AutoencoderKL

    return as_module(
        AutoencoderKL(
            block_out_channels=(8, 8, 16, 16),
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            layers_per_block=1,
            latent_channels=4,
            norm_num_groups=4,
            sample_size=64,
            scaling_factor=0.13025 if is_xl else 0.18215,
        )
    )


def _clip(has_projection: bool) -> nn.Module:
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    tokens = bundled_config("text_encoder", "vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")
    config = CLIPTextConfig(
        hidden_size=_TEXT_DIM,
        projection_dim=_PROJECTION_DIM,
        intermediate_size=2 * _TEXT_DIM,
        num_hidden_layers=3,
        num_attention_heads=2,
        max_position_embeddings=32,
        hidden_act="gelu" if has_projection else "quick_gelu",
        **tokens,
    )
    return as_module(CLIPTextModelWithProjection(config) if has_projection else CLIPTextModel(config))


def _write_index(folder: Path, kind: Kind, scheduler: Mapping[str, Any]) -> None:
    index: dict[str, Any] = {
        "_class_name": _PIPELINES[kind],
        "_diffusers_version": version("diffusers"),
        "scheduler": ["diffusers", scheduler.get("_class_name", _SCHEDULERS["xl"]["_class_name"])],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "unet": ["diffusers", "UNet2DConditionModel"],
        "vae": ["diffusers", "AutoencoderKL"],
        "feature_extractor": [None, None],
        "image_encoder": [None, None],
    }
    if kind.endswith("xl"):
        index |= {
            "text_encoder_2": ["transformers", "CLIPTextModelWithProjection"],
            "tokenizer_2": ["transformers", "CLIPTokenizer"],
            "force_zeros_for_empty_prompt": True,
        }
    if kind == "refiner-xl":
        index |= {
            "text_encoder": [None, None],
            "tokenizer": [None, None],
            "force_zeros_for_empty_prompt": False,
            "requires_aesthetics_score": True,
        }
    if not kind.endswith("xl"):
        index |= {"safety_checker": [None, None], "requires_safety_checker": False}
    _write_json(folder / "model_index.json", index)


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values, indent=2) + "\n", "utf-8")
