"""Stable Diffusion 1, 2 and XL as a family. Importing this file loads no torch."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.cost import CostFit, Workload
from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.parts import ALL_PARTS, Parts
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.adapter_use import MAX_ADAPTERS
from diffuserve.domain.requests.request_bounds import MAX_IMAGE_PROMPTS
from diffuserve.models.autoencoder.config import AutoencoderConfig
from diffuserve.models.families.stable_diffusion.config import SIZES, UNET_LAYERS, UNetConfig, text_encoders
from diffuserve.models.families.stable_diffusion.controlnet_config import CONTROL_WORK, ControlNetConfig
from diffuserve.models.families.stable_diffusion.image_prompts.ip_adapter import open_ip_adapter
from diffuserve.models.families.stable_diffusion.scheduler import (
    default_steps,
    own_sampler,
    replaced_scheduler,
    samplers,
    scheduler_config,
)
from diffuserve.models.family import Capabilities, PipelineFamily, wanted_folders
from diffuserve.models.folders.companions import control_abilities
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.folders.settings_file import build_spec
from diffuserve.models.text.clip_config import ClipConfig
from diffuserve.models.text.quantized_layers import CLIP_LAYERS
from diffuserve.models.weights.load_plan import LoadPlan

if TYPE_CHECKING:
    from diffuserve.models.pipelines.base import Pipeline

_SMALLEST_ITEM = 2  # bytes of a number in bf16 or fp16
_MISTAKEN_VERSIONS = re.compile(r"0\.[0-8]\.")  # of diffusers, which later versions correct
_SAMPLE_SIZES = {True: 128, False: 64}  # of latents, if the UNet's config has none

# In fp16 on a large GPU, from their operations at about 400 TFLOP/s, of 1,024² (SDXL) and 512² pixels.
# Only ratios between jobs matter until the first worker sends its own fit.
_XL_FIT = CostFit((2e-3, 1e-5), (5e-3, 9e-7, 7e-12, 1e-4), (5e-3, 2.5e-8))
_FIT = CostFit((2e-3, 2e-6), (5e-3, 4e-7, 1.8e-11, 1e-4), (5e-3, 2.5e-8))
_XL_STRENGTHS, _STRENGTHS = (0.3, 0.9999), (0.8, 1.0)  # without a mask, and with one
_XL, _OLDER = "stable-diffusion-xl", "stable-diffusion"


class StableDiffusionFamily:
    """Stable Diffusion 1, 2 and XL, guided by two passes, or by an input where they were distilled so."""

    def read_spec(self, folder: ModelFolder) -> ModelSpec:
        config, vae = UNetConfig.read(folder), AutoencoderConfig.read(folder)
        encoders = [ClipConfig.read(folder, name) for name in text_encoders(folder, config)]
        _check_channels(folder, config, vae)
        _check_widths(folder, config, encoders)
        scheduler = scheduler_config(folder, config)
        has_passes = config.time_cond_proj_dim is None
        tokens = min(encoder.max_position_embeddings for encoder in encoders)
        architecture: dict[str, Any] = {
            "family": _XL if config.is_xl else _OLDER,
            "has_guidance": True,
            "guidance_passes": 2 if has_passes else 1,
            "has_negative_prompt": has_passes,
            "has_joint_attention": False,
            "has_prompt_weights": True,
            "max_adapters": MAX_ADAPTERS,
            "max_sequence_length": tokens,
            "longest_sequence_length": tokens,
            "pixels_per_token": vae.scale**2,
            "size_multiple": vae.scale,
            "sampler": own_sampler(scheduler),
            "samplers": samplers(scheduler),
            "replaced_scheduler": replaced_scheduler(folder),
            **_images(folder, config),
            **_controls(folder, config, vae),
            **_image_prompts(folder, config),
        }
        return build_spec(
            folder, architecture | _sizes(folder, config, vae) | default_steps(scheduler, config)
        )

    def capabilities(self, folder: ModelFolder) -> Capabilities:
        config = UNetConfig.read(folder)
        layers = {"unet": UNET_LAYERS, **dict.fromkeys(text_encoders(folder, config), CLIP_LAYERS)}
        return Capabilities(
            quantized_layers=layers,
            offloads=tuple(Offload),
            shares_passes=True,
            takes_controlnets=True,
            image_prompter_files=lambda path: open_ip_adapter(path, config).weight_files,
        )

    def check_files(self, folder: ModelFolder) -> None:
        for controlnet in folder.controlnets:
            controlnet.weights()
        components = self.weight_folders(folder, ALL_PARTS)
        encoders = text_encoders(folder, UNetConfig.read(folder))
        tokenizers = [name.replace("text_encoder", "tokenizer") for name in encoders]
        folder.require(
            components,
            (
                *(f"{component}/config.json" for component in components),
                "scheduler/scheduler_config.json",
                *(f"{tokenizer}/tokenizer_config.json" for tokenizer in tokenizers),
            ),
        )

    def weight_folders(self, folder: ModelFolder, parts: Parts) -> Sequence[str]:
        return wanted_folders(parts, ("unet",), text_encoders(folder, UNetConfig.read(folder)))

    def min_step_bytes(self, folder: ModelFolder, workload: Workload) -> int:
        return UNetConfig.read(folder).step_bytes(workload, _SMALLEST_ITEM)

    def default_fit(self, folder: ModelFolder, spec: ModelSpec) -> CostFit:
        return _XL_FIT if spec.family == _XL else _FIT

    def load(self, folder: ModelFolder, plan: LoadPlan) -> "Pipeline":
        from diffuserve.models.families.stable_diffusion.pipeline import load_stable_diffusion

        return load_stable_diffusion(folder, self.read_spec(folder), plan)


STABLE_DIFFUSION: PipelineFamily = StableDiffusionFamily()


def _sizes(folder: ModelFolder, config: UNetConfig, vae: AutoencoderConfig) -> dict[str, int]:
    """Return the checkpoint's own size, and limits of half and twice of it."""
    sample_size = _sample_size(folder, config)
    rows, columns = (sample_size, sample_size) if isinstance(sample_size, int) else sample_size
    height, width = rows * vae.scale, columns * vae.scale
    return {
        "width": width,
        "height": height,
        "min_size": max(min(width, height) // 2, vae.scale),
        "max_size": 2 * max(width, height),
        "max_pixels": 4 * width * height,
    }


def _sample_size(folder: ModelFolder, config: UNetConfig) -> int | tuple[int, int]:
    """Return the size of latents; early versions of diffusers wrote one that is too small."""
    size, usual = config.sample_size or _SAMPLE_SIZES[config.is_xl], _SAMPLE_SIZES[False]
    written_by = str(folder.config("unet")[0].get("_diffusers_version"))
    is_mistaken = isinstance(size, int) and size < usual and _MISTAKEN_VERSIONS.match(written_by)
    return usual if is_mistaken and not config.is_xl else size


def _images(folder: ModelFolder, config: UNetConfig) -> dict[str, Any]:
    """Return the abilities with images: start from one, or fill it in; some models only fill in.

    The defaults of `strength` are those of diffusers' pipelines.
    """
    strength, mask_strength = _XL_STRENGTHS if config.is_xl else _STRENGTHS
    return {
        "max_input_images": 1,
        "min_input_images": int(config.reads_mask or _is_refiner(folder)),
        "has_mask": True,
        "needs_mask": config.reads_mask,
        "has_strength": True,
        "strength": strength,
        "mask_strength": mask_strength,
    }


def _image_prompts(folder: ModelFolder, config: UNetConfig) -> dict[str, int]:
    """Return the abilities with image prompts, which an IP-Adapter beside the folder reads."""
    path = folder.companions.image_prompter
    if path is None:
        return {}
    tokens = open_ip_adapter(path, config).shape.tokens
    return {"max_image_prompts": MAX_IMAGE_PROMPTS, "image_prompt_tokens": tokens}


def _controls(folder: ModelFolder, config: UNetConfig, vae: AutoencoderConfig) -> dict[str, Any]:
    """Return the abilities of the ControlNets beside a model. Raise `InvalidModel` for those of others."""
    for each in folder.controlnets:
        ControlNetConfig.read(each, config, vae.scale)
    return control_abilities(folder.controlnets, CONTROL_WORK)


def _is_refiner(folder: ModelFolder) -> bool:
    """Return whether a model refines the images of another, which it does by an aesthetic score."""
    return bool(folder.index.get("requires_aesthetics_score"))


def _check_channels(folder: ModelFolder, config: UNetConfig, vae: AutoencoderConfig) -> None:
    latent = vae.latent_channels
    channels = {
        "in_channels": (config.in_channels, (latent, 2 * latent + 1)),  # with a mask and a masked image
        "out_channels": (config.out_channels, (latent,)),
    }
    for name, (count, allowed) in channels.items():
        if count not in allowed:
            raise InvalidModel(
                f"{folder.path}: the UNet's {name}={count} must be {' or '.join(map(str, allowed))}, as the "
                f"VAE's latent_channels={latent}"
            )


def _check_widths(folder: ModelFolder, config: UNetConfig, encoders: list[ClipConfig]) -> None:
    """Raise `InvalidModel` unless the text encoders' outputs have the widths that the UNet expects."""
    states = sum(encoder.hidden_size for encoder in encoders)
    if config.cross_attention_dim != states:
        raise InvalidModel(
            f"{folder.path}: the UNet's cross_attention_dim={config.cross_attention_dim} must be the text "
            f"encoders' hidden_size, {states} in all"
        )
    if config.addition_time_embed_dim is None:
        return
    sizes = SIZES - _is_refiner(folder)
    added = encoders[-1].projection_dim + sizes * config.addition_time_embed_dim
    if config.projection_class_embeddings_input_dim != added:
        raise InvalidModel(
            f"{folder.path}: the UNet's projection_class_embeddings_input_dim="
            f"{config.projection_class_embeddings_input_dim} must be {added}: the last text encoder's "
            f"projection_dim and {sizes} times addition_time_embed_dim"
        )
