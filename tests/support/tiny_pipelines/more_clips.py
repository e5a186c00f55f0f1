"""Further pipelines of clips."""

from typing import Any

import diffusers
import transformers

from support.tiny_pipelines import autoencoders, text_parts


def mochi() -> dict[str, Any]:
    return {
        "transformer": diffusers.MochiTransformer3DModel(
            patch_size=2,
            num_attention_heads=2,
            attention_head_dim=8,
            num_layers=2,
            pooled_projection_dim=16,
            in_channels=12,
            qk_norm="rms_norm",
            text_embed_dim=32,
            time_embed_dim=4,
            activation_fn="swiglu",
            max_sequence_length=256,
        ),
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(),
        "vae": diffusers.AutoencoderKLMochi(
            latent_channels=12,
            out_channels=3,
            encoder_block_out_channels=(32, 32, 32, 32),
            decoder_block_out_channels=(32, 32, 32, 32),
            layers_per_block=(1, 1, 1, 1, 1),
        ),
        "text_encoder": text_parts.t5(),
        "tokenizer": text_parts.t5_tokenizer(),
    }


def sana_video() -> dict[str, Any]:
    tokenizer = text_parts.gemma_tokenizer()
    return {
        "transformer": diffusers.SanaVideoTransformer3DModel(
            in_channels=16,
            out_channels=16,
            num_attention_heads=2,
            attention_head_dim=12,
            num_layers=2,
            num_cross_attention_heads=2,
            cross_attention_head_dim=12,
            cross_attention_dim=24,
            caption_channels=32,
            mlp_ratio=2.5,
            sample_size=8,
            patch_size=(1, 2, 2),
            norm_elementwise_affine=False,
            norm_eps=1e-6,
            qk_norm="rms_norm_across_heads",
            rope_max_seq_len=32,
        ),
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(shift=7.0),
        "vae": autoencoders.wan(),
        "text_encoder": text_parts.gemma2(tokenizer),
        "tokenizer": tokenizer,
    }


def wan() -> dict[str, Any]:
    return {
        "transformer": diffusers.WanTransformer3DModel(
            patch_size=(1, 2, 2),
            num_attention_heads=2,
            attention_head_dim=12,
            in_channels=16,
            out_channels=16,
            text_dim=32,
            freq_dim=256,
            ffn_dim=32,
            num_layers=2,
            cross_attn_norm=True,
            qk_norm="rms_norm_across_heads",
            rope_max_seq_len=32,
        ),
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(shift=7.0),
        "vae": autoencoders.wan(),
        "text_encoder": text_parts.umt5(),
        "tokenizer": text_parts.t5_tokenizer(),
        "transformer_2": None,
    }


def hunyuan_video() -> dict[str, Any]:
    llama = text_parts.qwen_tokenizer()
    return {
        "transformer": diffusers.HunyuanVideoTransformer3DModel(
            in_channels=16,
            out_channels=16,
            num_attention_heads=2,
            attention_head_dim=10,
            num_layers=1,
            num_single_layers=1,
            num_refiner_layers=1,
            patch_size=1,
            patch_size_t=1,
            guidance_embeds=True,
            text_embed_dim=32,
            pooled_projection_dim=16,
            rope_axes_dim=(2, 4, 4),
        ),
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(shift=7.0),
        "vae": autoencoders.hunyuan_video(),
        "text_encoder": transformers.LlamaModel(text_parts.llama_config(llama, layers=3)),
        "tokenizer": llama,
        "text_encoder_2": text_parts.clip(16),
        "tokenizer_2": text_parts.clip_tokenizer(),
    }
