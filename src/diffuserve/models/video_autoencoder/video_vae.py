"""Clips and images from the latents of Wan's video autoencoder, and back."""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.folders.folder import SETTINGS_FILE, ModelFolder
from diffuserve.models.frames import Frames
from diffuserve.models.layers.strips.slabs import Slabs
from diffuserve.models.layers.strips.strip_sizes import needs_strips
from diffuserve.models.layers.strips.strips import DECODER_ENTRIES
from diffuserve.models.machine.devices import is_emulated
from diffuserve.models.offload.components import Component
from diffuserve.models.video_autoencoder.blocks import FrameCache
from diffuserve.models.video_autoencoder.config import TEMPORAL_SCALE, VideoVaeConfig
from diffuserve.models.video_autoencoder.decoder import Pixels, load_decoder
from diffuserve.models.video_autoencoder.encoder import load_encoder
from diffuserve.models.weights.load_plan import LoadPlan

Latents = Float[Tensor, "clips channels latent_frames height width"]
Image4d = Float[Tensor, "1 3 pixel_rows pixel_columns"]

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def vae_dtype(folder: ModelFolder, device: torch.device) -> torch.dtype:
    """Return the dtype of a folder's autoencoder: the folder's own, or float32, in which it was published.

    On a CPU without bf16 instructions float32 replaces bf16, since it is faster there.
    Raise `InvalidModel` for another name.
    """
    name = folder.settings.get("vae_dtype", "float32")
    if name not in _DTYPES:
        raise InvalidModel(
            f"{folder.path}/{SETTINGS_FILE}: vae_dtype={name!r} must be one of {', '.join(_DTYPES)}"
        )
    dtype = _DTYPES[name]
    return torch.float32 if is_emulated(dtype, device) else dtype


class VideoVae:
    """Decodes latents to frames, and encodes images and clips that begin with one.

    It holds only weights: the state between two chunks of a clip belongs to the caller's iterator, so clips
    may be decoded concurrently.
    """

    def __init__(
        self,
        folder: ModelFolder,
        plan: LoadPlan,
        has_encoder: bool = True,
        has_decoder: bool = True,
    ) -> None:
        """Load both halves, or those that are wanted."""
        self.config, files = VideoVaeConfig.read(folder), folder.weights("vae")
        self.device, self.dtype = plan.device, plan.chosen_dtype
        self.decoder = load_decoder(self.config, files, plan.when(has_decoder))
        self.encoder = load_encoder(self.config, files, plan.when(has_encoder))
        self._mean = torch.tensor(self.config.latents_mean, device=self.device).view(1, -1, 1, 1)
        self._factor = 1.0 / torch.tensor(self.config.latents_std, device=self.device).view(1, -1, 1, 1)

    @property
    def components(self) -> Sequence[Component]:
        """Return its halves, each of whose weights may be kept on the host as a whole."""
        return (Component(self.encoder), Component(self.decoder, is_decoder=True, entries=DECODER_ENTRIES))

    def decode_chunks(
        self, latents: Float[Tensor, "1 channels latent_frames height width"]
    ) -> Iterator[Frames]:
        """Yield the frames of a clip: one, then four for each further latent frame.

        Between chunks two frames of each convolution are kept, until the iterator ends or is closed. Raise
        `FloatingPointError` if pixels are not finite.
        """
        cache: FrameCache = {}
        for frame in range(latents.shape[2]):
            yield self._decode(latents[:, :, frame], cache)

    def decode_first(self, latents: Latents) -> Frames:
        """Return the first frame of each clip, which depends only on its first latent frame.

        Raise `FloatingPointError` if pixels are not finite.
        """
        return self._decode(latents[:, :, 0], None)

    @torch.inference_mode()
    def _decode(
        self, latents: Float[Tensor, "clips channels height width"], cache: FrameCache | None
    ) -> Frames:
        latents = latents.to(self.device, self.dtype, memory_format=torch.channels_last)
        scaled = latents / self._factor.to(self.dtype) + self._mean.to(self.dtype)
        if needs_strips(latents[0, 0].numel() * self.config.scale**2):
            return _to_images(self.decoder.decode_in_strips(scaled, cache, Slabs()))
        return _to_images(self.decoder(scaled, cache))

    @torch.inference_mode()
    def encode_image(self, pixels: Image4d) -> Float[Tensor, "1 channels 1 height width"]:
        """Return the normalized latents of one image in -1…1."""
        return self._normalize([self.encoder(pixels.to(self.device, self.dtype), None)])

    @torch.inference_mode()
    def encode_clip(
        self, pixels: Image4d, num_frames: int, last: Image4d | None = None
    ) -> Float[Tensor, "1 channels latent_frames height width"]:
        """Return the normalized latents of a clip of one image in -1…1 and then gray ones, but the `last`."""
        cache: FrameCache = {}
        pixels = pixels.to(self.device, self.dtype)
        gray = torch.zeros_like(pixels).expand(TEMPORAL_SCALE, -1, -1, -1)
        chunks = [pixels, *[gray] * (self.config.latent_frames(num_frames) - 1)]
        if last is not None:
            chunks[-1] = torch.cat([gray[:-1], last.to(self.device, self.dtype)])
        return self._normalize([self.encoder(chunk, cache) for chunk in chunks])

    def _normalize(self, chunks: list[Tensor]) -> Latents:
        latents = (torch.cat(chunks).float() - self._mean) * self._factor
        return latents.transpose(0, 1)[None].contiguous()


def _to_images(pixels: Pixels) -> Frames:
    if not pixels.isfinite().all():
        raise FloatingPointError("the decoder returned pixels that are not finite")
    levels = ((pixels * 0.5 + 0.5).clamp_(0, 1).float() * 255).round().to(torch.uint8)
    return [Image.fromarray(frame) for frame in levels.cpu().numpy()]
