"""Input images of Stable Diffusion: what drawing starts from, and what is filled in.

Reference: the img2img and inpainting pipelines of diffusers, for Stable Diffusion and SDXL. UNets of nine
channels read the mask and the masked image at every step; with those of four, what the mask keeps is put back
after every step, with the first noise at the level that the step has reached.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.sendable import Sendable
from diffuserve.models.autoencoder.encoder import LatentDistribution
from diffuserve.models.autoencoder.image_vae import ImageVae
from diffuserve.models.machine.devices import to_device
from diffuserve.models.pipelines.base import InitialLatents
from diffuserve.models.pipelines.input_tensors import image_tensor, latent_mask, mask_tensor, masked_image
from diffuserve.samplers.base import NoiseSchedule, Sampler

Latents = Float[Tensor, "images channels rows columns"]


@dataclass(frozen=True)
class EncodedImage(Sendable):
    """A request's image as the VAE encodes it, its mask in the size of latents, and the masked image.

    `None` stands for what the request does not need.
    """

    image: LatentDistribution | None
    mask: Float[Tensor, "1 1 rows columns"] | None = None
    masked: LatentDistribution | None = None

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self.image, self.mask, self.masked) if part is not None)


class ImageConditioner:
    """Encodes input images, and draws the latents that requests begin with.

    `reads_mask` says that the UNet takes the mask and the masked image as further channels.
    """

    def __init__(self, vae: ImageVae, dtype: torch.dtype, reads_mask: bool) -> None:
        self._vae, self._dtype, self._reads_mask = vae, dtype, reads_mask

    def key(self, params: GenerationParams) -> Hashable:
        """Return what the encoded image depends on."""
        if not params.images:
            return None
        image, mask = _inputs(params)
        size = (params.width, params.height)
        return (image.id, mask and mask.id, size, self._needs_image(params))

    def encode(self, params: Sequence[GenerationParams]) -> list[EncodedImage | None]:
        """Encode images one by one, equal ones once; `None` stands for requests without one."""
        encoded: dict[Hashable, EncodedImage | None] = {None: None}
        for wanted in params:
            key = self.key(wanted)
            if key not in encoded:
                encoded[key] = self._encode(wanted)
        return [encoded[self.key(wanted)] for wanted in params]

    def draw(
        self,
        params: GenerationParams,
        encoded: EncodedImage | None,
        generators: Sequence[torch.Generator],
        sampler: Sampler,
        schedule: NoiseSchedule,
    ) -> InitialLatents:
        """Draw the first latents of each image from its own generator, in diffusers' order."""
        drawn = [self._draw(params, encoded, generator, sampler, schedule) for generator in generators]
        first, *guides = (torch.cat(parts) for parts in zip(*drawn, strict=True))
        return InitialLatents(first, tuple(guides))

    def _encode(self, params: GenerationParams) -> EncodedImage:
        image, mask = _inputs(params)
        assert params.width is not None
        assert params.height is not None
        pixels = image_tensor(image, params.width, params.height)
        encoded = self._moments(pixels) if self._needs_image(params) else None
        if mask is None:
            return EncodedImage(encoded)
        changed = mask_tensor(mask, params.width, params.height)
        masked = self._moments(masked_image(pixels, changed)) if self._reads_mask else None
        small = latent_mask(changed, self._vae.scale).to(self._vae.device, self._dtype)
        return EncodedImage(encoded, small, masked)

    def _moments(self, pixels: Tensor) -> LatentDistribution:
        return self._vae.encode(pixels.to(self._dtype))  # rounded even where the VAE is more precise

    def _needs_image(self, params: GenerationParams) -> bool:
        """Return whether the image itself is read, and not only what its mask leaves of it."""
        return not (self._reads_mask and _is_drawn_anew(params))

    def _draw(
        self,
        params: GenerationParams,
        encoded: EncodedImage | None,
        generator: torch.Generator,
        sampler: Sampler,
        schedule: NoiseSchedule,
    ) -> tuple[Latents, ...]:
        """Return the latents of one image, and what guides it."""
        clean = None if encoded is None else self._sample(encoded.image, generator)
        noise = self._noise(params, generator)
        if clean is None or _is_drawn_anew(params):
            latents = noise * schedule.init_scale
        else:
            latents = sampler.add_noise(clean, noise, schedule.at(schedule.start))
        if encoded is None or encoded.mask is None:
            return (latents,)
        if self._reads_mask:
            masked = self._sample(encoded.masked, generator)
            assert masked is not None
            return latents, torch.cat([encoded.mask, masked], dim=1)
        assert clean is not None
        self._noise(params, generator)  # the reference draws the masked image's latents, and leaves them
        return latents, clean, noise, encoded.mask

    def _sample(self, distribution: LatentDistribution | None, generator: torch.Generator) -> Latents | None:
        if distribution is None:
            return None
        return self._vae.normalize(distribution.sample(generator).to(self._dtype))

    def _noise(self, params: GenerationParams, generator: torch.Generator) -> Latents:
        assert params.width is not None
        assert params.height is not None
        size = (params.height // self._vae.scale, params.width // self._vae.scale)
        shape = (1, self._vae.latent_channels, *size)
        # In this dtype, as the reference: torch before 2.13 draws other numbers in another.
        return to_device(torch.randn(shape, generator=generator, dtype=self._dtype), self._vae.device)


def _is_drawn_anew(params: GenerationParams) -> bool:
    """Return whether what is filled in begins as pure noise; without a mask the image shines through."""
    return params.mask is not None and params.strength == 1


def _inputs(params: GenerationParams) -> tuple[InputImage, InputImage | None]:
    """Return a request's image and its mask, with their pixels."""
    (image,) = params.images
    assert isinstance(image, InputImage)
    assert params.mask is None or isinstance(params.mask, InputImage)
    return image, params.mask
