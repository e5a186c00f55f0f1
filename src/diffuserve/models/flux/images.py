"""Input images of requests for FLUX.1.

Plain models start from an image, and restore the parts kept by a mask after each step. Fill reads the masked
image and the mask as further channels of each token. Kontext reads references as further tokens.
Reference implementations: diffusers' `FluxImg2ImgPipeline`, `FluxInpaintPipeline`, `FluxFillPipeline` and
`FluxKontextPipeline`, called once for each image.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.autoencoder.encoder import LatentDistribution
from diffuserve.models.autoencoder.image_vae import ImageVae
from diffuserve.models.base import DenoiseInput, InitialLatents
from diffuserve.models.flux.config import fills_in
from diffuserve.models.flux.latents import pack_latents
from diffuserve.models.flux.text import FluxConditioning
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.input_tensors import (
    Mask,
    image_tensor,
    latent_mask,
    mask_tensor,
    masked_image,
    put_back,
)
from diffuserve.models.machine.devices import to_device
from diffuserve.samplers.base import Sampler, ScheduleStep


class FluxImages:
    """Encodes images, and draws the latents that begin with them. `fills_in`: the model is Fill."""

    def __init__(self, folder: ModelFolder, spec: ModelSpec, vae: ImageVae, dtype: torch.dtype) -> None:
        self.spec, self.vae, self.device, self.dtype = spec, vae, vae.device, dtype
        self.fills_in = fills_in(folder)

    def encode(self, text: FluxConditioning, params: GenerationParams) -> FluxConditioning:
        """Return the conditioning of a request: of its prompt, and of its images."""
        images = [image for image in params.images if isinstance(image, InputImage)]
        if not images:
            return text
        if not self.spec.has_strength:
            return replace(text, references=torch.cat([self._reference(image) for image in images]))
        assert params.width is not None
        assert params.height is not None
        pixels = image_tensor(images[0], params.width, params.height)
        begun = replace(text, image=self._moments(pixels))
        if not isinstance(params.mask, InputImage):
            return begun
        mask = mask_tensor(params.mask, params.width, params.height)
        masked = self._moments(masked_image(pixels, mask)) if self.fills_in else None
        return replace(begun, masked=masked, mask=self._packed_mask(mask))

    def begin(
        self,
        size: Sequence[int],
        conditioning: FluxConditioning,
        generators: Sequence[torch.Generator],
        sampler: Sampler,
        at: ScheduleStep,
    ) -> InitialLatents:
        """Draw the packed latents with which a request begins, and return its guides; noise has `size`."""
        drawn = [self._draw(size, conditioning, generator) for generator in generators]
        noises, images, masked_images = zip(*drawn, strict=True)
        noise = self._packed(noises)
        if conditioning.image is None:
            return InitialLatents(noise)
        clean = self._packed(images)
        latents = sampler.add_noise(clean, noise, at)
        if conditioning.mask is None:
            return InitialLatents(latents)
        if conditioning.masked is None:
            return InitialLatents(latents, (clean, noise, conditioning.mask[None]))
        masks = conditioning.mask.expand(len(latents), -1, -1)
        return InitialLatents(latents, (torch.cat([self._packed(masked_images), masks], dim=-1),))

    def restore(self, latents: Tensor, request: DenoiseInput, sampler: Sampler, at: ScheduleStep) -> Tensor:
        """Restore the parts kept by a mask, at the noise level of the latents after the step."""
        if self.fills_in or not request.guides:
            return latents
        return put_back(latents, request.guides, sampler, at)

    def _draw(
        self, size: Sequence[int], conditioning: FluxConditioning, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return an image's noise, and the latents of its input and masked images; empty if there are none.

        The order of the draws is diffusers': the image, the noise, the masked image.
        """
        image = self._sample(conditioning.image, generator)
        noise = torch.randn(size, generator=generator, dtype=self.dtype)
        return noise, image, self._sample(conditioning.masked, generator)

    def _sample(self, moments: Tensor | None, generator: torch.Generator) -> Tensor:
        if moments is None:
            return torch.empty(0)
        mean, std = moments.unsqueeze(1)
        return self.vae.normalize(LatentDistribution(mean, std).sample(generator))

    def _packed(self, latents: Sequence[Tensor]) -> Tensor:
        return to_device(pack_latents(torch.cat(list(latents))), self.device)

    def _reference(self, image: InputImage) -> Float[Tensor, "tokens channels"]:
        likeliest = self.vae.encode(image_tensor(image, *self.spec.reference_size(image))).mode()
        return pack_latents(self.vae.normalize(likeliest))[0]

    def _moments(self, pixels: Tensor) -> Float[Tensor, "2 latent_channels height width"]:
        encoded = self.vae.encode(pixels)
        return torch.cat([encoded.mean, encoded.std])

    def _packed_mask(self, mask: Mask) -> Float[Tensor, "tokens mask_channels"]:
        """Return the mask for each latent value or, for Fill, which reads it, for each pixel."""
        scale, channels = self.vae.scale, self.vae.latent_channels
        if self.fills_in:
            cells = rearrange(mask, "b 1 (h ph) (w pw) -> b (ph pw) h w", ph=scale, pw=scale)
        else:
            cells = latent_mask(mask, scale).expand(-1, channels, -1, -1)
        return pack_latents(cells)[0].to(self.device, self.dtype)
