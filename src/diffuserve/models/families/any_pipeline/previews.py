"""Previews of latents as pipelines of diffusers pass them to their schedulers: images, packed tokens, clips.

The maps are those that ComfyUI publishes (`latent_formats.py`).
"""

from collections.abc import Mapping

import torch
from einops import rearrange
from torch import Tensor

from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.autoencoder.flux2_preview import FLUX2_PREVIEW
from diffuserve.models.autoencoder.flux_preview import FLUX_PREVIEW
from diffuserve.models.families.any_pipeline.ltx_preview import LTX_PREVIEW
from diffuserve.models.families.any_pipeline.reading.known_latents import Latents, known_latents, num_channels
from diffuserve.models.families.any_pipeline.running.nested import leaves
from diffuserve.models.families.stable_diffusion.previews import PREVIEW as SD_PREVIEW
from diffuserve.models.families.stable_diffusion.previews import XL_PREVIEW
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.preview import PreviewMap, read_preview_map
from diffuserve.models.video_autoencoder.previews import draw_strip
from diffuserve.models.video_autoencoder.previews import preview_map as wan_map

_PATCH = 2  # tokens of images are 2×2 patches, or single cells
_SD3 = PreviewMap(
    factors=(
        (-0.0922, -0.0175, 0.0749),
        (0.0311, 0.0633, 0.0954),
        (0.1994, 0.0927, 0.0458),
        (0.0856, 0.0339, 0.0902),
        (0.0587, 0.0272, -0.0496),
        (-0.0006, 0.1104, 0.0309),
        (0.0978, 0.0306, 0.0427),
        (-0.0042, 0.1038, 0.1358),
        (-0.0194, 0.0020, 0.0669),
        (-0.0488, 0.0130, -0.0268),
        (0.0922, 0.0988, 0.0951),
        (-0.0278, 0.0524, -0.0542),
        (0.0332, 0.0456, 0.0895),
        (-0.0069, -0.0030, -0.0810),
        (-0.0596, -0.0465, -0.0293),
        (-0.1448, -0.1463, -0.1189),
    ),
    bias=(0.2394, 0.2135, 0.1925),
)
_MAPS: Mapping[Latents, PreviewMap] = {
    Latents.SD: SD_PREVIEW,
    Latents.SDXL: XL_PREVIEW,
    Latents.SD3: _SD3,
    Latents.FLUX: FLUX_PREVIEW,
    Latents.FLUX2: FLUX2_PREVIEW,
    Latents.LTX: LTX_PREVIEW,
}


class LatentPreviews:
    """Draws small images of half-done latents."""

    def __init__(self, folder: ModelFolder, spec: ModelSpec, device: torch.device) -> None:
        known = known_latents(folder)
        self._spec, channels = spec, num_channels(folder) or 16
        own = None if known is None else _MAPS.get(known)
        default = own or wan_map(folder, channels, device)
        self._map = read_preview_map(folder, len(default.weight), default, device)

    def draw(self, result: object, params: GenerationParams) -> Tensor | None:
        """Return a preview of what a scheduler's step returned, `None` for latents in no known layout.

        Where there is a prediction of the finished latents, as in most solvers, it shows that.
        """
        tensors = list(leaves(result))[:2]
        latents = next((each for each in reversed(tensors) if each.shape == tensors[0].shape), None)
        clip = None if latents is None else unpacked(latents, len(self._map.weight), self._spec, params)
        return None if clip is None else draw_strip(self._map, clip)


def unpacked(latents: Tensor, channels: int, spec: ModelSpec, params: GenerationParams) -> Tensor | None:
    """Return the first latents as channels, frames, rows and columns; `None` if they have no known layout."""
    first = latents[0]
    if first.ndim == 3 and len(first) == channels:
        return first[:, None]
    if first.ndim == 4 and channels in first.shape[:2]:
        return first if len(first) == channels else first.transpose(0, 1)
    if first.ndim == 2 and first.shape[1] in (channels, channels * _PATCH**2):
        return _from_tokens(first, 1 if first.shape[1] == channels else _PATCH, spec, params)
    return None


def _from_tokens(tokens: Tensor, patch: int, spec: ModelSpec, params: GenerationParams) -> Tensor | None:
    """Return tokens that are a clip's patches, frame by frame and row by row; `None` if they are not."""
    frames = spec.latent_frames(params)
    cells, rest = divmod(len(tokens), frames)
    rows = round((cells * (params.height or 1) / (params.width or 1)) ** 0.5)
    if rest or rows == 0 or cells % rows:
        return None
    return rearrange(tokens, "(f h w) (c p q) -> c f (h p) (w q)", f=frames, h=rows, p=patch, q=patch)
