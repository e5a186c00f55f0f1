"""Pipelines whose prompts a Gemma reads: Sana, and LTX-2 with its sound."""

import inspect
from typing import Any

import diffusers
import transformers

from support.tiny_pipelines import autoencoders, text_parts


def sana() -> dict[str, Any]:
    tokenizer = text_parts.gemma_tokenizer()
    return {
        "transformer": diffusers.SanaTransformer2DModel(
            patch_size=1,
            in_channels=4,
            out_channels=4,
            num_layers=2,
            num_attention_heads=4,
            attention_head_dim=8,
            num_cross_attention_heads=4,
            cross_attention_head_dim=8,
            cross_attention_dim=32,
            caption_channels=32,
            sample_size=32,
        ),
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(shift=7.0),
        "vae": autoencoders.dc_ae(),
        "text_encoder": text_parts.gemma2(tokenizer),
        "tokenizer": tokenizer,
    }


def sana_controlnet() -> dict[str, Any]:
    """Add a ControlNet, whose output layers begin as zeros: drawn weights replace them."""
    parts = sana()
    config = {name: value for name, value in parts["transformer"].config.items() if name in _OF_CONTROLNET}
    controlnet = diffusers.SanaControlNetModel(**{**config, "num_layers": 1})
    return parts | {"controlnet": controlnet}


_OF_CONTROLNET = inspect.signature(diffusers.SanaControlNetModel).parameters


def ltx2() -> dict[str, Any]:
    """Return LTX-2's parts: connectors carry the prompt to clip and sound, and a vocoder plays it."""
    tokenizer = text_parts.gemma_tokenizer()
    layers = 2
    return {
        "transformer": diffusers.LTX2VideoTransformer3DModel(
            in_channels=4,
            out_channels=4,
            patch_size=1,
            patch_size_t=1,
            num_attention_heads=2,
            attention_head_dim=8,
            cross_attention_dim=16,
            audio_in_channels=4,
            audio_out_channels=4,
            audio_num_attention_heads=2,
            audio_attention_head_dim=4,
            audio_cross_attention_dim=8,
            num_layers=2,
            qk_norm="rms_norm_across_heads",
            caption_channels=32,
            rope_double_precision=False,
            rope_type="split",
        ),
        "connectors": _connectors(layers),
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(),
        "vae": autoencoders.ltx2(),
        "audio_vae": diffusers.AutoencoderKLLTX2Audio(
            base_channels=4,
            output_channels=2,
            ch_mult=(1,),
            num_res_blocks=1,
            attn_resolutions=None,
            in_channels=2,
            resolution=32,
            latent_channels=2,
            norm_type="pixel",
            causality_axis="height",
            dropout=0.0,
            mid_block_add_attention=False,
            sample_rate=16000,
            mel_hop_length=160,
            is_causal=True,
            mel_bins=8,
        ),
        "vocoder": _vocoder(),
        "text_encoder": _gemma3(tokenizer, layers),
        "tokenizer": tokenizer,
    }


def _connectors(text_layers: int) -> Any:
    from diffusers.pipelines.ltx2 import LTX2TextConnectors

    return LTX2TextConnectors(
        caption_channels=32,
        text_proj_in_factor=text_layers + 1,
        video_connector_num_attention_heads=4,
        video_connector_attention_head_dim=8,
        video_connector_num_layers=1,
        video_connector_num_learnable_registers=None,
        audio_connector_num_attention_heads=4,
        audio_connector_attention_head_dim=8,
        audio_connector_num_layers=1,
        audio_connector_num_learnable_registers=None,
        connector_rope_base_seq_len=32,
        rope_theta=10000.0,
        rope_double_precision=False,
        causal_temporal_positioning=False,
        rope_type="split",
    )


def _vocoder() -> Any:
    from diffusers.pipelines.ltx2 import LTX2Vocoder

    return LTX2Vocoder(
        in_channels=16,  # both ears' mel bins
        hidden_channels=32,
        out_channels=2,
        upsample_kernel_sizes=[4, 4],
        upsample_factors=[2, 2],
        resnet_kernel_sizes=[3],
        resnet_dilations=[[1, 3, 5]],
        leaky_relu_negative_slope=0.1,
        output_sampling_rate=16000,
    )


def _gemma3(tokenizer: Any, layers: int) -> Any:
    return transformers.Gemma3ForConditionalGeneration(
        transformers.Gemma3Config(
            text_config={
                "vocab_size": text_parts.vocabulary_size(tokenizer),
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": layers,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "head_dim": 8,
            },
            vision_config={
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 28,
                "patch_size": 14,
            },
            mm_tokens_per_image=4,
        )
    )
