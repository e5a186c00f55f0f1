"""Folders of pipelines without a family of their own: configs, and weights of one number each."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

STABLE_DIFFUSION_3: Mapping[str, Any] = {
    "_class_name": "StableDiffusion3Pipeline",
    "_diffusers_version": "0.42.1",
    "transformer": ["diffusers", "SD3Transformer2DModel"],
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "vae": ["diffusers", "AutoencoderKL"],
    "text_encoder": ["transformers", "CLIPTextModelWithProjection"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "text_encoder_2": ["transformers", "CLIPTextModelWithProjection"],
    "tokenizer_2": ["transformers", "CLIPTokenizer"],
    "text_encoder_3": [None, None],
    "tokenizer_3": [None, None],
}
LTX: Mapping[str, Any] = {
    "_class_name": "LTXPipeline",
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "vae": ["diffusers", "AutoencoderKLLTXVideo"],
    "text_encoder": ["transformers", "T5EncoderModel"],
    "tokenizer": ["transformers", "T5TokenizerFast"],
    "transformer": ["diffusers", "LTXVideoTransformer3DModel"],
}
STABLE_AUDIO: Mapping[str, Any] = {
    "_class_name": "StableAudioPipeline",
    "vae": ["diffusers", "AutoencoderOobleck"],
    "text_encoder": ["transformers", "T5EncoderModel"],
    "projection_model": ["stable_audio", "StableAudioProjectionModel"],
    "tokenizer": ["transformers", "T5TokenizerFast"],
    "transformer": ["diffusers", "StableAudioDiTModel"],
    "scheduler": ["diffusers", "EDMDPMSolverMultistepScheduler"],
}
PAG: Mapping[str, Any] = {
    "_class_name": "StableDiffusionPAGPipeline",
    "scheduler": ["diffusers", "DDIMScheduler"],
    "vae": ["diffusers", "AutoencoderKL"],
    "text_encoder": ["transformers", "CLIPTextModel"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "unet": ["diffusers", "UNet2DConditionModel"],
    "pag_applied_layers": ["mid"],
}
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "AutoencoderKL": {"block_out_channels": [8, 8, 8, 8], "latent_channels": 16},
    "AutoencoderKLLTXVideo": {"spatio_temporal_scaling": [True, True, True, False], "patch_size": 4},
    "AutoencoderOobleck": {"sampling_rate": 16_000, "downsampling_ratios": [2, 4, 8]},
    "LTXVideoTransformer3DModel": {"patch_size": 1, "patch_size_t": 1},
    "StableAudioDiTModel": {"sample_size": 1000},
    "SD3Transformer2DModel": {"sample_size": 16, "patch_size": 2},
}
"""What configs say that sizes follow from."""


def write_folder(
    folder: Path,
    index: Mapping[str, Any] = STABLE_DIFFUSION_3,
    configs: Mapping[str, Mapping[str, Any]] = CONFIGS,
) -> Path:
    """Write the files of an index: what a component is shows in its class's name."""
    for name, value in index.items():
        match value:
            case [str(), str(class_name)]:
                _write_component(folder / name, class_name, configs)
    write_json(folder / "model_index.json", index)
    return folder


def write_json(path: Path, content: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def _write_component(folder: Path, class_name: str, configs: Mapping[str, Mapping[str, Any]]) -> None:
    if class_name.endswith("Scheduler"):
        write_json(folder / "scheduler_config.json", {"lambda_min_clipped": float("-inf")})
    elif "Tokenizer" in class_name:
        write_json(folder / "tokenizer_config.json", {})
    else:
        write_json(folder / "config.json", configs.get(class_name, {}))
        save_file({"weight": np.zeros(1, np.float32)}, folder / "model.safetensors")
