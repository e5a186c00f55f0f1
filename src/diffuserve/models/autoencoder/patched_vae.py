"""Images from the latents of FLUX.2's autoencoder, and back.

It is an `AutoencoderKL` whose latents models have in patches of 2×2 cells. Instead of a scale and a shift
there is a batch norm of the patches' channels, with the statistics of its training.
Reference: diffusers' `AutoencoderKLFlux2`, and `Flux2Pipeline` for its batch norm.
"""

from dataclasses import replace
from pathlib import Path

import torch
from einops import rearrange
from torch import nn

from diffuserve.models.autoencoder.config import PatchedAutoencoderConfig
from diffuserve.models.autoencoder.image_autoencoder import Encoded, Latents
from diffuserve.models.autoencoder.image_vae import ImageVae
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import Placement, load_weights

_PATCH = 2
_OTHER_PREFIXES = ("encoder.", "decoder.", "quant_conv.", "post_quant_conv.", "bn.num_batches_tracked")


class PatchedImageVae(ImageVae):
    """The autoencoder of FLUX.2: `latent_channels` are those of a patch, and `scale` is a patch's side."""

    def __init__(
        self, folder: ModelFolder, plan: LoadPlan, has_encoder: bool = True, has_decoder: bool = True
    ) -> None:
        """Load both halves, or those that are wanted."""
        super().__init__(folder, plan, has_encoder=has_encoder, has_decoder=has_decoder)
        config = PatchedAutoencoderConfig.read(folder)
        self.latent_channels, self.scale = _PATCH**2 * config.latent_channels, _PATCH * config.scale
        statistics = _load_statistics(self.latent_channels, folder.weights("vae"), plan)
        self._mean = statistics.running_mean.view(1, -1, 1, 1)
        self._std = torch.sqrt(statistics.running_var.view(1, -1, 1, 1) + config.batch_norm_eps)

    def normalize(self, latents: Encoded) -> Latents:
        patches = rearrange(latents, "b c (h ph) (w pw) -> b (c ph pw) h w", ph=_PATCH, pw=_PATCH)
        return (patches - self._mean.to(latents)) / self._std.to(latents)

    def _denormalized(self, latents: Latents) -> Encoded:
        patches = latents * self._std.to(latents) + self._mean.to(latents)
        return rearrange(patches, "b (c ph pw) h w -> b c (h ph) (w pw)", ph=_PATCH, pw=_PATCH)

    def _read_config(self, folder: ModelFolder) -> PatchedAutoencoderConfig:
        return PatchedAutoencoderConfig.read(folder)


class _BatchStatistics(nn.Module):
    """The means and variances of channels in training."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.running_mean, self.running_var = (nn.Parameter(torch.empty(channels)) for _ in range(2))


def _load_statistics(channels: int, files: list[Path], plan: LoadPlan) -> _BatchStatistics:
    """Load the batch norm of a checkpoint, in float32 on the device, whichever halves are wanted."""
    with torch.device("meta"):
        statistics = _BatchStatistics(channels)
    placements = {f"bn.{name}": Placement(name) for name, _ in statistics.named_parameters()}
    in_float32 = replace(plan, dtype=torch.float32, stay_on_host=False, copy=None)
    load_weights(statistics, files, placements, in_float32, ignored_prefixes=_OTHER_PREFIXES)
    return statistics.requires_grad_(False)
