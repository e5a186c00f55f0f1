"""Stable Diffusion 3: text to image, image to image, inpainting and a ControlNet."""

from typing import Any

import diffusers

from support.tiny_pipelines import autoencoders, text_parts

_TRANSFORMER = {
    "sample_size": 32,
    "patch_size": 2,
    "in_channels": 16,
    "num_layers": 2,
    "attention_head_dim": 16,
    "num_attention_heads": 4,
    "joint_attention_dim": 64,
    "caption_projection_dim": 64,
    "pooled_projection_dim": 56,
    "out_channels": 16,
    "pos_embed_max_size": 64,
}


def components() -> dict[str, Any]:
    tokenizer = text_parts.clip_tokenizer()
    return {
        "transformer": diffusers.SD3Transformer2DModel(**_TRANSFORMER),
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
        "vae": autoencoders.kl_16(scaling_factor=1.5305, shift_factor=0.06),
        "text_encoder": text_parts.clip(24, projects=True),
        "tokenizer": tokenizer,
        "text_encoder_2": text_parts.clip(
            32, projects=True
        ),  # both CLIPs side by side: 24 + 32 pooled numbers
        "tokenizer_2": tokenizer,
        "text_encoder_3": text_parts.t5(64),
        "tokenizer_3": text_parts.t5_tokenizer(),
    }


def with_controlnet() -> dict[str, Any]:
    """Add a ControlNet, whose output layers begin as zeros: drawn weights replace them."""
    extra = {"extra_conditioning_channels": 0, "num_layers": 1}
    return components() | {"controlnet": diffusers.SD3ControlNetModel(**_TRANSFORMER | extra)}
