"""The trained parts as a folder in diffusers' format, bf16, ready to be served."""

import json
from pathlib import Path

import torch
from diffusers import AutoencoderKL, StableDiffusionXLPipeline, UNet2DConditionModel
from transformers import AutoTokenizer

from diffuserve.models.pretrained import load_processor
from noise_levels import NUM_STEPS, scheduler
from text_encoders import BUNDLED
from wish_encoders import NUM_TOKENS, WishEncoders

GUIDANCE = 3.0
SETTINGS = {
    "name": "tiny-sd",
    "width": 128,
    "height": 128,
    "num_inference_steps": NUM_STEPS,
    "guidance_scale": GUIDANCE,
    "min_size": 32,
    "max_size": 1024,
    "max_pixels": 1024 * 1024,
    "learned_min_size": 96,
    "learned_max_size": 160,
}
"""Of `diffuserve.json`; the preview map is fitted afterwards."""


def assemble(folder: Path, vae: AutoencoderKL, encoders: WishEncoders, unet: UNet2DConditionModel) -> None:
    """Write everything to `folder`, with the preview map of what was there before."""
    tokenizers = [load_processor(AutoTokenizer, BUNDLED / "tokenizer") for _ in range(2)]
    for tokenizer in tokenizers:
        tokenizer.model_max_length = NUM_TOKENS
    pipeline = StableDiffusionXLPipeline(
        vae=vae.to(torch.bfloat16),
        text_encoder=encoders.first.to(torch.bfloat16),
        text_encoder_2=encoders.second.to(torch.bfloat16),
        tokenizer=tokenizers[0],
        tokenizer_2=tokenizers[1],
        unet=unet.to(torch.bfloat16),
        scheduler=scheduler(),
        add_watermarker=False,
    )
    pipeline.save_pretrained(folder)
    for path in folder.rglob("*.safetensors"):
        path.chmod(0o644)  # weights are written for their owner alone
    settings = folder / "diffuserve.json"
    before = json.loads(settings.read_text()) if settings.exists() else {}
    settings.write_text(json.dumps(before | SETTINGS, indent=2) + "\n")
