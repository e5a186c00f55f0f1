"""Images from the latents of Qwen-Image's autoencoder, and back: each is a clip's only frame.

Reference: diffusers' `AutoencoderKLQwenImage`, and `QwenImagePipeline` for the scale of its latents.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from diffuserve.models.autoencoder.encoder import LatentDistribution
from diffuserve.models.autoencoder.image_autoencoder import (
    Encoded,
    ImageAutoencoder,
    Latents,
    Pixels,
)
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.layers.strips.slabs import Slabs
from diffuserve.models.layers.strips.strips import DECODER_ENTRIES
from diffuserve.models.offload.components import Component
from diffuserve.models.video_autoencoder.config import VideoVaeConfig
from diffuserve.models.video_autoencoder.cost import image_bytes
from diffuserve.models.video_autoencoder.decoder import VideoDecoder, load_decoder
from diffuserve.models.video_autoencoder.encoder import VideoEncoder, load_encoder
from diffuserve.models.weights.load_plan import LoadPlan


class ImageFrames(ImageAutoencoder):
    """The autoencoder of Qwen-Image, whose latents have a mean and a deviation for each channel."""

    encoder: VideoEncoder
    decoder: VideoDecoder

    def __init__(
        self,
        folder: ModelFolder,
        plan: LoadPlan,
        encoder_dtype: torch.dtype | None = None,
        has_encoder: bool = True,
        has_decoder: bool = True,
    ) -> None:
        """Load both halves, or those that are wanted."""
        super().__init__(plan, encoder_dtype)
        self.config, files = VideoVaeConfig.read(folder), folder.weights("vae")
        self.decoder = load_decoder(self.config, files, plan.when(has_decoder))
        self.encoder = load_encoder(
            self.config, files, replace(plan.when(has_encoder), dtype=self.encoder_dtype)
        )
        self.latent_channels, self.scale = self.config.z_dim, self.config.scale
        self._mean = torch.tensor(self.config.latents_mean, device=self.device).view(1, -1, 1, 1)
        self._std = torch.tensor(self.config.latents_std, device=self.device).view(1, -1, 1, 1)

    @property
    def components(self) -> Sequence[Component]:
        decoder = Component(self.decoder, is_decoder=True, entries=DECODER_ENTRIES)
        return (Component(self.encoder, entries=("moments",)), decoder)

    def encode(self, pixels: Float[Tensor, "1 3 pixel_rows pixel_columns"]) -> LatentDistribution:
        pixels = pixels.to(self.device, self.encoder_dtype)
        return LatentDistribution.of_moments(self.encoder.moments(pixels, None))

    def normalize(self, latents: Encoded) -> Latents:
        return (latents - self._mean.to(latents)) / self._std.to(latents)

    def _denormalized(self, latents: Latents) -> Encoded:
        return latents / (1.0 / self._std).to(latents) + self._mean.to(latents)

    def _pixels(self, encoded: Encoded) -> Pixels:
        return self.decoder(encoded, None).permute(0, 3, 1, 2)

    def _pixels_in_strips(self, encoded: Encoded, slabs: Slabs) -> Pixels:
        return self.decoder.decode_in_strips(encoded, None, slabs).permute(0, 3, 1, 2)

    def _network_bytes(self, num_pixels: int) -> int:
        return image_bytes(self.config, num_pixels, self.dtype.itemsize)
