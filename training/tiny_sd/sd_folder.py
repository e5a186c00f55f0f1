"""The trained parts as a folder in diffusers' format, bf16, ready to be served."""

import json
from pathlib import Path

import torch
from diffusers import AutoencoderKL, StableDiffusionXLPipeline, UNet2DConditionModel
from transformers import AutoTokenizer

from assemble import forget_place
from diffuserve.models.folders.pretrained import load_processor
from noise_levels import NUM_STEPS, scheduler
from text_encoders import BUNDLED
from wish_encoders import NUM_TOKENS, WishEncoders

GUIDANCE = 2.0
SETTINGS = {
    "name": "tiny-sd",
    "width": 128,
    "height": 128,
    "num_inference_steps": NUM_STEPS,
    "guidance_scale": GUIDANCE,
    "min_size": 32,
    "max_size": 1024,
    "max_pixels": 1024 * 1024,
    "learned_min_size": 128,
    "learned_max_size": 128,
}
"""Of `diffuserve.json`, beside the preview map."""


def assemble(folder: Path, vae: AutoencoderKL, encoders: WishEncoders, unet: UNet2DConditionModel) -> None:
    """Write everything to `folder`."""
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
    forget_place(folder / "vae" / "config.json")
    settings = SETTINGS | {"preview": preview_map()}
    (folder / "diffuserve.json").write_text(json.dumps(settings, indent=2) + "\n")


def preview_map() -> dict[str, object]:
    """Return the map of `tiny-flux`, whose VAE this is: its latents are shifted, and these are not."""
    own = json.loads((BUNDLED / "diffuserve.json").read_text())["preview"]
    vae = json.loads((BUNDLED / "vae" / "config.json").read_text())
    shift = vae["shift_factor"] * vae["scaling_factor"]
    sums = [sum(column) for column in zip(*own["factors"], strict=True)]
    bias = [round(value - shift * total, 4) for value, total in zip(own["bias"], sums, strict=True)]
    return {"factors": own["factors"], "bias": bias}
