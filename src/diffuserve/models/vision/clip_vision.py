"""CLIP's image encoder (Radford et al. 2021, arXiv:2103.00020): Wan 2.1 reads a first frame with it, and
IP-Adapters read image prompts.

The reference implementations are transformers' `CLIPVisionModel` and `CLIPVisionModelWithProjection`, whose
operations and names of parameters are kept.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from diffuserve.domain.requests.input_image import InputImage
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.offload.components import Component, Ring
from diffuserve.models.text.clip import ClipLayers
from diffuserve.models.vision.pixels import Pixels, processed_image
from diffuserve.models.vision.vision_config import ClipVisionConfig, ImageProcessorConfig
from diffuserve.models.vision.vision_weights import load_vision_weights
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import empty_embedding

ImageStates = Float[Tensor, "images tokens dim"]

_PROJECTED = ("post_layernorm.", "visual_projection.")


@dataclass(frozen=True)
class ClipVisionOutput:
    """The states of the tokens before the last layer, and the projected state of the whole image.

    Encoders without a projection have no `embedding`.
    """

    penultimate: ImageStates
    embedding: Float[Tensor, "images projected"] | None


class ClipImageEncoder:
    """Encodes images, one by one; with `has_projection` as a single vector too."""

    def __init__(
        self,
        config: ClipVisionConfig,
        processor: ImageProcessorConfig,
        files: list[Path],
        plan: LoadPlan,
        has_projection: bool = False,
    ) -> None:
        self.processor, self.num_tokens = processor, config.num_tokens
        self.device, self.dtype = plan.device, plan.chosen_dtype
        with torch.device("meta"):
            self.model = _ClipVisionEncoder(config, has_projection)
        load_vision_weights(self.model, files, plan, () if has_projection else _PROJECTED)

    @classmethod
    def read(cls, folder: ModelFolder, plan: LoadPlan) -> "ClipImageEncoder":
        """Load the encoder of a model's folder, without its projection."""
        config = ClipVisionConfig.read(folder, "image_encoder")
        return cls(config, ImageProcessorConfig.read(folder), folder.weights("image_encoder"), plan)

    @property
    def component(self) -> Component:
        """Return how its weights may be kept on the host."""
        return Component(self.model, [Ring(list(self.model.encoder.layers))], is_encoder=True)

    def encode(self, image: InputImage) -> Float[Tensor, "tokens dim"]:
        """Return the states of an image's middle before the last layer."""
        return self.run(self.pixels(image)).penultimate[0]

    def pixels(self, image: InputImage) -> Pixels:
        """Return the middle of an image, in its own proportions, as the encoder reads it."""
        return processed_image(image, self.processor).to(self.device, self.dtype)

    def run(self, pixels: Pixels) -> ClipVisionOutput:
        """Return what the encoder makes of pixels."""
        output: ClipVisionOutput = self.model(pixels)
        return output


class _ClipVisionEncoder(nn.Module):
    """A transformer over the patches of an image."""

    def __init__(self, config: ClipVisionConfig, has_projection: bool) -> None:
        super().__init__()
        self.embeddings = _Embeddings(config)
        self.pre_layrnorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)  # transformers' spelling
        self.encoder = ClipLayers(config, is_causal=False)
        if has_projection:
            self.post_layernorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
            self.visual_projection = nn.Linear(config.hidden_size, config.projection_dim, bias=False)
        self._has_projection = has_projection

    def forward(self, pixels: Float[Tensor, "images 3 height width"]) -> ClipVisionOutput:
        penultimate, last = self.encoder(self.pre_layrnorm(self.embeddings(pixels)))
        if not self._has_projection:
            return ClipVisionOutput(penultimate, None)
        return ClipVisionOutput(penultimate, self.visual_projection(self.post_layernorm(last[:, 0])))


class _Embeddings(nn.Module):
    def __init__(self, config: ClipVisionConfig) -> None:
        super().__init__()
        dim, side = config.hidden_size, config.patch_size
        self.class_embedding = nn.Parameter(torch.empty(dim), requires_grad=False)
        self.patch_embedding = nn.Conv2d(3, dim, kernel_size=side, stride=side, bias=False)
        self.position_embedding = empty_embedding(config.num_tokens, dim)

    def forward(self, pixels: Float[Tensor, "images 3 height width"]) -> ImageStates:
        patches = self.patch_embedding(pixels).flatten(2).transpose(1, 2)
        whole = self.class_embedding.expand(len(pixels), 1, -1)
        states: Tensor = torch.cat([whole, patches], dim=1) + self.position_embedding.weight
        return states
