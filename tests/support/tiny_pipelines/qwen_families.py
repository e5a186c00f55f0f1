"""Pipelines whose prompts a Qwen model reads: Z-Image, Qwen-Image and its editor, FLUX.2 klein."""

from typing import Any

import diffusers
import transformers

from support.tiny_pipelines import autoencoders, text_parts


def z_image() -> dict[str, Any]:
    tokenizer = text_parts.qwen_tokenizer()
    return {
        "transformer": diffusers.ZImageTransformer2DModel(
            all_patch_size=(2,),
            all_f_patch_size=(1,),
            in_channels=16,
            dim=32,
            n_layers=2,
            n_refiner_layers=1,
            n_heads=2,
            n_kv_heads=2,
            norm_eps=1e-5,
            qk_norm=True,
            cap_feat_dim=32,
            rope_theta=256.0,
            t_scale=1000.0,
            axes_dims=[8, 4, 4],
            axes_lens=[1024, 64, 64],  # the first counts the prompt's tokens: a byte each here
        ),
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
        "vae": autoencoders.kl_16(),
        "text_encoder": transformers.Qwen3Model(text_parts.qwen3_config(tokenizer)),
        "tokenizer": tokenizer,
    }


def qwen_image() -> dict[str, Any]:
    tokenizer = text_parts.qwen_tokenizer()
    return {
        "transformer": diffusers.QwenImageTransformer2DModel(
            patch_size=2,
            in_channels=16,
            out_channels=4,
            num_layers=2,
            attention_head_dim=16,
            num_attention_heads=3,
            joint_attention_dim=32,
            axes_dims_rope=(8, 4, 4),
        ),
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        "vae": autoencoders.qwen_image(),
        "text_encoder": text_parts.qwen25_vl(tokenizer),
        "tokenizer": tokenizer,
    }


def klein() -> dict[str, Any]:
    """Return FLUX.2 klein's parts; its text encoder has 28 layers, since 9, 18 and 27 are read by default."""
    tokenizer = text_parts.qwen_tokenizer()
    return {
        "transformer": diffusers.Flux2Transformer2DModel(
            patch_size=1,
            in_channels=64,
            num_layers=2,
            num_single_layers=3,
            attention_head_dim=16,
            num_attention_heads=3,
            joint_attention_dim=96,
            timestep_guidance_channels=256,
            axes_dims_rope=(4, 4, 4, 4),
            guidance_embeds=False,
        ),
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        "vae": autoencoders.flux2(),
        "text_encoder": transformers.Qwen3ForCausalLM(text_parts.qwen3_config(tokenizer, layers=28)),
        "tokenizer": tokenizer,
        "is_distilled": False,
    }
