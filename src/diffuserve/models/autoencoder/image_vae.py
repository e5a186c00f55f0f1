"""Images from the latents of an image autoencoder, and back, which families share."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from einops import rearrange
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.autoencoder.config import AutoencoderConfig
from diffuserve.models.autoencoder.decoder import load_decoder
from diffuserve.models.autoencoder.encoder import LatentDistribution, load_encoder
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.offload.components import Component
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import num_parameters

# Above this many pixels an image is decoded in overlapping tiles to bound memory; the blended
# seams differ from a whole decode, so it starts where whole decodes stop being reasonable.
TILE_ABOVE_PIXELS = 2048 * 2048
_LEVEL_BYTES = 16  # per pixel and channel, for converting the decoder's output to 8 bits


class ImageVae:
    """Decodes latents to images, and encodes images.

    Convolutions run channels-last: on CPUs that is 1.4-1.7 times faster in bf16 and 1.3 times in float32
    than the default layout, and groups above four gain nothing.
    """

    def __init__(
        self,
        folder: ModelFolder,
        plan: LoadPlan,
        encoder_dtype: torch.dtype | None = None,
        has_encoder: bool = True,
        has_decoder: bool = True,
    ) -> None:
        """Load both halves, or those that are wanted."""
        config, files = AutoencoderConfig.read(folder), folder.weights("vae")
        self.device, self.dtype = plan.device, plan.chosen_dtype
        self.encoder_dtype = encoder_dtype or self.dtype
        self.decoder = load_decoder(config, files, plan.when(has_decoder))
        self.encoder = load_encoder(config, files, replace(plan.when(has_encoder), dtype=self.encoder_dtype))
        self._config = config
        self.scaling_factor = config.scaling_factor
        self.shift_factor = config.shift_factor or 0.0
        self.latent_channels = config.latent_channels
        self.scale = config.scale

    @property
    def components(self) -> Sequence[Component]:
        """Return its halves, whose weights may be kept on the host as a whole."""
        return (Component(self.encoder), Component(self.decoder, is_decoder=True))

    @property
    def decoder_parameters(self) -> int:
        return num_parameters(self.decoder)

    def decode_bytes(self, params: GenerationParams) -> int:
        """Predict the peak memory of decoding one image of a request, whole or in tiles."""
        assert params.height is not None
        assert params.width is not None
        num_pixels = params.height * params.width
        at_once = self._config.sample_size**2 if num_pixels > TILE_ABOVE_PIXELS else num_pixels
        return self._config.decode_bytes(at_once, self.dtype.itemsize) + num_pixels * _LEVEL_BYTES

    def encode(self, pixels: Float[Tensor, "1 3 pixel_rows pixel_columns"]) -> LatentDistribution:
        """Return the latents of one image in -1…1, not normalized yet."""
        return self.encoder(pixels.to(self.device, self.encoder_dtype))

    def normalize(
        self, latents: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch channels height width"]:
        """Return encoded latents on the scale on which models are trained."""
        return (latents - self.shift_factor) * self.scaling_factor

    def decode(self, latents: Float[Tensor, "batch channels height width"]) -> list[Image.Image]:
        """Decode images of one size, whole or in tiles; latents are denormalized as diffusers does it.

        Raise `FloatingPointError` if pixels are not finite.
        """
        height, width = (side * self.scale for side in latents.shape[-2:])
        scaled = latents.to(self.dtype) / self.scaling_factor + self.shift_factor
        decode = self.decoder.decode_in_tiles if height * width > TILE_ABOVE_PIXELS else self.decoder
        pixels = decode(scaled.to(memory_format=torch.channels_last))
        if not pixels.isfinite().all():
            raise FloatingPointError("the decoder returned pixels that are not finite")
        return _to_images((pixels * 0.5 + 0.5).clamp(0, 1))


def max_decode_pixels(device: torch.device, deterministic: bool) -> int:
    """Return the pixels of one decode group.

    Groups of two at 128 px were the fastest on CPUs, where each new size of group also means new
    kernels; on GPUs four at 1024 px fill the device.
    """
    if deterministic:
        return 0
    return 4 * 1024 * 1024 if device.type == "cuda" else 2 * 128 * 128


def _to_images(pixels: Float[Tensor, "batch 3 height width"]) -> list[Image.Image]:
    """Convert pixels in 0…1 to 8-bit RGB."""
    levels = (pixels.float() * 255).round().to(torch.uint8)
    return [Image.fromarray(image) for image in rearrange(levels, "b c h w -> b h w c").cpu().numpy()]
