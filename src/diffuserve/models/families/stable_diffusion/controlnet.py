"""ControlNets of Stable Diffusion 1, 2 and XL (Zhang et al. 2023, arXiv:2302.05543).

The reference implementation is diffusers' `ControlNetModel`, whose parameters keep their names. A ControlNet
is a copy of the UNet's way down, and runs on the rows of those requests alone that ask for it; what it
returns is added to their features.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.input_image import InputImage
from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.families.stable_diffusion.config import UNetConfig
from diffuserve.models.families.stable_diffusion.controlnet_config import ControlNetConfig
from diffuserve.models.families.stable_diffusion.text import StableDiffusionConditioning
from diffuserve.models.families.stable_diffusion.unet import UNetHalf
from diffuserve.models.families.stable_diffusion.unet_input import ControlRows, Features, UNetInput
from diffuserve.models.folders.folder import ControlNetFolder
from diffuserve.models.layers.control_embedding import ControlEmbedding
from diffuserve.models.pipelines.base import DenoiseInput
from diffuserve.models.pipelines.input_tensors import level_tensor
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import load_weights


class ControlNet(UNetHalf):
    """Makes what is added to the features of a UNet: to each skip, and to its middle."""

    def __init__(self, config: ControlNetConfig) -> None:
        unet = config.unet
        super().__init__(unet)
        first = unet.block_out_channels[0]
        self.controlnet_cond_embedding = ControlEmbedding(config.embedding, first)
        skips, middle = _skip_widths(unet), unet.block_out_channels[-1]
        self.controlnet_down_blocks = nn.ModuleList(nn.Conv2d(width, width, 1) for width in skips)
        self.controlnet_mid_block = nn.Conv2d(middle, middle, 1)

    def forward(self, batch: UNetInput, embedded: Features) -> list[Tensor]:
        """Return what is added to each skip, then to the middle; `embedded` are the rows' control images."""
        own = replace(batch, latents=batch.latents[:, : self.config.in_channels])
        features, _, skips = self.descend(own, embedded)
        changes = [layer(skip) for layer, skip in zip(self.controlnet_down_blocks, skips, strict=True)]
        return [*changes, self.controlnet_mid_block(features)]


def _skip_widths(config: UNetConfig) -> list[int]:
    """Return the channels of each skip: of the first convolution, each residual block and each halving."""
    last, widths = config.num_levels - 1, [config.block_out_channels[0]]
    for level, (width, layers) in enumerate(zip(config.block_out_channels, config.layers, strict=True)):
        widths += [width] * (layers + (level < last))
    return widths


def load_controlnet(folder: ControlNetFolder, unet: UNetConfig, scale: int, plan: LoadPlan) -> ControlNet:
    """Load a ControlNet for a UNet, channels-last. Raise `InvalidModel` before any weight is read."""
    config = ControlNetConfig.read(folder, unet, scale)
    with torch.device("meta"):
        net = ControlNet(config)
    load_weights(net, folder.weights(), net.placements(), plan.beside, memory_format=torch.channels_last)
    return net.eval()


@dataclass(frozen=True)
class ControlNets:
    """The ControlNets that are loaded beside a UNet, by name."""

    spec: ModelSpec
    nets: Mapping[str, ControlNet]
    device: torch.device
    dtype: torch.dtype

    def key(self, params: GenerationParams) -> Hashable:
        """Return what the embedded control images of a request depend on."""
        uses = [(use.name, use.image) for use in self.spec.control_uses(params)]
        return (tuple(uses), params.width, params.height) if uses else None

    def encode(self, params: GenerationParams) -> tuple[Features, ...]:
        """Return the embedded control image of each use of a request; they are the same in all steps."""
        assert params.width is not None
        assert params.height is not None
        embedded = []
        for use in self.spec.control_uses(params):
            assert isinstance(use.image, InputImage)
            pixels = level_tensor(use.image, params.width, params.height).to(self.device, self.dtype)
            network = self.nets[use.name].controlnet_cond_embedding
            embedded.append(network(pixels.to(memory_format=torch.channels_last)))
        return tuple(embedded)

    def rows(self, requests: Sequence[DenoiseInput], counts: Sequence[int]) -> tuple[ControlRows, ...]:
        """Return the rows on which each ControlNet runs; requests have so many each, one after another."""
        found: dict[str, list[tuple[range, Tensor, float]]] = {name: [] for name in self.nets}
        first = 0
        for request, count in zip(requests, counts, strict=True):
            for name, embedded, weight in self._active(request):
                found[name].append((range(first, first + count), embedded, weight))
            first += count
        return tuple(self._of_net(name, uses) for name, uses in found.items() if uses)

    def _active(self, request: DenoiseInput) -> list[tuple[str, Tensor, float]]:
        assert isinstance(request.conditioning, StableDiffusionConditioning)
        uses = zip(self.spec.control_uses(request.params), request.conditioning.controls, strict=True)
        return [
            (use.name, embedded, use.weight)
            for use, embedded in uses
            if use.acts_in(request.step, request.num_steps)
        ]

    def _of_net(self, name: str, uses: Sequence[tuple[range, Tensor, float]]) -> ControlRows:
        return ControlRows(
            net=self.nets[name],
            rows=tuple(row for rows, _, _ in uses for row in rows),
            weights=tuple(weight for rows, _, weight in uses for _ in rows),
            embedded=torch.cat([embedded.expand(len(rows), -1, -1, -1) for rows, embedded, _ in uses]),
        )


def load_controlnets(
    folders: Sequence[ControlNetFolder], unet: UNetConfig, scale: int, spec: ModelSpec, plan: LoadPlan
) -> ControlNets:
    """Load the ControlNets beside a UNet."""
    nets = {folder.name: load_controlnet(folder, unet, scale, plan) for folder in folders}
    return ControlNets(spec, nets, plan.device, plan.chosen_dtype)
