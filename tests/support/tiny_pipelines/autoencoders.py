"""Small autoencoders with the scale factors of real ones, so that sizes are those that people ask for."""

from typing import Any

import diffusers

_FOUR_DOWN = ("DownEncoderBlock2D",) * 4
_FOUR_UP = ("UpDecoderBlock2D",) * 4


def kl(channels: int = 16, **values: Any) -> Any:
    """Return the autoencoder of Stable Diffusion (4 channels) and FLUX.1 (16): 8 pixels a latent."""
    return diffusers.AutoencoderKL(
        block_out_channels=(8, 8, 16, 16),
        down_block_types=_FOUR_DOWN,
        up_block_types=_FOUR_UP,
        layers_per_block=1,
        latent_channels=channels,
        norm_num_groups=4,
        sample_size=64,
        **values,
    )


def kl_16(**values: Any) -> Any:
    """Return the autoencoder of SD3, FLUX.1 and Z-Image: 16 channels, no quantizing layers."""
    known = {"scaling_factor": 0.3611, "shift_factor": 0.1159}
    return kl(16, use_quant_conv=False, use_post_quant_conv=False, **known | values)


def qwen_image(halvings: int = 3, channels: int = 4, **values: Any) -> Any:
    """Return Qwen-Image's autoencoder, which has three halvings: 8 pixels a latent."""
    return diffusers.AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=channels,
        dim_mult=[1] + [2] * halvings,
        num_res_blocks=1,
        temperal_downsample=[False] + [True] * (halvings - 1),
        latents_mean=[0.0] * channels,
        latents_std=[2.0] * channels,
        **values,
    )


def flux2() -> Any:
    """Return FLUX.2's autoencoder; the statistics of its batch norm are drawn with the weights."""
    return diffusers.AutoencoderKLFlux2(
        sample_size=32,
        block_out_channels=(8, 8, 8, 8),
        layers_per_block=1,
        latent_channels=16,
        norm_num_groups=4,
        down_block_types=_FOUR_DOWN,
        up_block_types=_FOUR_UP,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )


def ltx() -> Any:
    """Return LTX's autoencoder with two of its halvings: 4 pixels and 4 frames a latent."""
    return diffusers.AutoencoderKLLTXVideo(
        in_channels=3,
        out_channels=3,
        latent_channels=8,
        block_out_channels=(8, 8, 8, 8),
        decoder_block_out_channels=(8, 8, 8, 8),
        layers_per_block=(1, 1, 1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1, 1),
        spatio_temporal_scaling=(True, True, False, False),
        decoder_spatio_temporal_scaling=(True, True, False, False),
        decoder_inject_noise=(False,) * 5,
        upsample_residual=(False,) * 4,
        upsample_factor=(1,) * 4,
        timestep_conditioning=False,
        patch_size=1,
        patch_size_t=1,
        encoder_causal=True,
        decoder_causal=False,
    )


def dc_ae() -> Any:
    """Return Sana's autoencoder with two of its six levels: 2 pixels a latent."""
    return diffusers.AutoencoderDC(
        in_channels=3,
        latent_channels=4,
        attention_head_dim=2,
        encoder_block_types=("ResBlock", "EfficientViTBlock"),
        decoder_block_types=("ResBlock", "EfficientViTBlock"),
        encoder_block_out_channels=(8, 8),
        decoder_block_out_channels=(8, 8),
        encoder_qkv_multiscales=((), (5,)),
        decoder_qkv_multiscales=((), (5,)),
        encoder_layers_per_block=(1, 1),
        decoder_layers_per_block=[1, 1],
        downsample_block_type="conv",
        upsample_block_type="interpolate",
        decoder_norm_types="rms_norm",
        decoder_act_fns="silu",
        scaling_factor=0.41407,
    )


def cogvideox() -> Any:
    """Return CogVideoX's autoencoder: 8 pixels and 4 frames a latent."""
    return diffusers.AutoencoderKLCogVideoX(
        in_channels=3,
        out_channels=3,
        down_block_types=("CogVideoXDownBlock3D",) * 4,
        up_block_types=("CogVideoXUpBlock3D",) * 4,
        block_out_channels=(8, 8, 8, 8),
        latent_channels=4,
        layers_per_block=1,
        norm_num_groups=2,
        temporal_compression_ratio=4,
    )


def hunyuan_video() -> Any:
    """Return HunyuanVideo's autoencoder as Kandinsky 5 has it: 8 pixels and 4 frames a latent."""
    return diffusers.AutoencoderKLHunyuanVideo(
        in_channels=3,
        out_channels=3,
        latent_channels=16,
        block_out_channels=[8, 8, 8, 8],
        down_block_types=["HunyuanVideoDownBlock3D"] * 4,
        up_block_types=["HunyuanVideoUpBlock3D"] * 4,
        layers_per_block=1,
        norm_num_groups=4,
        mid_block_add_attention=False,
        scaling_factor=0.476986,
        spatial_compression_ratio=8,
        temporal_compression_ratio=4,
    )


def hunyuan_video_15() -> Any:
    """Return HunyuanVideo 1.5's autoencoder with fewer levels: 4 pixels and 2 frames a latent."""
    return diffusers.AutoencoderKLHunyuanVideo15(
        in_channels=3,
        out_channels=3,
        latent_channels=4,
        block_out_channels=(16, 16),
        layers_per_block=1,
        spatial_compression_ratio=4,
        temporal_compression_ratio=2,
        downsample_match_channel=False,
        upsample_match_channel=False,
    )


def ltx2() -> Any:
    """Return LTX-2's autoencoder with three of its halvings: 8 pixels and 8 frames a latent."""
    return diffusers.AutoencoderKLLTX2Video(
        in_channels=3,
        out_channels=3,
        latent_channels=4,
        block_out_channels=(8, 8, 8),
        decoder_block_out_channels=(8, 8, 8),
        layers_per_block=(1, 1, 1, 1),
        decoder_layers_per_block=(1, 1, 1, 1),
        spatio_temporal_scaling=(True,) * 3,
        decoder_spatio_temporal_scaling=(True,) * 3,
        decoder_inject_noise=(False,) * 4,
        downsample_type=("spatiotemporal",) * 3,
        upsample_residual=(False,) * 3,
        upsample_factor=(1,) * 3,
        timestep_conditioning=False,
        patch_size=1,
        patch_size_t=1,
        encoder_causal=True,
        decoder_causal=False,
    )


def wan(**values: Any) -> Any:
    """Return Wan's autoencoder: 8 pixels and 4 frames a latent."""
    known = {"base_dim": 4, "z_dim": 16, "dim_mult": [1, 1, 2, 2], "num_res_blocks": 1}
    return diffusers.AutoencoderKLWan(temperal_downsample=[False, True, True], **known | values)


def oobleck(channels: int) -> Any:
    """Return the autoencoder of sounds: 64 samples a latent, 8,000 a second."""
    return diffusers.AutoencoderOobleck(
        encoder_hidden_size=6,
        downsampling_ratios=[8, 8],
        decoder_channels=3,
        decoder_input_channels=channels,
        audio_channels=2,
        channel_multiples=[2, 4],
        sampling_rate=8000,
    )
