"""A clip's first frame, and its last one, given by a request.

Reference: diffusers' `WanImageToVideoPipeline`. Models that expand timesteps have the image's latents as the
first latent frame, at timestep 0. The others read a mask, and the latents of a clip of the image and gray
frames, as further channels of each token; the clip may end with another image. Wan 2.1 also attends to
CLIP's embeddings of the image, or of both, in models that were made for both.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.sendable import Sendable
from diffuserve.models.pipelines.input_tensors import image_tensor
from diffuserve.models.video_autoencoder.config import TEMPORAL_SCALE
from diffuserve.models.video_autoencoder.video_vae import VideoVae
from diffuserve.models.vision.clip_vision import ClipImageEncoder

Latents = Float[Tensor, "clips channels latent_frames height width"]


@dataclass(frozen=True)
class FirstFrame(Sendable):
    """An encoded image: the latents of the first frame, or further channels beside a clip's latents.

    `embeddings` are CLIP's.
    """

    latents: Float[Tensor, "1 channels latent_frames height width"]
    embeddings: Float[Tensor, "image_tokens image_dim"] | None = None

    @property
    def nbytes(self) -> int:
        return self.latents.nbytes + (0 if self.embeddings is None else self.embeddings.nbytes)


class FirstFrames:
    """Encodes images. `reads_clip`: they become further channels of each token."""

    def __init__(self, vae: VideoVae, image_encoder: ClipImageEncoder | None, reads_clip: bool) -> None:
        self.vae, self.image_encoder, self.reads_clip = vae, image_encoder, reads_clip

    def key(self, params: GenerationParams) -> Hashable:
        """Return the cache key of the encoded image; `None` for a request without one."""
        if not params.images:
            return None
        num_frames = params.num_frames if self.reads_clip else 1
        return (params.images, params.last_image, params.width, params.height, num_frames)

    def encode(self, params: Sequence[GenerationParams]) -> list[FirstFrame | None]:
        """Encode images one by one, equal ones once; `None` stands for requests without one."""
        encoded: dict[Hashable, FirstFrame | None] = {None: None}
        for wanted in params:
            key = self.key(wanted)
            if key not in encoded:
                encoded[key] = self._encode(wanted)
        return [encoded[self.key(wanted)] for wanted in params]

    def _encode(self, params: GenerationParams) -> FirstFrame:
        assert params.width is not None
        assert params.height is not None
        images = [image for _, image in params.input_images if isinstance(image, InputImage)]
        first, *last = [image_tensor(image, params.width, params.height) for image in images]
        if not self.reads_clip:
            return FirstFrame(self.vae.encode_image(first))
        clip = self.vae.encode_clip(first, params.num_frames or 1, *last)
        channels = torch.cat([_given_frames(clip, bool(last)), clip], dim=1)
        if self.image_encoder is None:
            return FirstFrame(channels)
        return FirstFrame(channels, torch.cat([self.image_encoder.encode(image) for image in images]))


def put_first_frame(latents: Latents, first: Float[Tensor, "1 channels 1 height width"]) -> Latents:
    """Return latents with the first latent frame of each clip replaced."""
    return torch.cat([first.expand(len(latents), -1, -1, -1, -1), latents[:, :, 1:]], dim=2)


def _given_frames(clip: Latents, has_last: bool) -> Float[Tensor, "clips frames latent_frames height width"]:
    """Return a mask with a channel for each frame of a latent frame: 1 for given frames.

    The first latent frame is all of one frame.
    """
    mask = clip.new_zeros(1, TEMPORAL_SCALE, *clip.shape[2:])
    mask[:, :, 0] = 1
    mask[:, -1, -1] = 1 if has_last else mask[:, -1, -1]
    return mask
