"""Input images of requests: to start from, with a mask or without one, or to refer to.

With a mask, the parts that it keeps are restored after each step. References are further tokens. Reference
implementations: diffusers' `FluxImg2ImgPipeline`, `FluxInpaintPipeline` and `FluxKontextPipeline`, called
once for each image; other families' are alike.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.autoencoder.encoder import LatentDistribution
from diffuserve.models.autoencoder.image_autoencoder import ImageAutoencoder
from diffuserve.models.families.packed_images.conditioning import ImageConditioning
from diffuserve.models.families.packed_images.latents import pack_latents, unpack_latents
from diffuserve.models.machine.devices import to_device
from diffuserve.models.pipelines.base import DenoiseInput, InitialLatents
from diffuserve.models.pipelines.input_tensors import (
    Mask,
    Pixels,
    image_tensor,
    latent_mask,
    mask_tensor,
    put_back,
)
from diffuserve.samplers.base import Sampler, ScheduleStep


class LatentImages:
    """Encodes images, and draws the latents that begin with them, of which `patch`² cells are a token.

    Noise is drawn in `noise_dtype`, or beside an image in the autoencoder's dtype, as in diffusers.
    """

    def __init__(
        self, spec: ModelSpec, vae: ImageAutoencoder, noise_dtype: torch.dtype, patch: int = 2
    ) -> None:
        self.spec, self.vae, self.device, self.dtype = spec, vae, vae.device, vae.dtype
        self.noise_dtype, self.patch = noise_dtype, patch

    def encode(self, text: ImageConditioning, params: GenerationParams) -> ImageConditioning:
        """Return the conditioning of a request: of its texts, and of its images."""
        images = [image for image in params.images if isinstance(image, InputImage)]
        if not images:
            return text
        if not self.spec.starts_from_image(params):
            return replace(text, references=torch.cat([self.reference(image) for image in images]))
        assert params.width is not None
        assert params.height is not None
        pixels = image_tensor(images[0], params.width, params.height)
        begun = replace(text, image=self.moments(pixels))
        if not isinstance(params.mask, InputImage):
            return begun
        return self.masked(begun, pixels, mask_tensor(params.mask, params.width, params.height))

    def masked(self, begun: ImageConditioning, pixels: Pixels, mask: Mask) -> ImageConditioning:
        """Return the conditioning of an image that changes within a mask."""
        cells = latent_mask(mask, self.vae.scale).expand(-1, self.vae.latent_channels, -1, -1)
        return replace(begun, mask=self.pack([cells])[0].to(self.dtype))

    def begin(
        self,
        size: Sequence[int],
        conditioning: ImageConditioning,
        generators: Sequence[torch.Generator],
        sampler: Sampler,
        at: ScheduleStep,
    ) -> InitialLatents:
        """Draw the packed latents with which a request begins, and return its guides; noise has `size`."""
        drawn = [self._draw(size, conditioning.image, generator) for generator in generators]
        images, noises = zip(*drawn, strict=True)
        noise = self.pack(noises)
        if conditioning.image is None:
            return InitialLatents(noise)
        clean = self.pack(images)
        latents = sampler.add_noise(clean, noise, at)
        if conditioning.mask is None:
            return InitialLatents(latents)
        return InitialLatents(latents, (clean, noise, conditioning.mask[None]))

    def restore(self, latents: Tensor, request: DenoiseInput, sampler: Sampler, at: ScheduleStep) -> Tensor:
        """Restore the parts kept by a mask, at the noise level of the latents after the step."""
        return put_back(latents, request.guides, sampler, at) if request.guides else latents

    def sample(self, moments: Tensor, generator: torch.Generator) -> Tensor:
        """Draw the latents of an encoded image."""
        mean, std = moments.unsqueeze(1)
        return self.vae.normalize(LatentDistribution(mean, std).sample(generator))

    def moments(self, pixels: Pixels) -> Float[Tensor, "2 latent_channels rows columns"]:
        """Return the mean and the deviation of an image's latents."""
        encoded = self.vae.encode(pixels)
        return torch.cat([encoded.mean, encoded.std])

    def pack(self, latents: Sequence[Tensor]) -> Float[Tensor, "images tokens channels"]:
        """Return the tokens of latent images, on the device."""
        return to_device(pack_latents(torch.cat(list(latents)), self.patch), self.device)

    def unpack(self, tokens: Tensor, rows: int) -> Float[Tensor, "images latent_channels height width"]:
        """Return the latent images of tokens that stand in `rows` rows."""
        return unpack_latents(tokens, rows, self.patch)

    def reference(self, image: InputImage) -> Float[Tensor, "tokens channels"]:
        """Return the tokens of an image to refer to."""
        likeliest = self.vae.encode(image_tensor(image, *self.spec.reference_size(image))).mode()
        return self.pack([self.vae.normalize(likeliest)])[0]

    def _draw(
        self, size: Sequence[int], image: Tensor | None, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return the latents of the image, empty if there is none, and the noise, in diffusers' order."""
        if image is None:
            return torch.empty(0), torch.randn(size, generator=generator, dtype=self.noise_dtype)
        return self.sample(image, generator), torch.randn(size, generator=generator, dtype=self.dtype)
