"""Pipelines whose prompts a Qwen model reads: Z-Image, Qwen-Image and its editor, FLUX.2 klein."""

import inspect
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


def qwen_image(reader: type = diffusers.QwenImagePipeline) -> dict[str, Any]:
    tokenizer = text_parts.qwen_tokenizer(text_parts.template_of(reader))
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


def qwen_image_controlnet() -> dict[str, Any]:
    """Add a ControlNet, whose output layers begin as zeros: drawn weights replace them."""
    parts = qwen_image(diffusers.QwenImageControlNetPipeline)
    config = parts["transformer"].config
    taken = inspect.signature(diffusers.QwenImageControlNetModel).parameters
    own = {name: config[name] for name in taken if name in config}
    return parts | {"controlnet": diffusers.QwenImageControlNetModel(**{**own, "num_layers": 1})}


def qwen_image_edit_plus() -> dict[str, Any]:
    """Return the editor's parts; its autoencoder has two halvings more than the real one.

    The pipeline scales every reference to about 1024 x 1024: 4,096 tokens, in which a prompt would be lost.
    """
    parts = qwen_image(diffusers.QwenImageEditPlusPipeline)
    return parts | {
        "vae": autoencoders.qwen_image(halvings=5),
        "processor": text_parts.qwen_processor(parts["tokenizer"]),
    }


def qwen_image_layered() -> dict[str, Any]:
    """Return the parts of the one that draws layers; its autoencoder has transparency, and few latents.

    The pipeline draws about 640 x 640 pixels. It takes an image with as many channels as latents for latents.
    """
    parts = qwen_image(diffusers.QwenImageLayeredPipeline)
    own = {"in_channels": 32, "out_channels": 8, "use_additional_t_cond": True, "use_layer3d_rope": True}
    config = dict(parts["transformer"].config, **own)
    return parts | {
        "transformer": diffusers.QwenImageTransformer2DModel.from_config(config),
        "vae": autoencoders.qwen_image(halvings=5, channels=8, input_channels=4),
        "processor": text_parts.qwen_processor(parts["tokenizer"]),
    }


def krea2() -> dict[str, Any]:
    """Return Krea 2's parts; three layers of its text encoder are read, the embedding among them."""
    tokenizer = text_parts.qwen_tokenizer(text_parts.template_of(diffusers.Krea2Pipeline))
    return {
        "transformer": diffusers.Krea2Transformer2DModel(
            in_channels=16,
            num_layers=2,
            attention_head_dim=8,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=32,
            timestep_embed_dim=8,
            text_hidden_dim=32,
            num_text_layers=3,
            text_num_attention_heads=2,
            text_num_key_value_heads=1,
            text_intermediate_size=16,
            num_layerwise_text_blocks=1,
            num_refiner_text_blocks=1,
            axes_dims_rope=(4, 2, 2),
            rope_theta=1000.0,
        ),
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        "vae": autoencoders.qwen_image(),
        "text_encoder": transformers.Qwen3VLModel(text_parts.qwen3_vl_config(tokenizer)),
        "tokenizer": tokenizer,
        "text_encoder_select_layers": (0, 1, 2),
    }


def longcat_image() -> dict[str, Any]:
    tokenizer = text_parts.qwen_tokenizer(text_parts.template_of(diffusers.LongCatImagePipeline))
    return {
        "transformer": diffusers.LongCatImageTransformer2DModel(
            patch_size=1,
            in_channels=64,
            num_layers=1,
            num_single_layers=2,
            attention_head_dim=16,
            num_attention_heads=3,
            joint_attention_dim=32,
            pooled_projection_dim=32,
            axes_dims_rope=(4, 6, 6),
        ),
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
        "vae": autoencoders.kl_16(),
        "text_encoder": text_parts.qwen25_vl(tokenizer),
        "tokenizer": tokenizer,
        "text_processor": text_parts.qwen_processor(tokenizer),
    }


def kandinsky5_image() -> dict[str, Any]:
    """Return Kandinsky 5's parts: its "tokenizer" is Qwen-VL's processor, and a CLIP pools the prompt."""
    tokenizer = text_parts.qwen_tokenizer(text_parts.template_of(diffusers.Kandinsky5T2IPipeline))
    return {
        "transformer": diffusers.Kandinsky5Transformer3DModel(
            in_visual_dim=16,
            in_text_dim=32,
            in_text_dim2=16,
            time_dim=16,
            out_visual_dim=16,
            patch_size=(1, 2, 2),
            model_dim=32,
            ff_dim=64,
            num_text_blocks=1,
            num_visual_blocks=2,
            axes_dims=(4, 6, 6),
            visual_cond=False,
            attention_type="regular",
        ),
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(shift=7.0),
        "vae": autoencoders.kl_16(),
        "text_encoder": text_parts.qwen25_vl(tokenizer),
        "tokenizer": text_parts.qwen_processor(tokenizer),
        "text_encoder_2": text_parts.clip(16),
        "tokenizer_2": text_parts.clip_tokenizer(),
    }


def kandinsky5_video() -> dict[str, Any]:
    return kandinsky5_image() | {"vae": autoencoders.hunyuan_video()}


def hunyuan_video_15() -> dict[str, Any]:
    """Return HunyuanVideo 1.5's parts: the guidance is a component, and a byte T5 reads quoted words.

    The projection of that T5 has a fixed width: 17 of the folder's 18 MB.
    """
    tokenizer = text_parts.qwen_tokenizer(text_parts.template_of(diffusers.HunyuanVideo15Pipeline))
    values = text_parts.qwen25_vl_text_values(tokenizer)
    return {
        "transformer": diffusers.HunyuanVideo15Transformer3DModel(
            in_channels=9,
            out_channels=4,
            num_attention_heads=2,
            attention_head_dim=8,
            num_layers=2,
            num_refiner_layers=1,
            mlp_ratio=2.0,
            patch_size=1,
            patch_size_t=1,
            text_embed_dim=32,
            text_embed_2_dim=32,
            image_embed_dim=12,
            rope_axes_dim=(2, 2, 4),
            target_size=16,
            task_type="t2v",
        ),
        "scheduler": diffusers.FlowMatchEulerDiscreteScheduler(shift=7.0),
        "vae": autoencoders.hunyuan_video_15(),
        "text_encoder": transformers.Qwen2_5_VLTextModel(transformers.Qwen2_5_VLTextConfig(**values)),
        "tokenizer": tokenizer,
        "text_encoder_2": text_parts.byte_t5(),
        "tokenizer_2": transformers.ByT5Tokenizer(),
        "guider": diffusers.ClassifierFreeGuidance(guidance_scale=6.0),
    }


def klein(template: str = "") -> dict[str, Any]:
    """Return FLUX.2 klein's parts; its text encoder has 28 layers, since 9, 18 and 27 are read by default."""
    tokenizer = text_parts.qwen_tokenizer(template)
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


def flux2() -> dict[str, Any]:
    """Return FLUX.2's parts; layers 10, 20 and 30 of its text encoder are read.

    The real "tokenizer" is Pixtral's processor, which transformers refuses without torchvision; of it the
    pipeline uses the chat template alone, which a tokenizer has too.
    """
    from diffusers.pipelines.flux2.system_messages import SYSTEM_MESSAGE

    parts = klein(SYSTEM_MESSAGE)
    parts.pop("is_distilled")
    config = dict(parts["transformer"].config, guidance_embeds=True)
    transformer = diffusers.Flux2Transformer2DModel.from_config(config)
    return parts | {"transformer": transformer, "text_encoder": text_parts.mistral3(parts["tokenizer"])}
