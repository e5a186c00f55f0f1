"""FLUX.1 (schnell and dev) as a family. Importing this file loads no torch."""

from typing import TYPE_CHECKING, Any

from diffuserve.domain.cost import CostFit, Workload
from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.model_spec import ModelSpec
from diffuserve.models.family import PipelineFamily
from diffuserve.models.flux.config import FluxConfig
from diffuserve.models.folder import ModelFolder
from diffuserve.models.layers.autoencoder_config import AutoencoderConfig
from diffuserve.models.settings_file import build_spec

if TYPE_CHECKING:
    import torch

    from diffuserve.models.base import Pipeline
    from diffuserve.parallel.ranks import Ranks

_COMPONENTS = ("transformer", "vae", "text_encoder", "text_encoder_2")
_FILES = (
    *(f"{component}/config.json" for component in _COMPONENTS),
    "scheduler/scheduler_config.json",
    "tokenizer/tokenizer_config.json",
    "tokenizer_2/tokenizer_config.json",
)
_SMALLEST_ITEM = 2  # bytes of a number in bf16 or fp16
PATCH = 2  # a token is a 2×2 patch of the latent image

# FLUX.1-schnell in bf16 on a large GPU, from its operations: 24 TFLOP a step of 1,280 tokens at about
# 400 TFLOP/s. Only ratios between jobs matter until the first worker sends its own fit.
_DEFAULT_FIT = CostFit((2e-3, 2e-5), (2e-3, 6e-5, 2e-9, 1e-4), (5e-3, 5e-8))
_DEV = {
    "width": 1024,
    "height": 1024,
    "num_inference_steps": 28,
    "guidance_scale": 3.5,
    "max_sequence_length": 512,
}
_SCHNELL = {"width": 1360, "height": 768, "num_inference_steps": 4, "max_sequence_length": 256}


class FluxFamily:
    """FLUX.1, whose guidance is an input of the model: one forward pass a step, guided or not."""

    def read_spec(self, folder: ModelFolder) -> ModelSpec:
        config, vae = FluxConfig.read(folder), AutoencoderConfig.read(folder)
        if config.in_channels != PATCH**2 * vae.latent_channels:
            raise InvalidModel(
                f"{folder.path}: the transformer's in_channels={config.in_channels} must be {PATCH**2} times "
                f"the VAE's latent_channels={vae.latent_channels}"
            )
        architecture: dict[str, Any] = {
            "family": "flux",
            "has_guidance": config.guidance_embeds,
            "longest_sequence_length": 512,
            "pixels_per_token": (PATCH * vae.scale) ** 2,
        }
        defaults = _DEV if config.guidance_embeds else _SCHNELL
        return build_spec(folder, architecture | defaults, traits={"lowercase_prompt": bool})

    def check_files(self, folder: ModelFolder) -> None:
        folder.require(_COMPONENTS, _FILES)

    def least_step_bytes(self, folder: ModelFolder, workload: Workload) -> int:
        return FluxConfig.read(folder).step_bytes(workload, _SMALLEST_ITEM)

    def default_fit(self, spec: ModelSpec) -> CostFit:
        return _DEFAULT_FIT

    def load(
        self,
        folder: ModelFolder,
        device: "torch.device",
        dtype: "torch.dtype | None",
        deterministic: bool,
        ranks: "Ranks | None",
    ) -> "Pipeline":
        from diffuserve.models.flux.pipeline import load_flux

        self.check_files(folder)
        return load_flux(folder, self.read_spec(folder), device, dtype, deterministic, ranks)


FLUX: PipelineFamily = FluxFamily()
