"""Pipelines whose prompts a T5 encoder alone reads: PixArt, Chroma, and the clips of LTX and CogVideoX."""

from typing import Any

import diffusers

from support.tiny_pipelines import autoencoders, text_parts


def pixart() -> dict[str, Any]:
    return {
        "transformer": diffusers.PixArtTransformer2DModel(
            sample_size=8,
            num_layers=2,
            patch_size=2,
            attention_head_dim=8,
            num_attention_heads=3,
            caption_channels=32,
            in_channels=4,
            cross_attention_dim=24,
            out_channels=8,
            attention_bias=True,
            activation_fn="gelu-approximate",
            num_embeds_ada_norm=1000,
            norm_type="ada_norm_single",
            norm_elementwise_affine=False,
            norm_eps=1e-6,
        ),
        "scheduler": diffusers.DPMSolverMultistepScheduler(),
        "vae": autoencoders.kl(4),
        "text_encoder": text_parts.t5(),
        "tokenizer": text_parts.t5_tokenizer(),
    }


def ltx() -> dict[str, Any]:
    return {
        "transformer": diffusers.LTXVideoTransformer3DModel(
            in_channels=8,
            out_channels=8,
            patch_size=1,
            patch_size_t=1,
            num_attention_heads=4,
            attention_head_dim=8,
            cross_attention_dim=32,
            num_layers=2,
            caption_channels=32,
        ),
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(),
        "vae": autoencoders.ltx(),
        "text_encoder": text_parts.t5(),
        "tokenizer": text_parts.t5_tokenizer(),
    }


def chroma() -> dict[str, Any]:
    return {
        "transformer": diffusers.ChromaTransformer2DModel(
            patch_size=1,
            in_channels=64,
            num_layers=1,
            num_single_layers=2,
            attention_head_dim=16,
            num_attention_heads=3,
            joint_attention_dim=32,
            axes_dims_rope=[4, 6, 6],
            approximator_hidden_dim=32,
            approximator_layers=1,
            approximator_num_channels=16,
        ),
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(),
        "vae": autoencoders.kl_16(),
        "text_encoder": text_parts.t5(),
        "tokenizer": text_parts.t5_tokenizer(),
    }


def cogvideox() -> dict[str, Any]:
    return {
        "transformer": diffusers.CogVideoXTransformer3DModel(
            num_attention_heads=4,
            attention_head_dim=8,
            in_channels=4,
            out_channels=4,
            time_embed_dim=2,
            text_embed_dim=32,
            num_layers=2,
            sample_width=8,
            sample_height=8,
            sample_frames=9,
            patch_size=2,
            temporal_compression_ratio=4,
            max_text_seq_length=226,
        ),
        "scheduler": diffusers.CogVideoXDDIMScheduler(
            prediction_type="v_prediction", rescale_betas_zero_snr=True, timestep_spacing="trailing"
        ),
        "vae": autoencoders.cogvideox(),
        "text_encoder": text_parts.t5(),
        "tokenizer": text_parts.t5_tokenizer(),
    }
