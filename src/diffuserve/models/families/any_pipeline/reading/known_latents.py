"""Latents of which it is known how they look, by autoencoders' configs. Importing this loads no torch."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from diffuserve.models.families.any_pipeline.reading.components import read_json
from diffuserve.models.folders.folder import ModelFolder


class Latents(StrEnum):
    """The latents of a published autoencoder, which many models share."""

    SD = "sd"
    SDXL = "sdxl"
    SD3 = "sd3"
    FLUX = "flux"
    FLUX2 = "flux2"
    WAN = "wan"
    WAN_22 = "wan 2.2"
    LTX = "ltx"


# Of equal channels, those of another scale are of another autoencoder.
_BY_SCALE = {
    (4, 0.18215): Latents.SD,
    (4, 0.13025): Latents.SDXL,
    (16, 1.5305): Latents.SD3,
    (16, 0.3611): Latents.FLUX,
}
_WAN = {16: Latents.WAN, 48: Latents.WAN_22}
_DEFAULT_SCALE = 0.18215


def has_previews(folder: ModelFolder) -> bool:
    """Return whether it is known how a folder's latents look, or the folder says it itself."""
    is_told = "preview" in folder.settings and num_channels(folder) is not None
    return is_told or known_latents(folder) is not None


def num_channels(folder: ModelFolder) -> int | None:
    """Return the channels of a folder's latents, `None` if they are not said."""
    config = _config(folder)
    channels = config.get("latent_channels", config.get("z_dim"))
    return channels if isinstance(channels, int) else None


def known_latents(folder: ModelFolder) -> Latents | None:
    """Return whose latents a folder's pipeline draws, `None` if they are unknown."""
    config, channels = _config(folder), num_channels(folder)
    match config.get("_class_name"):
        case "AutoencoderKL":
            return _by_scale(channels or 4, config)
        case "AutoencoderKLFlux2":
            return Latents.FLUX2 if channels in (32, None) else None
        case "AutoencoderKLLTXVideo":
            return Latents.LTX if channels in (128, None) else None
        case "AutoencoderKLQwenImage" | "AutoencoderKLWan":
            return _WAN.get(16 if channels is None else channels)
    return None


def _config(folder: ModelFolder) -> Mapping[str, Any]:
    path = folder.path / "vae" / "config.json"
    return read_json(path) if path.is_file() else {}


def _by_scale(channels: Any, config: Mapping[str, Any]) -> Latents | None:
    scale = config.get("scaling_factor", _DEFAULT_SCALE)
    return _BY_SCALE.get((channels, scale)) if isinstance(scale, float) else None
