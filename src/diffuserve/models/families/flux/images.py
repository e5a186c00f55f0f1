"""Input images of FLUX.1 Fill, which reads the masked image and the mask as further channels of each token.

Reference implementation: diffusers' `FluxFillPipeline`, called once for each image.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from einops import rearrange
from torch import Tensor

from diffuserve.models.families.flux.text import FluxConditioning
from diffuserve.models.families.packed_images.conditioning import ImageConditioning
from diffuserve.models.families.packed_images.images import LatentImages
from diffuserve.models.pipelines.base import DenoiseInput, InitialLatents
from diffuserve.models.pipelines.input_tensors import Mask, Pixels, masked_image
from diffuserve.samplers.base import Sampler, ScheduleStep


class FillImages(LatentImages):
    """Images whose masked parts the model sees."""

    def masked(self, begun: ImageConditioning, pixels: Pixels, mask: Mask) -> FluxConditioning:
        """Return the conditioning with the masked image, and with the mask for each pixel."""
        assert isinstance(begun, FluxConditioning)
        scale = self.vae.scale
        cells = rearrange(mask, "b 1 (h ph) (w pw) -> b (ph pw) h w", ph=scale, pw=scale)
        masked = self.moments(masked_image(pixels, mask))
        return replace(begun, masked=masked, mask=self.pack([cells])[0].to(self.dtype))

    def begin(
        self,
        size: Sequence[int],
        conditioning: ImageConditioning,
        generators: Sequence[torch.Generator],
        sampler: Sampler,
        at: ScheduleStep,
    ) -> InitialLatents:
        """Draw latents, then those of the masked image, which guide all steps together with the mask."""
        assert isinstance(conditioning, FluxConditioning)
        begun = super().begin(size, replace(conditioning, mask=None), generators, sampler, at)
        if conditioning.masked is None or conditioning.mask is None:
            return begun
        masked = self.pack([self.sample(conditioning.masked, generator) for generator in generators])
        masks = conditioning.mask.expand(len(masked), -1, -1)
        return InitialLatents(begun.latents, (torch.cat([masked, masks], dim=-1),))

    def restore(self, latents: Tensor, request: DenoiseInput, sampler: Sampler, at: ScheduleStep) -> Tensor:
        """Return the latents: the model has seen what to keep."""
        return latents
