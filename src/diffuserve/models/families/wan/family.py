"""Wan 2.1 and 2.2 as a family. Importing this file loads no torch."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.cost import CostFit, Workload
from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.parts import Parts
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.adapter_use import MAX_ADAPTERS
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.families.wan.checkpoint import WanCheckpoint
from diffuserve.models.families.wan.config import TEXT_TOKENS, TRANSFORMER_LAYERS, WanTransformerConfig
from diffuserve.models.families.wan.scheduler import SAMPLERS, own_sampler, scheduler_config
from diffuserve.models.family import Capabilities, PipelineFamily, wanted_folders
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.folders.settings_file import build_spec
from diffuserve.models.text.quantized_layers import T5_LAYERS
from diffuserve.models.text.t5_config import Umt5Config
from diffuserve.models.video_autoencoder.config import TEMPORAL_SCALE, VideoVaeConfig
from diffuserve.models.video_autoencoder.cost import decode_bytes
from diffuserve.models.weights.load_plan import LoadPlan

if TYPE_CHECKING:
    from diffuserve.models.pipelines.base import Pipeline

_SMALLEST_ITEM = 2  # bytes of a number in bf16 or fp16
_COARSE_SCALE = 16  # pixels of a latent cell's side in the autoencoder of Wan 2.2's 5B
TRAITS: dict[str, type] = {"guidance_scale_2": float, "lowercase_prompt": bool, "vae_dtype": str}
"""Settings of a folder's `diffuserve.json` beside those of the spec: `guidance_scale_2` is the default of the
second transformer, `lowercase_prompt` is for checkpoints that were trained on lower case, `vae_dtype` is that
of the autoencoder."""

# In bf16 on a large GPU, from their operations at about 400 TFLOP/s, the autoencoder's in float32 at a
# fifth of that. Only ratios between jobs matter until the first worker sends its own fit.
_FIT = CostFit((2e-3, 3e-5), (2e-3, 7e-6, 4.6e-10, 1e-4), (5e-3, 4e-7))
_COARSE_FIT = CostFit((2e-3, 3e-5), (2e-3, 2.5e-5, 9e-10, 1e-4), (5e-3, 9e-7))

_DEFAULTS = {
    "width": 832,
    "height": 480,
    "num_frames": 81,
    "fps": 16,
    "num_inference_steps": 50,
    "guidance_scale": 5.0,
}
_COARSE_DEFAULTS = {**_DEFAULTS, "width": 1280, "height": 704, "num_frames": 121, "fps": 24}
_MAX_SIDE = 1920
_MAX_PIXELS = 1920 * 1088


class WanFamily:
    """Wan 2.1 and 2.2, which draw clips and single images from a prompt, from an image, or from either."""

    def read_spec(self, folder: ModelFolder) -> ModelSpec:
        checkpoint, scheduler = WanCheckpoint.read(folder), scheduler_config(folder)
        rows, columns = checkpoint.patch_sides
        if rows != columns:
            raise InvalidModel(f"{folder.path}/transformer/config.json: patch_size must be square")
        architecture: dict[str, Any] = {
            "family": "wan",
            "has_guidance": True,
            "guidance_passes": 2,
            "has_negative_prompt": True,
            "has_joint_attention": False,
            "max_sequence_length": TEXT_TOKENS,
            "longest_sequence_length": TEXT_TOKENS,
            "temporal_stride": TEMPORAL_SCALE,
            "pixels_per_token": rows * columns,
            "size_multiple": rows,
            "sampler": own_sampler(scheduler),
            "samplers": SAMPLERS,
            "max_adapters": MAX_ADAPTERS,
            **_images(checkpoint),
        }
        return build_spec(folder, architecture | _sizes(checkpoint), traits=TRAITS)

    def capabilities(self, folder: ModelFolder) -> Capabilities:
        checkpoint, umt5 = WanCheckpoint.read(folder), Umt5Config.read(folder, "text_encoder")
        layers = dict.fromkeys(checkpoint.experts, TRANSFORMER_LAYERS)
        return Capabilities(
            quantized_layers={**layers, "text_encoder": T5_LAYERS},
            offloads=tuple(Offload),
            shared={
                "attention heads": checkpoint.transformer.num_attention_heads,
                "features in its feed-forward layers": checkpoint.transformer.ffn_dim,
            },
            encoder_shared=umt5.shared,
            shares_passes=True,
            min_decode_bytes=partial(_least_decode_bytes, folder),
        )

    def check_files(self, folder: ModelFolder) -> None:
        checkpoint = WanCheckpoint.read(folder)
        files = ("scheduler/scheduler_config.json", "tokenizer/tokenizer_config.json")
        configs = [f"{component}/config.json" for component in checkpoint.components]
        folder.require(checkpoint.components, (*configs, *files))

    def weight_folders(self, folder: ModelFolder, parts: Parts) -> Sequence[str]:
        checkpoint = WanCheckpoint.read(folder)
        return wanted_folders(parts, checkpoint.experts, checkpoint.encoders)

    def min_step_bytes(self, folder: ModelFolder, workload: Workload) -> int:
        return WanTransformerConfig.read(folder).step_bytes(workload, _SMALLEST_ITEM)

    def default_fit(self, folder: ModelFolder, spec: ModelSpec) -> CostFit:
        return _COARSE_FIT if spec.size_multiple > _COARSE_SCALE else _FIT

    def load(self, folder: ModelFolder, plan: LoadPlan) -> "Pipeline":
        from diffuserve.models.families.wan.pipeline import load_wan

        return load_wan(folder, self.read_spec(folder), plan)


WAN: PipelineFamily = WanFamily()


def _least_decode_bytes(folder: ModelFolder, params: GenerationParams) -> int:
    assert params.height is not None
    assert params.width is not None
    return decode_bytes(VideoVaeConfig.read(folder), params.width, params.height, _SMALLEST_ITEM)


def _images(checkpoint: WanCheckpoint) -> dict[str, Any]:
    """Return the abilities with images: images are first and last frames, and some models need them."""
    takes_image = checkpoint.reads_clip or checkpoint.expand_timesteps
    return {
        "max_input_images": int(takes_image),
        "min_input_images": int(checkpoint.reads_clip),
        "has_first_frame": takes_image,
        "encodes_clip": checkpoint.reads_clip,
        "has_last_frame": checkpoint.reads_last_frame,
        "needs_last_frame": checkpoint.needs_last_frame,
    }


def _sizes(checkpoint: WanCheckpoint) -> dict[str, Any]:
    """Return the defaults and the limits of a checkpoint's clips, which its settings file may change.

    Models draw clips up to about twice as long as those that they were trained on.
    """
    defaults = _COARSE_DEFAULTS if checkpoint.vae.scale >= _COARSE_SCALE else _DEFAULTS
    side, positions = checkpoint.patch_sides[0], checkpoint.transformer.rope_max_seq_len
    return {
        **defaults,
        "min_size": side,
        "max_size": min(_MAX_SIDE, positions * side),
        "max_pixels": _MAX_PIXELS,
        "max_frames": min(2 * defaults["num_frames"] - 1, (positions - 1) * TEMPORAL_SCALE + 1),
    }
