"""Input images of FLUX.2: references, of which a mask may be for the first one.

Reference implementations: diffusers' `Flux2KleinPipeline` and `Flux2KleinInpaintPipeline`, called once for
each image.
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.families.packed_images.conditioning import ImageConditioning
from diffuserve.models.families.packed_images.images import LatentImages
from diffuserve.models.pipelines.input_tensors import Mask, Pixels, cropped_tensor


class Flux2Images(LatentImages):
    """References, which are cropped to whole tokens. An image with a mask is where drawing starts, too."""

    def encode(self, text: ImageConditioning, params: GenerationParams) -> ImageConditioning:
        """Return the conditioning of a request: of its texts, and of its images."""
        encoded = super().encode(text, params)
        if encoded.image is None:
            return encoded
        first = self.pack([self.vae.normalize(encoded.image[:1])])[0]
        others = [self.reference(image) for image in params.images[1:] if isinstance(image, InputImage)]
        return replace(encoded, references=torch.cat([first, *others]))

    def masked(self, begun: ImageConditioning, pixels: Pixels, mask: Mask) -> ImageConditioning:
        """Return the conditioning of an image that changes within a mask; tokens have its levels."""
        sides = [side // self.vae.scale for side in mask.shape[-2:]]
        levels = F.interpolate(mask, sides, mode="bilinear")
        return replace(begun, mask=self.pack([levels])[0].to(self.dtype))

    def sample(self, moments: Tensor, generator: torch.Generator) -> Tensor:
        """Return the likeliest latents of an encoded image: none are drawn."""
        return self.vae.normalize(moments[:1])

    def reference(self, image: InputImage) -> Float[Tensor, "tokens channels"]:
        """Return the tokens of an image to refer to."""
        pixels = cropped_tensor(image, *self.spec.reference_size(image), self.spec.max_reference_pixels)
        return self.pack([self.vae.normalize(self.vae.encode(pixels).mode())])[0]
