"""Further pipelines of images, which few ask for and which are cheap to have."""

from typing import Any

import diffusers
import transformers

from support.tiny_pipelines import autoencoders, text_parts


def lumina2() -> dict[str, Any]:
    tokenizer = text_parts.gemma_tokenizer()
    return {
        "transformer": diffusers.Lumina2Transformer2DModel(
            sample_size=8,
            patch_size=2,
            in_channels=16,
            hidden_size=32,
            num_layers=2,
            num_attention_heads=2,
            num_kv_heads=1,
            multiple_of=16,
            norm_eps=1e-5,
            axes_dim_rope=[8, 4, 4],
            axes_lens=[512, 64, 64],
            cap_feat_dim=32,
        ),
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(),
        "vae": autoencoders.kl_16(),
        "text_encoder": text_parts.gemma2(tokenizer, layers=2),  # the last but one is read
        "tokenizer": tokenizer,
    }


def aura_flow() -> dict[str, Any]:
    return {
        "transformer": diffusers.AuraFlowTransformer2DModel(
            sample_size=8,
            patch_size=2,
            in_channels=4,
            num_mmdit_layers=1,
            num_single_dit_layers=1,
            attention_head_dim=8,
            num_attention_heads=4,
            caption_projection_dim=32,
            joint_attention_dim=32,
            out_channels=4,
            pos_embed_max_size=256,
        ),
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(),
        "vae": autoencoders.kl(4),
        "text_encoder": text_parts.umt5(),
        "tokenizer": text_parts.t5_tokenizer(),
    }


def ovis_image() -> dict[str, Any]:
    tokenizer = text_parts.qwen_tokenizer(text_parts.template_of(diffusers.OvisImagePipeline))
    return {
        "transformer": diffusers.OvisImageTransformer2DModel(
            patch_size=1,
            in_channels=64,
            out_channels=64,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=32,
            axes_dims_rope=(4, 4, 8),
        ),
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        "vae": autoencoders.kl_16(),
        "text_encoder": transformers.Qwen3Model(text_parts.qwen3_config(tokenizer)),
        "tokenizer": tokenizer,
    }


def hunyuan_image() -> dict[str, Any]:
    """Return HunyuanImage 2.1's parts, distilled: its guidance is a number that the model reads."""
    tokenizer = text_parts.qwen_tokenizer(text_parts.template_of(diffusers.HunyuanImagePipeline))
    return {
        "transformer": diffusers.HunyuanImageTransformer2DModel(
            in_channels=4,
            out_channels=4,
            num_attention_heads=4,
            attention_head_dim=8,
            num_layers=1,
            num_single_layers=1,
            num_refiner_layers=1,
            patch_size=(1, 1),
            guidance_embeds=True,
            text_embed_dim=32,
            text_embed_2_dim=32,
            rope_axes_dim=(4, 4),
        ),
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(shift=7.0),
        "vae": diffusers.AutoencoderKLHunyuanImage(
            in_channels=3,
            out_channels=3,
            latent_channels=4,
            block_out_channels=(32, 32, 32, 32),
            layers_per_block=1,
            scaling_factor=0.476986,
            spatial_compression_ratio=8,
            sample_size=128,
        ),
        "text_encoder": text_parts.qwen25_vl(tokenizer),
        "tokenizer": tokenizer,
        "text_encoder_2": text_parts.byte_t5(),
        "tokenizer_2": transformers.ByT5Tokenizer(),
        "guider": None,
        "ocr_guider": None,
    }


def hidream() -> dict[str, Any]:
    """Return HiDream's parts: four text encoders, of which a Llama is read at several layers."""
    llama = text_parts.qwen_tokenizer()
    tokenizer = text_parts.clip_tokenizer()
    return {
        "transformer": diffusers.HiDreamImageTransformer2DModel(
            patch_size=2,
            in_channels=16,
            out_channels=16,
            num_layers=1,
            num_single_layers=1,
            attention_head_dim=8,
            num_attention_heads=4,
            caption_channels=[32, 32],
            text_emb_dim=64,
            num_routed_experts=4,
            num_activated_experts=2,
            axes_dims_rope=(4, 2, 2),
            max_resolution=(128, 128),
            llama_layers=(0, 1),
        ),
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(),
        "vae": autoencoders.kl_16(),
        "text_encoder": text_parts.clip(32, projects=True, length=128),
        "tokenizer": tokenizer,
        "text_encoder_2": text_parts.clip(32, projects=True, length=128),
        "tokenizer_2": tokenizer,
        "text_encoder_3": text_parts.t5(),
        "tokenizer_3": text_parts.t5_tokenizer(),
        "text_encoder_4": transformers.LlamaForCausalLM(text_parts.llama_config(llama)),
        "tokenizer_4": llama,
    }


def stable_diffusion() -> dict[str, Any]:
    return {
        "unet": diffusers.UNet2DConditionModel(
            block_out_channels=(8, 16),
            layers_per_block=1,
            sample_size=8,
            in_channels=4,
            out_channels=4,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
            cross_attention_dim=32,
            norm_num_groups=4,
            attention_head_dim=4,
        ),
        "scheduler": diffusers.DDIMScheduler(
            beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", clip_sample=False
        ),
        "vae": autoencoders.kl(4),
        "text_encoder": text_parts.clip(32),
        "tokenizer": text_parts.clip_tokenizer(),
        "safety_checker": None,
        "feature_extractor": None,
    }


def stable_diffusion_controlnet() -> dict[str, Any]:
    parts = stable_diffusion()
    controlnet = diffusers.ControlNetModel.from_unet(
        parts["unet"], conditioning_embedding_out_channels=(4, 8, 8, 8), load_weights_from_unet=False
    )
    return parts | {"controlnet": controlnet}


def stable_diffusion_xl_controlnet() -> dict[str, Any]:
    """Return SDXL's parts and a ControlNet; the U-Net reads sizes and a pooled prompt as well."""
    tokenizer = text_parts.clip_tokenizer()
    unet = diffusers.UNet2DConditionModel(
        block_out_channels=(8, 16),
        layers_per_block=1,
        sample_size=8,
        in_channels=4,
        out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=(2, 4),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        transformer_layers_per_block=(1, 1),
        projection_class_embeddings_input_dim=32 + 6 * 8,
        cross_attention_dim=24 + 32,
        norm_num_groups=4,
    )
    return {
        "unet": unet,
        "controlnet": diffusers.ControlNetModel.from_unet(
            unet, conditioning_embedding_out_channels=(4, 8, 8, 8), load_weights_from_unet=False
        ),
        "scheduler": diffusers.EulerDiscreteScheduler(
            beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", timestep_spacing="leading"
        ),
        "vae": autoencoders.kl(4),
        "text_encoder": text_parts.clip(24),
        "tokenizer": tokenizer,
        "text_encoder_2": text_parts.clip(32, projects=True),
        "tokenizer_2": tokenizer,
    }
