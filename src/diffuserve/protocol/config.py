"""Configuration of an engine process, which its agent sends to it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator

from diffuserve.domain.codec import adapter_of, from_json
from diffuserve.domain.models.dtypes import find_dtype
from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.parts import ALL_PARTS, Parts
from diffuserve.domain.models.quantization import Quantization
from diffuserve.engine.config import DEFAULT_MODEL, EngineConfig
from diffuserve.modelstore.config import ModelStoreConfig
from diffuserve.options import option
from diffuserve.telemetry.log_config import LogConfig


def _canonical_dtype(name: str | None) -> str | None:
    """Return torch's name of a dtype, so that each dtype has one cost fit under all its spellings."""
    return None if name is None else find_dtype(name) or name


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """Processing of images before they leave the engine process."""

    image_filter: str = option(
        "opennsfw", "Image filter: opennsfw, transformers:/folder, nudenet, or none for no filter."
    )
    image_rules: Mapping[str, Mapping[str, Any]] = option(
        default_factory=dict,
        help='Rules of the image filter, by label: {"nsfw": {"threshold": 0.8, "action": "block"}}; '
        "by default the filter's own.",
    )
    filter_frames_every: int = option(
        1, "Of clips the filter judges the first frame, the last, and every so many between.", ge=1, le=16
    )
    allow_unjudged_audio: bool = option(
        False,
        "Let sounds out beside an image filter although nothing judges them: without it sounds are refused, "
        "and clips silent.",
    )
    file_metadata: bool = option(True, "Write the parameters of an image into its file.")


@dataclass(frozen=True, kw_only=True)
class EngineProcessConfig:
    """Configuration of an engine process, sent to it as one JSON value on its command line.

    It holds no secrets, since other users can read command lines. The ranks of a worker of several GPUs
    receive the same value. `parts` are the parts of the model that the worker's role needs.
    """

    model: str = option(
        DEFAULT_MODEL, "Bundled model, short name such as flux-schnell, name in the store, folder or hub id."
    )
    stored: ModelStoreConfig = field(default_factory=ModelStoreConfig)
    device: str | None = option(None, "Device, cpu or cuda[:n]; by default CUDA where there is a GPU.")
    dtype: Annotated[str | None, AfterValidator(_canonical_dtype)] = option(
        None,
        "Numbers that the model computes in: bfloat16, float16 or float32, for short bf16, fp16 or fp32; by "
        "default the checkpoint's, but float32 on a CPU without instructions for them.",
    )
    quantization: Quantization | None = option(
        None,
        "Keep the weights in none, int8, fp8 or int4, of which int4 saves memory alone: steps are slower, "
        "and images visibly different; by default as the folder has them.",
    )
    offload: Offload = option(
        Offload.NONE,
        "Keep weights in the host's memory until they are used: none, text (the text encoders'), model (all, "
        "in turns) or layers (all but the autoencoder's, layer by layer). It saves a GPU's memory and costs "
        "speed; images stay as they are.",
    )
    adapter_files: Mapping[str, str] = option(
        default_factory=dict,
        help="Files of adapters (LoRA, safetensors) by the names that requests give: "
        '{"my-style": "my-style.safetensors"}.',
    )
    controlnets: Mapping[str, str] = option(
        default_factory=dict,
        help="Folders of ControlNets, in diffusers' format, by the names that requests give: "
        '{"canny": "controlnet-canny"}; they are loaded beside the model.',
    )
    image_prompter: str | None = option(
        None,
        "What reads image prompts, loaded beside the model: an IP-Adapter's .safetensors, with its "
        "image_encoder in the same folder, for Stable Diffusion and SDXL, or the folder of FLUX.1 Redux.",
    )
    prepare_models: bool = option(
        True,
        "On CPUs, keep a copy of a cached model's weights in the engine's own layout, which engines map "
        "and share; it takes as much room again in --model-cache.",
    )
    peers: str | None = option(
        None,
        "Private address, or ADDRESS:PORT, at which a worker of one device gives models of the store to "
        "others and gets them; nothing is encrypted.",
    )
    peer_upload_bytes: int = option(
        50_000_000, "Bytes a second that a worker sends to its peers while it has jobs.", gt=0
    )
    compiled: bool = option(
        True,
        "On CUDA, run blocks that `diffuserve compile` has compiled for this model, GPU and torch; without "
        "them they run eagerly, and nothing is compiled.",
    )
    compiled_folder: Path | None = None
    tuned: bool = option(
        True,
        "Take the dtype, threads, tokens and requests of a step that `diffuserve tune` has found for this "
        "model on this machine, as far as no option says otherwise.",
    )
    engine: EngineConfig = field(default_factory=EngineConfig)
    images: ImageOptions = ImageOptions()
    parts: Parts = ALL_PARTS
    logs: LogConfig = LogConfig()
    parallel: str | None = option(
        None,
        "How several GPUs share the work: sequence=N (tokens), tensor=N (weights), cfg=2 (the passes of "
        "guidance), or several of them, as in cfg=2,tensor=4; by default all share every sequence.",
    )
    collective_seconds: float = option(
        120.0, "Seconds after which GPUs that wait for one another in a collective give up.", ge=1
    )

    def to_json(self) -> str:
        return adapter_of(EngineProcessConfig).dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> "EngineProcessConfig":
        """Raise `ValueError` if `text` is not what `to_json` returned."""
        return from_json(EngineProcessConfig, text)
