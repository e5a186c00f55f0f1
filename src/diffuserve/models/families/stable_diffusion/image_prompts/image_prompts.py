"""The image prompts of requests, as tokens that an IP-Adapter makes of them.

Reference: `prepare_ip_adapter_image_embeds` of diffusers' `StableDiffusionXLPipeline`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.domain.sendable import Sendable
from diffuserve.models.families.stable_diffusion.image_prompts.ip_adapter import ENCODER, IpAdapter
from diffuserve.models.families.stable_diffusion.image_prompts.projections import load_projection
from diffuserve.models.offload.components import Component
from diffuserve.models.vision.clip_vision import ClipImageEncoder
from diffuserve.models.vision.pixels import Pixels
from diffuserve.models.vision.vision_config import ImageProcessorConfig
from diffuserve.models.weights.load_plan import LoadPlan


@dataclass(frozen=True)
class PromptImages(Sendable):
    """The tokens of a request's images, and those of no image, which guidance steers away from."""

    states: Float[Tensor, "tokens text_dim"]
    negative: Float[Tensor, "tokens text_dim"]

    @property
    def nbytes(self) -> int:
        return self.states.nbytes + self.negative.nbytes


class ImagePrompter:
    """An IP-Adapter's image encoder and projection."""

    def __init__(self, adapter: IpAdapter, plan: LoadPlan) -> None:
        config, files = adapter.encoder_config, adapter.encoder.weights(ENCODER)
        processor = ImageProcessorConfig.square(config.image_size)
        self._reads_all = adapter.shape.resampler is not None
        self.encoder = ClipImageEncoder(config, processor, files, plan, has_projection=not self._reads_all)
        self.projection = load_projection(adapter, plan)

    @property
    def component(self) -> Component:
        """Return how the encoder's weights may be kept on the host."""
        return self.encoder.component

    def encode(self, params: Sequence[GenerationParams]) -> list[PromptImages | None]:
        """Encode images one by one, equal ones once; `None` stands for requests without one."""
        images = dict.fromkeys(image for wanted in params for image in wanted.prompt_images)
        tokens = {image: self._tokens(self._pixels(image)) for image in images}
        return [self._joined([tokens[image] for image in wanted.prompt_images]) for wanted in params]

    def _pixels(self, image: object) -> Pixels:
        assert isinstance(image, InputImage)
        return self.encoder.pixels(image)

    def _tokens(self, pixels: Pixels) -> PromptImages:
        """Return the tokens of an image, and those of the reference's empty one.

        That has an embedding of zeros or, where all of an image's tokens are read, gray pixels.
        """
        if self._reads_all:
            embeddings = [self.encoder.run(each).penultimate for each in (pixels, torch.zeros_like(pixels))]
        else:
            embedding = self.encoder.run(pixels).embedding
            assert embedding is not None
            embeddings = [embedding, torch.zeros_like(embedding)]
        states, negative = (self.projection(each)[0] for each in embeddings)
        return PromptImages(states, negative)

    def _joined(self, images: Sequence[PromptImages]) -> PromptImages | None:
        if not images:
            return None
        return PromptImages(
            torch.cat([image.states for image in images]), torch.cat([image.negative for image in images])
        )
