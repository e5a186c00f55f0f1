"""SigLIP's image encoder (Zhai et al. 2023, arXiv:2303.15343), with which FLUX.1 Redux reads image prompts.

The reference implementation is transformers' `SiglipVisionModel`, whose operations and names of parameters
are kept.
"""

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from diffuserve.domain.requests.input_image import InputImage
from diffuserve.models.offload.components import Component, Ring
from diffuserve.models.text.clip import ClipLayers
from diffuserve.models.vision.pixels import stretched_image
from diffuserve.models.vision.vision_config import SiglipProcessorConfig, SiglipVisionConfig
from diffuserve.models.vision.vision_weights import load_vision_weights
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import empty_embedding

_UNUSED = ("head.",)


class SiglipImageEncoder:
    """Encodes images as a state for each patch, one by one."""

    def __init__(
        self, config: SiglipVisionConfig, processor: SiglipProcessorConfig, files: list[Path], plan: LoadPlan
    ) -> None:
        self.processor, self.device, self.dtype = processor, plan.device, plan.chosen_dtype
        with torch.device("meta"):
            self.model = _SiglipEncoder(config)
        load_vision_weights(self.model, files, plan, _UNUSED)

    @property
    def component(self) -> Component:
        """Return how its weights may be kept on the host."""
        return Component(self.model, [Ring(list(self.model.encoder.layers))], is_encoder=True)

    def encode(self, image: InputImage) -> Float[Tensor, "patches dim"]:
        """Return the states of an image, stretched to the encoder's size, after the last layer."""
        states: Tensor = self.model(stretched_image(image, self.processor).to(self.device, self.dtype))
        return states[0]


class _SiglipEncoder(nn.Module):
    """A transformer over the patches of an image."""

    def __init__(self, config: SiglipVisionConfig) -> None:
        super().__init__()
        self.embeddings = _Embeddings(config)
        self.encoder = ClipLayers(config, is_causal=False)
        self.post_layernorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def forward(self, pixels: Float[Tensor, "images 3 height width"]) -> Float[Tensor, "images patches dim"]:
        _, last = self.encoder(self.embeddings(pixels))
        return self.post_layernorm(last)


class _Embeddings(nn.Module):
    def __init__(self, config: SiglipVisionConfig) -> None:
        super().__init__()
        dim, side = config.hidden_size, config.patch_size
        self.patch_embedding = nn.Conv2d(3, dim, kernel_size=side, stride=side)
        self.position_embedding = empty_embedding(config.num_tokens, dim)

    def forward(self, pixels: Float[Tensor, "images 3 height width"]) -> Float[Tensor, "images patches dim"]:
        patches: Tensor = self.patch_embedding(pixels).flatten(2).transpose(1, 2)
        return patches + self.position_embedding.weight
