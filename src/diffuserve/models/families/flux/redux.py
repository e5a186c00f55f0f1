"""FLUX.1 Redux: image prompts as tokens that follow the prompt's.

The reference implementations are diffusers' `FluxPriorReduxPipeline` and `ReduxImageEncoder`.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.families.flux.redux_folder import EMBEDDER, ENCODER, Redux, ReduxConfig
from diffuserve.models.families.flux.text import FluxConditioning
from diffuserve.models.offload.components import Component
from diffuserve.models.pipelines.base import Conditioning
from diffuserve.models.vision.siglip import SiglipImageEncoder
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import Placement, load_weights

Tokens = Float[Tensor, "tokens text_dim"]


class ReduxPrompter:
    """Redux's image encoder and embedder."""

    def __init__(self, redux: Redux, plan: LoadPlan) -> None:
        files = redux.folder.weights(ENCODER)
        self.encoder = SiglipImageEncoder(redux.encoder, redux.processor, files, plan)
        with torch.device("meta"):
            self.embedder = _Embedder(redux.config)
        placements = {name: Placement(name) for name, _ in self.embedder.named_parameters()}
        load_weights(self.embedder, redux.folder.weights(EMBEDDER), placements, plan)
        self.embedder.eval()

    @property
    def component(self) -> Component:
        """Return how the encoder's weights may be kept on the host."""
        return self.encoder.component

    def extend(
        self, conditionings: Sequence[Conditioning], params: Sequence[GenerationParams]
    ) -> list[Conditioning]:
        """Return what was encoded of prompts, each with its request's images; equal ones are encoded once.

        Several images are averaged. The scale multiplies all tokens, those of the prompt too.
        """
        images = dict.fromkeys(image for wanted in params for image in wanted.prompt_images)
        tokens = {image: self._tokens(image) for image in images}
        return [
            _extended(conditioning, [tokens[image] for image in wanted.prompt_images], wanted)
            for conditioning, wanted in zip(conditionings, params, strict=True)
        ]

    def _tokens(self, image: object) -> Tokens:
        assert isinstance(image, InputImage)
        tokens: Tensor = self.embedder(self.encoder.encode(image))
        return tokens


class _Embedder(nn.Module):
    def __init__(self, config: ReduxConfig) -> None:
        super().__init__()
        self.redux_up = nn.Linear(config.redux_dim, 3 * config.txt_in_features)
        self.redux_down = nn.Linear(3 * config.txt_in_features, config.txt_in_features)

    def forward(self, states: Float[Tensor, "tokens redux_dim"]) -> Tokens:
        return self.redux_down(F.silu(self.redux_up(states)))


def _extended(conditioning: Conditioning, images: Sequence[Tokens], params: GenerationParams) -> Conditioning:
    if not images:
        return conditioning
    assert isinstance(conditioning, FluxConditioning)
    assert params.image_prompt_scale is not None
    (text,) = conditioning.texts
    joined = torch.cat([text, torch.stack(list(images)).mean(dim=0)])
    return replace(conditioning, texts=(joined * params.image_prompt_scale,))
