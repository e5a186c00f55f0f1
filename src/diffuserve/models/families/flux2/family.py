"""FLUX.2 (klein and dev) as a family. Importing this file loads no torch."""

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
from diffuserve.models.autoencoder.config import PatchedAutoencoderConfig
from diffuserve.models.families.flux2.config import (
    PATCH,
    TRANSFORMER_LAYERS,
    Flux2Config,
    is_distilled,
    is_klein,
)
from diffuserve.models.families.flux2.prompts import check_text_encoder
from diffuserve.models.families.packed_images.scheduler import checkpoint_sampler
from diffuserve.models.family import Capabilities, PipelineFamily, wanted_folders
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.folders.settings_file import build_spec
from diffuserve.models.text.quantized_layers import QWEN_LAYERS
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
_GPU_RATE = 4e14  # operations a second in bf16; only ratios matter until the first worker sends its own fit

_DEFAULTS: Mapping[str, Any] = {
    "width": 1024,
    "height": 1024,
    "max_sequence_length": 512,
    "max_input_images": 10,
    "max_reference_pixels": 1024 * 1024,
    "min_reference_side": 64,
}
_GUIDED = {"num_inference_steps": 50, "guidance_scale": 4.0, "has_guidance": True}
_DISTILLED = {"num_inference_steps": 4}
_MASKS = {"has_mask": True, "masks_references": True, "mask_strength": 0.8, "strength_rounds_up": True}


class Flux2Family:
    """FLUX.2: all draw from a prompt and edit references, and klein redraws what a mask covers of one.

    The guidance of dev is an input of the model. That of klein's base models is classifier-free, against an
    empty prompt, and the distilled ones have none.
    """

    def read_spec(self, folder: ModelFolder) -> ModelSpec:
        config, vae = Flux2Config.read(folder), PatchedAutoencoderConfig.read(folder)
        _check_channels(folder, config, vae)
        check_text_encoder(folder, config)
        pixels = PATCH * vae.scale
        architecture: dict[str, Any] = {
            "family": "flux2",
            "longest_sequence_length": 512,
            "pixels_per_token": pixels**2,
            "size_multiple": pixels,
            "sampler": checkpoint_sampler(folder, "FLUX.2"),
            "samplers": FLOW_SAMPLERS,
            "max_adapters": MAX_ADAPTERS,
        }
        return build_spec(folder, architecture | {**_DEFAULTS, **_abilities(folder)})

    def capabilities(self, folder: ModelFolder) -> Capabilities:
        config = Flux2Config.read(folder)
        text = check_text_encoder(folder, config)
        return Capabilities(
            quantized_layers={"transformer": TRANSFORMER_LAYERS, "text_encoder": QWEN_LAYERS},
            offloads=tuple(Offload),
            shared={"attention heads": config.num_attention_heads},
            encoder_shared=text.shared,
            shares_passes=True,
            compilable=partial(_compilable, folder),
        )

    def check_files(self, folder: ModelFolder) -> None:
        folder.require(_COMPONENTS, _FILES)

    def weight_folders(self, folder: ModelFolder, parts: Parts) -> Sequence[str]:
        return wanted_folders(parts, denoisers=("transformer",), encoders=_ENCODERS)

    def min_step_bytes(self, folder: ModelFolder, workload: Workload) -> int:
        return Flux2Config.read(folder).step_bytes(workload, _SMALLEST_ITEM)

    def default_fit(self, folder: ModelFolder, spec: ModelSpec) -> CostFit:
        config = Flux2Config.read(folder)
        token, pair = config.token_operations / _GPU_RATE, config.pair_operations / _GPU_RATE
        return CostFit((2e-3, 2e-5), (2e-3, token, pair, 1e-4), (5e-3, 5e-8))

    def load(self, folder: ModelFolder, plan: LoadPlan) -> "Pipeline":
        from diffuserve.models.families.flux2.pipeline import load_flux2

        return load_flux2(folder, self.read_spec(folder), plan)


def _compilable(
    folder: ModelFolder, device: "torch.device", dtype: "torch.dtype | None"
) -> "CompilableBlocks":
    from diffuserve.models.families.flux2.compiled import compilable_flux2

    return compilable_flux2(folder, device, dtype)


def _abilities(folder: ModelFolder) -> Mapping[str, Any]:
    """Return what a kind of model can do beyond the others, and its defaults."""
    if not is_klein(folder):
        return _GUIDED
    return _MASKS | (_DISTILLED if is_distilled(folder) else {**_GUIDED, "guidance_passes": 2})


def _check_channels(folder: ModelFolder, config: Flux2Config, vae: PatchedAutoencoderConfig) -> None:
    """Raise `InvalidModel` unless transformer and VAE fit each other."""
    channels = PATCH**2 * vae.latent_channels
    if (config.in_channels, config.num_outputs) != (channels, channels):
        raise InvalidModel(
            f"{folder.path}: the transformer's in_channels={config.in_channels} and out_channels="
            f"{config.num_outputs} must be {channels}, four times the VAE's "
            f"latent_channels={vae.latent_channels}"
        )


FLUX2: PipelineFamily = Flux2Family()
