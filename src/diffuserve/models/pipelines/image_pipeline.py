"""The end that pipelines of images share: an autoencoder decodes their latents, on one rank or on all."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.autoencoder.image_autoencoder import ImageAutoencoder
from diffuserve.models.frames import Frames
from diffuserve.models.layers.strips.slabs import Slabs
from diffuserve.models.layers.strips.strip_sizes import needs_strips
from diffuserve.models.pipelines.batches import split_by_counts
from diffuserve.models.pipelines.loaded_pipeline import LoadedPipeline


class ImagePipeline(LoadedPipeline, ABC):
    """A loaded checkpoint that draws images."""

    @property
    @abstractmethod
    def autoencoder(self) -> ImageAutoencoder:
        """Return what decodes its latents."""

    @abstractmethod
    def latent_images(
        self, latents: Sequence[Tensor], params: Sequence[GenerationParams]
    ) -> Float[Tensor, "images channels height width"]:
        """Return the latents of requests of one size as the autoencoder has them."""

    @torch.inference_mode()
    def decode(self, latents: Sequence[Tensor], params: Sequence[GenerationParams]) -> list[list[Frames]]:
        return self._decode(latents, params, None)

    def decodes_in_slabs(self, params: GenerationParams) -> bool:
        """Return whether ranks decode it together, which they do where one would in strips."""
        assert params.width is not None
        assert params.height is not None
        return self.ranks is not None and needs_strips(params.width * params.height)

    @torch.inference_mode()
    def decode_in_slabs(
        self, latents: Sequence[Tensor], params: Sequence[GenerationParams]
    ) -> list[list[Frames]]:
        assert self.ranks is not None
        return self._decode(latents, params, Slabs(self.ranks.slabs))

    def decode_bytes(self, params: GenerationParams) -> int:
        return self.autoencoder.decode_bytes(params)

    def _decode(
        self, latents: Sequence[Tensor], params: Sequence[GenerationParams], slabs: Slabs | None
    ) -> list[list[Frames]]:
        stacked = self.latent_images(latents, params)
        pixels = stacked[0, 0].numel() * self.autoencoder.scale**2
        group = max(1, self.max_decode_pixels // pixels)
        frames = [[image] for part in stacked.split(group) for image in self.autoencoder.decode(part, slabs)]
        return split_by_counts(frames, [wanted.num_images for wanted in params])
