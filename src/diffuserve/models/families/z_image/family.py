"""Z-Image and Z-Image-Turbo as a family. Importing this file loads no torch."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.cost import CostFit, Workload
from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.parts import Parts
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.adapter_use import MAX_ADAPTERS
from diffuserve.domain.requests.samplers import FLOW_SAMPLERS
from diffuserve.models.autoencoder.config import AutoencoderConfig
from diffuserve.models.families.packed_images.scheduler import checkpoint_sampler
from diffuserve.models.families.z_image.config import PATCH, READ_STATES, TRANSFORMER_LAYERS, ZImageConfig
from diffuserve.models.family import Capabilities, PipelineFamily, wanted_folders
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.folders.settings_file import build_spec
from diffuserve.models.text.quantized_layers import QWEN_LAYERS
from diffuserve.models.text.qwen_config import QwenConfig
from diffuserve.models.weights.load_plan import LoadPlan

if TYPE_CHECKING:
    import torch

    from diffuserve.models.compiled.halves import CompilableBlocks
    from diffuserve.models.pipelines.base import Pipeline

_COMPONENTS = ("transformer", "vae", "text_encoder")
_FILES = (
    *(f"{component}/config.json" for component in _COMPONENTS),
    "scheduler/scheduler_config.json",
    "tokenizer/tokenizer_config.json",
)
_SMALLEST_ITEM = 2  # bytes of a number in bf16 or fp16
_LONGEST_PROMPT = 512

# In bf16 on a large GPU, from its operations: 13 TFLOP a step of 1,056 tokens at about 400 TFLOP/s. Only
# ratios between jobs matter until the first worker sends its own fit.
_DEFAULT_FIT = CostFit((2e-3, 2e-5), (2e-3, 2.8e-5, 1.2e-9, 1e-4), (5e-3, 5e-8))
_SIDE = 1024  # pixels of what it draws by default
_DEFAULTS = {"num_inference_steps": 50, "guidance_scale": 5.0}
_TURBO = {"num_inference_steps": 9, "guidance_scale": 0.0}


class ZImageFamily:
    """Z-Image, guided by two passes at any scale above 0, and Turbo, which was distilled to few steps.

    Folders of all classes hold the same parts: they draw from a prompt, from an image, and within a mask.
    Turbo differs from the plain model in no config, so it is known by its name.
    """

    def read_spec(self, folder: ModelFolder) -> ModelSpec:
        config, vae = ZImageConfig.read(folder), AutoencoderConfig.read(folder)
        _check_parts(folder, config, vae, QwenConfig.read(folder, "text_encoder"))
        pixels = PATCH * vae.scale
        longest = min(_LONGEST_PROMPT, config.longest_prompt)
        architecture: dict[str, Any] = {
            "family": "z-image",
            "has_guidance": True,
            "guidance_passes": 2,
            "guided_above": 0.0,
            "has_negative_prompt": True,
            "longest_sequence_length": longest,
            "pixels_per_token": pixels**2,
            "size_multiple": pixels,
            "sampler": checkpoint_sampler(folder, "Z-Image"),
            "samplers": FLOW_SAMPLERS,
            "max_adapters": MAX_ADAPTERS,
            "max_input_images": 1,
            "has_mask": True,
            "has_strength": True,
            "strength_rounds_up": True,
            "strength": 0.6,
        }
        side = min(ModelSpec.max_size, config.longest_side * pixels)
        own = min(_SIDE, side)
        sizes = {"max_sequence_length": longest, "width": own, "height": own, "max_size": side}
        is_turbo = "turbo" in folder.name.lower()
        return build_spec(folder, architecture | sizes | _DEFAULTS | (_TURBO if is_turbo else {}))

    def capabilities(self, folder: ModelFolder) -> Capabilities:
        config, encoder = ZImageConfig.read(folder), QwenConfig.read(folder, "text_encoder")
        return Capabilities(
            quantized_layers={"transformer": TRANSFORMER_LAYERS, "text_encoder": QWEN_LAYERS},
            offloads=tuple(Offload),
            shared={"attention heads": config.n_heads, "features in its layers": config.hidden_dim},
            encoder_shared=encoder.shared,
            shares_passes=True,
            compilable=partial(_compilable, folder),
        )

    def check_files(self, folder: ModelFolder) -> None:
        folder.require(_COMPONENTS, _FILES)

    def weight_folders(self, folder: ModelFolder, parts: Parts) -> Sequence[str]:
        """Return the folders; the transformer's also holds the blocks that refine prompts."""
        encoders, denoisers = ("text_encoder", "transformer"), ("transformer",)
        return tuple(dict.fromkeys(wanted_folders(parts, denoisers, encoders)))

    def min_step_bytes(self, folder: ModelFolder, workload: Workload) -> int:
        return ZImageConfig.read(folder).step_bytes(workload, _SMALLEST_ITEM)

    def default_fit(self, folder: ModelFolder, spec: ModelSpec) -> CostFit:
        return _DEFAULT_FIT

    def load(self, folder: ModelFolder, plan: LoadPlan) -> "Pipeline":
        from diffuserve.models.families.z_image.pipeline import load_z_image

        return load_z_image(folder, self.read_spec(folder), plan)


def _compilable(
    folder: ModelFolder, device: "torch.device", dtype: "torch.dtype | None"
) -> "CompilableBlocks":
    from diffuserve.models.families.z_image.compiled import compilable_z_image

    return compilable_z_image(folder, device, dtype)


def _check_parts(
    folder: ModelFolder, config: ZImageConfig, vae: AutoencoderConfig, encoder: QwenConfig
) -> None:
    """Raise `InvalidModel` unless the transformer fits its autoencoder and its text encoder."""
    if config.in_channels != vae.latent_channels:
        raise InvalidModel(
            f"{folder.path}: the transformer's in_channels={config.in_channels} must be the VAE's "
            f"latent_channels={vae.latent_channels}"
        )
    if config.cap_feat_dim != encoder.hidden_size:
        raise InvalidModel(
            f"{folder.path}: the transformer's cap_feat_dim={config.cap_feat_dim} must be the text encoder's "
            f"hidden_size={encoder.hidden_size}; put the Qwen 3 of its own size into text_encoder/"
        )
    encoder.states_to_read(READ_STATES, f"{folder.path}/text_encoder")


Z_IMAGE: PipelineFamily = ZImageFamily()
