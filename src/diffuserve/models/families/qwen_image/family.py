"""Qwen-Image and its editors as a family. Importing this file loads no torch."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.cost import CostFit, Workload
from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.parts import Parts
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.adapter_use import MAX_ADAPTERS
from diffuserve.domain.requests.samplers import FLOW_SAMPLERS
from diffuserve.models.families.packed_images.scheduler import checkpoint_sampler
from diffuserve.models.families.qwen_image.config import PATCH, TRANSFORMER_LAYERS, QwenImageConfig
from diffuserve.models.family import Capabilities, PipelineFamily, wanted_folders
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.folders.settings_file import build_spec
from diffuserve.models.text.quantized_layers import QWEN_LAYERS
from diffuserve.models.text.qwen_config import QwenConfig
from diffuserve.models.text.qwen_vision_config import QwenPixelsConfig, QwenVisionConfig
from diffuserve.models.video_autoencoder.config import VideoVaeConfig
from diffuserve.models.weights.load_plan import LoadPlan

if TYPE_CHECKING:
    import torch

    from diffuserve.models.compiled.halves import CompilableBlocks
    from diffuserve.models.pipelines.base import Pipeline

_ENCODERS = ("text_encoder",)
_COMPONENTS = ("transformer", "vae", *_ENCODERS)
_FILES = (
    *(f"{component}/config.json" for component in _COMPONENTS),
    "scheduler/scheduler_config.json",
    "tokenizer/tokenizer_config.json",
)
_SMALLEST_ITEM = 2  # bytes of a number in bf16 or fp16

# In bf16 on a large GPU, from its operations at about 400 TFLOP/s. Only ratios between jobs matter until the
# first worker sends its own fit.
_DEFAULT_FIT = CostFit((2e-3, 3.5e-5), (2e-3, 3.4e-5, 1.85e-9, 1e-4), (5e-3, 1e-7))
_DEFAULTS: Mapping[str, Any] = {
    "width": 1328,
    "height": 1328,
    "num_inference_steps": 50,
    "guidance_scale": 4.0,
    "max_sequence_length": 512,
}
_STARTS: Mapping[str, Any] = {
    "max_input_images": 1,
    "has_mask": True,
    "has_strength": True,
    "strength_rounds_up": True,
    "strength": 0.6,
    "mask_strength": 0.6,
}
_REFERENCES: Mapping[str, Any] = {
    "width": 1024,
    "height": 1024,
    "min_input_images": 1,
    "max_reference_pixels": 1024 * 1024,
    "scales_references": True,
    "min_reference_side": 28,  # pixels that are one token of the text encoder
}
_IMAGES: Mapping[str, Mapping[str, Any]] = {
    "QwenImageEditPipeline": {**_REFERENCES, "max_input_images": 1, "reference_text_tokens": 1_696},
    "QwenImageEditPlusPipeline": {**_REFERENCES, "max_input_images": 4, "reference_text_tokens": 256},
}


class QwenImageFamily:
    """Qwen-Image, which draws from a prompt, from an image and within a mask, and its editors.

    Guidance is classifier-free, with a negative prompt of its own. Editors read references twice: the
    transformer reads their latents, and the text encoder their pixels.
    """

    def read_spec(self, folder: ModelFolder) -> ModelSpec:
        config, vae = QwenImageConfig.read(folder), VideoVaeConfig.read(folder)
        _check_sizes(folder, config, vae)
        pixels = PATCH * vae.scale
        architecture: dict[str, Any] = {
            "family": "qwen image",
            "has_guidance": True,
            "guidance_passes": 2,
            "has_negative_prompt": True,
            "longest_sequence_length": 1024,
            "pixels_per_token": pixels**2,
            "size_multiple": pixels,
            "sampler": checkpoint_sampler(folder, "Qwen-Image"),
            "samplers": FLOW_SAMPLERS,
            "max_adapters": MAX_ADAPTERS,
        }
        images = _IMAGES.get(folder.pipeline_class, _STARTS)
        traits: Mapping[str, type] = {"grid_positions": bool} if images is not _STARTS else {}
        return build_spec(folder, {**architecture, **_DEFAULTS, **images}, traits)

    def capabilities(self, folder: ModelFolder) -> Capabilities:
        text = QwenConfig.read(folder, "text_encoder")
        return Capabilities(
            quantized_layers={"transformer": TRANSFORMER_LAYERS, "text_encoder": QWEN_LAYERS},
            offloads=tuple(Offload),
            shared={"attention heads": QwenImageConfig.read(folder).num_attention_heads},
            encoder_shared=text.shared,
            shares_passes=True,
            compilable=partial(_compilable, folder),
        )

    def check_files(self, folder: ModelFolder) -> None:
        folder.require(_COMPONENTS, _FILES)

    def weight_folders(self, folder: ModelFolder, parts: Parts) -> Sequence[str]:
        return wanted_folders(parts, denoisers=("transformer",), encoders=_ENCODERS)

    def min_step_bytes(self, folder: ModelFolder, workload: Workload) -> int:
        return QwenImageConfig.read(folder).step_bytes(workload, _SMALLEST_ITEM)

    def default_fit(self, folder: ModelFolder, spec: ModelSpec) -> CostFit:
        return _DEFAULT_FIT

    def load(self, folder: ModelFolder, plan: LoadPlan) -> "Pipeline":
        from diffuserve.models.families.qwen_image.pipeline import load_qwen_image

        return load_qwen_image(folder, self.read_spec(folder), plan)


def _compilable(
    folder: ModelFolder, device: "torch.device", dtype: "torch.dtype | None"
) -> "CompilableBlocks":
    from diffuserve.models.families.qwen_image.compiled import compilable_qwen_image

    return compilable_qwen_image(folder, device, dtype)


def _check_sizes(folder: ModelFolder, config: QwenImageConfig, vae: VideoVaeConfig) -> None:
    """Raise `InvalidModel` unless transformer, VAE and text encoder fit one another."""
    channels = PATCH**2 * vae.z_dim
    if (config.in_channels, PATCH**2 * config.out_channels) != (channels, channels):
        raise InvalidModel(
            f"{folder.path}: the transformer's in_channels={config.in_channels} and out_channels="
            f"{config.out_channels} must be {channels} and {vae.z_dim} for the VAE's z_dim={vae.z_dim}"
        )
    text = QwenConfig.read(folder, "text_encoder")
    if text.hidden_size != config.joint_attention_dim:
        raise InvalidModel(
            f"{folder.path}: the text encoder's hidden_size={text.hidden_size} must be the transformer's "
            f"joint_attention_dim={config.joint_attention_dim}; it is a text encoder of another size"
        )
    if folder.pipeline_class in _IMAGES:
        _check_vision(folder, text)


def _check_vision(folder: ModelFolder, text: QwenConfig) -> None:
    """Raise `InvalidModel` unless the text encoder reads images."""
    QwenPixelsConfig.read(folder)
    vision = QwenVisionConfig.read(folder, "text_encoder")
    if vision.out_hidden_size != text.hidden_size:
        raise InvalidModel(
            f"{folder.path}: the vision tower's out_hidden_size={vision.out_hidden_size} must be the text "
            f"encoder's hidden_size={text.hidden_size}"
        )


QWEN_IMAGE: PipelineFamily = QwenImageFamily()
