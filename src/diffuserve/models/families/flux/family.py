"""FLUX.1 (schnell, dev, Kontext and Fill) as a family. Importing this file loads no torch."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.cost import CostFit, Workload
from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.parts import Parts
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.adapter_use import MAX_ADAPTERS
from diffuserve.domain.requests.request_bounds import MAX_IMAGE_PROMPTS
from diffuserve.domain.requests.samplers import FLOW_SAMPLERS
from diffuserve.models.autoencoder.config import AutoencoderConfig
from diffuserve.models.families.flux.config import PATCH, TRANSFORMER_LAYERS, FluxConfig, fills_in
from diffuserve.models.families.flux.controlnet_config import FluxControlNetConfig, control_work
from diffuserve.models.families.flux.redux_folder import open_redux
from diffuserve.models.families.packed_images.scheduler import FLOW_EULER, checkpoint_sampler
from diffuserve.models.family import Capabilities, PipelineFamily, wanted_folders
from diffuserve.models.folders.companions import control_abilities
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.folders.settings_file import build_spec
from diffuserve.models.text.quantized_layers import CLIP_LAYERS, T5_LAYERS
from diffuserve.models.text.t5_config import T5Config
from diffuserve.models.weights.load_plan import LoadPlan

if TYPE_CHECKING:
    import torch

    from diffuserve.models.compiled.halves import CompilableBlocks
    from diffuserve.models.pipelines.base import Pipeline

_ENCODERS = ("text_encoder", "text_encoder_2")
_COMPONENTS = ("transformer", "vae", *_ENCODERS)
_FILES = (
    *(f"{component}/config.json" for component in _COMPONENTS),
    "scheduler/scheduler_config.json",
    "tokenizer/tokenizer_config.json",
    "tokenizer_2/tokenizer_config.json",
)
_SMALLEST_ITEM = 2  # bytes of a number in bf16 or fp16

# FLUX.1-schnell in bf16 on a large GPU, from its operations: 18 TFLOP a step of 1,280 tokens at about
# 400 TFLOP/s. Only ratios between jobs matter until the first worker sends its own fit.
_DEFAULT_FIT = CostFit((2e-3, 2e-5), (2e-3, 3.2e-5, 1.75e-9, 1e-4), (5e-3, 5e-8))
_DEV = {
    "width": 1024,
    "height": 1024,
    "num_inference_steps": 28,
    "guidance_scale": 3.5,
    "max_sequence_length": 512,
}
_SCHNELL = {"width": 1360, "height": 768, "num_inference_steps": 4, "max_sequence_length": 256}
_FILL = {**_DEV, "num_inference_steps": 50, "guidance_scale": 30.0}
_STARTS = {"max_input_images": 1, "has_mask": True, "has_strength": True, "strength_rounds_up": True}
_IMAGES: Mapping[str, dict[str, Any]] = {
    "FluxFillPipeline": {**_STARTS, "min_input_images": 1, "needs_mask": True, "strength": 1.0},
    "FluxKontextPipeline": {"max_input_images": 4, "max_reference_pixels": 1024 * 1024},
}
_ANY_IMAGE = {**_STARTS, "strength": 0.6}
_SCHEDULERS = {**FLOW_EULER, "FlowMatchHeunDiscreteScheduler": "flow_match_heun"}


class FluxFamily:
    """FLUX.1, whose guidance is an input of the model: one forward pass a step, guided or not.

    Folders of all classes except Fill and Kontext hold the same parts: they draw from a prompt, from an
    image, and within a mask.
    """

    def read_spec(self, folder: ModelFolder) -> ModelSpec:
        config, vae = FluxConfig.read(folder), AutoencoderConfig.read(folder)
        _check_channels(folder, config, vae)
        pixels = PATCH * vae.scale
        architecture: dict[str, Any] = {
            "family": "flux",
            "has_guidance": config.guidance_embeds,
            "longest_sequence_length": 512,
            "pixels_per_token": pixels**2,
            "size_multiple": pixels,
            "sampler": checkpoint_sampler(folder, "FLUX.1", _SCHEDULERS),
            "samplers": FLOW_SAMPLERS,
            "max_adapters": MAX_ADAPTERS,
        }
        images = _IMAGES.get(folder.pipeline_class, _ANY_IMAGE)
        beside = _image_prompts(folder, config) | _controls(folder, config)
        defaults = architecture | images | _defaults(folder, config) | beside
        return build_spec(folder, defaults, traits={"lowercase_prompt": bool})

    def capabilities(self, folder: ModelFolder) -> Capabilities:
        t5 = T5Config.read(folder, "text_encoder_2")
        return Capabilities(
            quantized_layers={
                "transformer": TRANSFORMER_LAYERS,
                "text_encoder": CLIP_LAYERS,
                "text_encoder_2": T5_LAYERS,
            },
            offloads=tuple(Offload),
            shared={"attention heads": FluxConfig.read(folder).num_attention_heads},
            encoder_shared=t5.shared,
            shares_passes=True,
            compilable=partial(_compilable, folder),
            takes_controlnets=folder.pipeline_class not in _IMAGES,
            image_prompter_files=lambda path: open_redux(path, FluxConfig.read(folder)).weight_files,
        )

    def check_files(self, folder: ModelFolder) -> None:
        folder.require(_COMPONENTS, _FILES)
        for controlnet in folder.controlnets:
            controlnet.weights()

    def weight_folders(self, folder: ModelFolder, parts: Parts) -> Sequence[str]:
        return wanted_folders(parts, denoisers=("transformer",), encoders=_ENCODERS)

    def min_step_bytes(self, folder: ModelFolder, workload: Workload) -> int:
        return FluxConfig.read(folder).step_bytes(workload, _SMALLEST_ITEM)

    def default_fit(self, folder: ModelFolder, spec: ModelSpec) -> CostFit:
        return _DEFAULT_FIT

    def load(self, folder: ModelFolder, plan: LoadPlan) -> "Pipeline":
        from diffuserve.models.families.flux.pipeline import load_flux

        return load_flux(folder, self.read_spec(folder), plan)


def _compilable(
    folder: ModelFolder, device: "torch.device", dtype: "torch.dtype | None"
) -> "CompilableBlocks":
    from diffuserve.models.families.flux.compiled import compilable_flux

    return compilable_flux(folder, device, dtype)


def _image_prompts(folder: ModelFolder, config: FluxConfig) -> dict[str, Any]:
    """Return the abilities with image prompts, which FLUX.1 Redux beside the folder reads."""
    path = folder.companions.image_prompter
    if path is None:
        return {}
    return {
        "max_image_prompts": MAX_IMAGE_PROMPTS,
        "image_prompt_tokens": open_redux(path, config).encoder.num_tokens,
        "averages_image_prompts": True,
    }


def _defaults(folder: ModelFolder, config: FluxConfig) -> dict[str, Any]:
    if not config.guidance_embeds:
        return _SCHNELL
    return _FILL if fills_in(folder) else _DEV


def _controls(folder: ModelFolder, config: FluxConfig) -> dict[str, Any]:
    """Return the abilities of the ControlNets beside a model. Raise `InvalidModel` for those of others."""
    nets = [FluxControlNetConfig.read(each, config) for each in folder.controlnets]
    modes = [net.num_modes for net in nets]
    return control_abilities(folder.controlnets, control_work(nets, config), modes)


def _check_channels(folder: ModelFolder, config: FluxConfig, vae: AutoencoderConfig) -> None:
    """Raise `InvalidModel` unless transformer and VAE fit each other and the folder's class."""
    latent = PATCH**2 * vae.latent_channels
    masked = latent + (PATCH * vae.scale) ** 2  # the masked image's latents, and the mask's pixels
    expected = (latent + masked if fills_in(folder) else latent, latent)
    if (config.in_channels, config.num_outputs) != expected:
        raise InvalidModel(
            f"{folder.path}: the transformer's in_channels={config.in_channels} and out_channels="
            f"{config.num_outputs} must be {expected[0]} and {expected[1]} for {folder.pipeline_class} with "
            f"the VAE's latent_channels={vae.latent_channels}"
        )


FLUX: PipelineFamily = FluxFamily()
