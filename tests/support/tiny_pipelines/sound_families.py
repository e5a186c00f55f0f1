"""Pipelines that return sound: Stable Audio and ACE-Step."""

from typing import Any

import diffusers
import transformers

from support.tiny_pipelines import autoencoders, text_parts

_ACE = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rope_theta": 10000.0,
    "sliding_window": 16,
}


def stable_audio() -> dict[str, Any]:
    from diffusers.pipelines.stable_audio import StableAudioProjectionModel

    return {
        "transformer": diffusers.StableAudioDiTModel(
            sample_size=128,
            in_channels=3,
            num_layers=2,
            attention_head_dim=8,
            num_attention_heads=4,
            num_key_value_attention_heads=2,
            out_channels=3,
            cross_attention_dim=32,
            time_proj_dim=8,
            global_states_input_dim=64,
            cross_attention_input_dim=32,
        ),
        # Stable Audio Open's own, EDMDPMSolverMultistepScheduler, needs torchsde.
        "scheduler": diffusers.EDMDPMSolverMultistepScheduler(
            prediction_type="v_prediction", sigma_data=1.0, sigma_schedule="exponential"
        ),
        "vae": autoencoders.oobleck(3),
        "text_encoder": text_parts.t5(),
        "tokenizer": text_parts.t5_tokenizer(25),
        "projection_model": StableAudioProjectionModel(
            text_encoder_dim=32, conditioning_dim=32, min_value=0, max_value=32
        ),
    }


def ace_step() -> dict[str, Any]:
    """Return ACE-Step's parts: an encoder of prompt, lyrics and timbre, and a tokenizer of sounds."""
    from diffusers.pipelines.ace_step import (
        AceStepAudioTokenDetokenizer,
        AceStepAudioTokenizer,
        AceStepConditionEncoder,
    )

    tokenizer = text_parts.qwen_tokenizer()
    pool = _ACE | {
        "audio_acoustic_hidden_dim": 8,
        "pool_window_size": 2,
        "num_attention_pooler_hidden_layers": 1,
    }
    codes = {"fsq_dim": 32, "fsq_input_levels": [4, 4, 4], "fsq_input_num_quantizers": 1}
    layers = {"num_lyric_encoder_hidden_layers": 2, "num_timbre_encoder_hidden_layers": 2}
    return {
        "transformer": diffusers.AceStepTransformer1DModel(
            num_hidden_layers=2, in_channels=24, audio_acoustic_hidden_dim=8, patch_size=2, **_ACE
        ),
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(num_train_timesteps=1, shift=1.0),
        "vae": autoencoders.oobleck(8),
        "text_encoder": transformers.Qwen3Model(text_parts.qwen3_config(tokenizer)),
        "tokenizer": tokenizer,
        "condition_encoder": AceStepConditionEncoder(
            text_hidden_dim=32, timbre_hidden_dim=8, **layers, **_ACE
        ),
        "audio_tokenizer": AceStepAudioTokenizer(**pool, **codes),
        "audio_token_detokenizer": AceStepAudioTokenDetokenizer(**pool),
    }
