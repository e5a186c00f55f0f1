"""The trained parts as a folder of a `FluxPipeline` in diffusers' format, bf16, ready to be served."""

import json
import shutil
from pathlib import Path

import torch
from diffusers import AutoencoderKL, FluxTransformer2DModel

from emoji_tokenizers import NUM_TOKENS, copy_tokenizers
from emoji_walks import Studio
from text_encoders import BUNDLED

SIDE = 128
SETTINGS = {
    "name": "tiny-emoji",
    "width": SIDE,
    "height": SIDE,
    "num_inference_steps": 4,
    "max_sequence_length": NUM_TOKENS,
    "longest_sequence_length": NUM_TOKENS,
    "min_size": 32,
    "max_size": 256,
    "max_pixels": 256 * 256,
    "learned_min_size": 96,
    "learned_max_size": 192,
    "example_prompt": "a fox left of a red apple, 3d, on a blue background",
    "lowercase_prompt": True,
}
"""Of `diffuserve.json`, beside the preview map."""


def assemble(
    folder: Path, tokenizers: Path, vae: AutoencoderKL, studio: Studio, denoiser: FluxTransformer2DModel
) -> None:
    """Write everything to `folder`; what is not learned is as in tiny-flux."""
    folder.mkdir(parents=True, exist_ok=True)
    copy_tokenizers(tokenizers, folder)
    shutil.copytree(BUNDLED / "scheduler", folder / "scheduler", dirs_exist_ok=True)
    shutil.copyfile(BUNDLED / "model_index.json", folder / "model_index.json")
    vae.register_to_config(scaling_factor=studio.scale, shift_factor=studio.shift, sample_size=SIDE)
    parts = {
        "vae": vae,
        "transformer": denoiser,
        "text_encoder": studio.encoders.clip,
        "text_encoder_2": studio.encoders.t5,
    }
    for name, part in parts.items():
        part.to("cpu", torch.bfloat16).save_pretrained(folder / name)
    for path in folder.rglob("*.safetensors"):
        path.chmod(0o644)  # weights are written for their owner alone
    (folder / "diffuserve.json").write_text(json.dumps(SETTINGS, indent=2) + "\n")
