"""What families know of an autoencoder of images, whichever network it is: latents to images, and back."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from einops import rearrange
from jaxtyping import Float
from PIL import Image
from torch import Tensor, nn

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.autoencoder.encoder import LatentDistribution
from diffuserve.models.layers.strips.slabs import Slabs
from diffuserve.models.layers.strips.strip_sizes import needs_strips
from diffuserve.models.layers.strips.strips import DECODER_ENTRIES
from diffuserve.models.offload.components import Component
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import num_parameters

Latents = Float[Tensor, "batch channels height width"]
Encoded = Float[Tensor, "batch encoded_channels encoded_height encoded_width"]

Pixels = Float[Tensor, "batch 3 pixel_rows pixel_columns"]

_LEVEL_BYTES = 16  # per pixel, for converting the decoder's output to 8 bits


class ImageAutoencoder(ABC):
    """Decodes latents to images, and encodes images. Both halves are loaded, or those that are wanted.

    Latents are those of models, `latent_channels` numbers for each cell of `scale` times `scale` pixels;
    what the encoder returns need not have their shape, which `normalize` gives it.
    """

    encoder: nn.Module
    decoder: nn.Module
    latent_channels: int
    scale: int

    def __init__(self, plan: LoadPlan, encoder_dtype: torch.dtype | None = None) -> None:
        self.device, self.dtype = plan.device, plan.chosen_dtype
        self.encoder_dtype = encoder_dtype or self.dtype

    @property
    def components(self) -> Sequence[Component]:
        """Return its halves, whose weights may be kept on the host as a whole."""
        return (Component(self.encoder), Component(self.decoder, is_decoder=True, entries=DECODER_ENTRIES))

    @property
    def decoder_parameters(self) -> int:
        """Return the number of the decoder's parameters, with which the price of a pixel goes."""
        return num_parameters(self.decoder)

    def encode(self, pixels: Float[Tensor, "1 3 pixel_rows pixel_columns"]) -> LatentDistribution:
        """Return the latents of one image in -1…1, not normalized yet."""
        return self.encoder(pixels.to(self.device, self.encoder_dtype))

    @abstractmethod
    def normalize(self, latents: Encoded) -> Latents:
        """Return encoded latents on the scale on which models are trained."""

    def decode(self, latents: Latents, slabs: Slabs | None = None) -> list[Image.Image]:
        """Decode images of one size, large ones in strips; latents are denormalized as diffusers does it.

        With `slabs` all ranks must call it with the same latents, and share the images' rows. Raise
        `FloatingPointError` if pixels are not finite.
        """
        encoded = self._denormalized(latents.to(self.dtype)).to(memory_format=torch.channels_last)
        if slabs is not None or needs_strips(latents[0, 0].numel() * self.scale**2):
            pixels = self._pixels_in_strips(encoded, slabs or Slabs())
        else:
            pixels = self._pixels(encoded)
        if not pixels.isfinite().all():
            raise FloatingPointError("the decoder returned pixels that are not finite")
        return _to_images((pixels * 0.5 + 0.5).clamp(0, 1))

    def decode_bytes(self, params: GenerationParams) -> int:
        """Predict the peak memory of decoding one image of a request."""
        assert params.height is not None
        assert params.width is not None
        num_pixels = params.width * params.height
        return self._network_bytes(num_pixels) + num_pixels * _LEVEL_BYTES

    @abstractmethod
    def _denormalized(self, latents: Latents) -> Encoded:
        """Return the latents that the decoder reads, of those of models in the autoencoder's dtype."""

    @abstractmethod
    def _pixels(self, encoded: Encoded) -> Pixels:
        """Return the decoder's pixels, about -1…1."""

    @abstractmethod
    def _pixels_in_strips(self, encoded: Encoded, slabs: Slabs) -> Pixels:
        """Return the same but for rounding, computed in strips; ranks share them in slabs."""

    @abstractmethod
    def _network_bytes(self, num_pixels: int) -> int:
        """Predict the peak memory of the decoder's features for one image."""


def _to_images(pixels: Float[Tensor, "batch 3 height width"]) -> list[Image.Image]:
    """Convert pixels in 0…1 to 8-bit RGB."""
    levels = (pixels.float() * 255).round().to(torch.uint8)
    return [Image.fromarray(image) for image in rearrange(levels, "b c h w -> b h w c").cpu().numpy()]
