"""ControlNets of FLUX.1: transformers of fewer blocks, whose image tokens change those of the model.

The reference implementation is diffusers' `FluxControlNetModel`, whose parameters keep their names.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from diffuserve.models.families.flux.config import TRANSFORMER_LAYERS, FluxConfig
from diffuserve.models.families.flux.controlnet_config import FluxControlNetConfig
from diffuserve.models.families.flux.transformer import FluxBlocks
from diffuserve.models.families.packed_images.loading import load_packed
from diffuserve.models.folders.folder import ControlNetFolder
from diffuserve.models.layers.attention import AttentionKernel
from diffuserve.models.layers.control_embedding import ControlEmbedding
from diffuserve.models.layers.joint.joint_row import image_of, join
from diffuserve.models.layers.joint.packing import PackedInput
from diffuserve.models.layers.linear import Linear
from diffuserve.models.weights.load_plan import LoadPlan

_PIXEL_WIDTHS = (16, 16, 16, 16)  # of the convolutions over pixels


@dataclass(frozen=True)
class ControlInput:
    """The input of a forward pass: that of the model, with control images of as many tokens.

    Texts of ControlNets that know several kinds of images begin with an empty token, one of `mode_rows`, in
    whose place the sequence's own of `modes` is read.
    """

    packed: PackedInput
    control: Float[Tensor, "image channels"]
    modes: Int[Tensor, "seq"] | None = None
    mode_rows: Int[Tensor, "seq"] | None = None


class FluxControlNet(FluxBlocks):
    """Makes what is added to image tokens after the blocks of a transformer."""

    def __init__(self, config: FluxControlNetConfig, attention: AttentionKernel) -> None:
        super().__init__(config.flux, attention)
        dim, self.num_modes = config.flux.dim, config.num_modes
        self.reads_pixels = bool(config.pixel_channels)
        self.controlnet_blocks = _products(dim, config.flux.num_layers)
        self.controlnet_single_blocks = _products(dim, config.flux.num_single_layers)
        self.controlnet_x_embedder = Linear(config.flux.in_channels, dim)
        if config.num_modes:
            self.controlnet_mode_embedder = nn.Embedding(config.num_modes, dim)
        if self.reads_pixels:
            self.input_hint_block = ControlEmbedding(_PIXEL_WIDTHS, config.pixel_channels)

    def forward(self, given: ControlInput) -> tuple[list[Tensor], list[Tensor]]:
        """Return what each block with two streams adds to the image tokens, and each with a single one."""
        packed, layout = given.packed, given.packed.layout
        factors = iter(packed.factors.split([part.num_factors for part in self._modulations()], dim=1))
        image = self.x_embedder(packed.image) + self.controlnet_x_embedder(given.control)
        text, double, single = self._text(given), [], []
        for block, product in zip(self.transformer_blocks, self.controlnet_blocks, strict=True):
            image, text = block(image, text, next(factors), next(factors), layout)
            double.append(product(image))
        joint = join(text, image, layout)
        for block, product in zip(self.single_transformer_blocks, self.controlnet_single_blocks, strict=True):
            joint = block(joint, next(factors), layout)
            single.append(product(image_of(joint, layout)))
        return double, single

    def _text(self, given: ControlInput) -> Float[Tensor, "text d"]:
        text = self.context_embedder(given.packed.text)
        if given.modes is None or given.mode_rows is None:
            return text
        return text.index_copy(0, given.mode_rows, self.controlnet_mode_embedder(given.modes))


def load_flux_controlnet(
    folder: ControlNetFolder, transformer: FluxConfig, attention: AttentionKernel, plan: LoadPlan
) -> FluxControlNet:
    """Load a ControlNet for a transformer. Raise `InvalidModel` before any weight is read.

    Ranks do not share it: each runs all of it, over whole sequences.
    """
    config = FluxControlNetConfig.read(folder, transformer)
    make = partial(FluxControlNet, config, attention)
    return load_packed(make, TRANSFORMER_LAYERS, folder.weights(), replace(plan.beside, ranks=None))


def _products(dim: int, count: int) -> nn.ModuleList:
    return nn.ModuleList(Linear(dim, dim) for _ in range(count))


def with_mode(text: Float[Tensor, "tokens dim"]) -> Float[Tensor, "tokens_after dim"]:
    """Return a text that begins with the empty token of a mode."""
    return torch.cat([text.new_zeros(1, text.shape[1]), text])


def first_rows(lengths: Sequence[int]) -> Int[Tensor, "seq"]:
    """Return where each of some texts begins, one after another."""
    return torch.tensor([0, *lengths[:-1]]).cumsum(0)
