"""Qwen2.5-VL's vision tower (arXiv:2502.13923), which turns images into tokens of its language model.

The reference implementation is transformers' `Qwen2_5_VisionTransformerPretrainedModel`, whose names of
parameters are kept, but that gates and values of the feed-forward network are one product. Images of any
sizes run in one row, in the order of their windows.

Shapes: `patches` are those of all images, `cells` the tokens that they are merged into, `d` is the width.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Complex64, Float, Int
from torch import Tensor, nn

from diffuserve.models.layers.attention import AttentionKernel
from diffuserve.models.layers.gated_feed_forward import GatedFeedForward
from diffuserve.models.layers.linear import Linear, cpu_tilings, set_tiling
from diffuserve.models.layers.rms_norm import TokenRmsNorm
from diffuserve.models.layers.rotary import rotate_halves, rotations
from diffuserve.models.layers.segments import Segments
from diffuserve.models.machine.devices import to_device
from diffuserve.models.offload.components import Component, Ring
from diffuserve.models.text.qwen import gated_placements
from diffuserve.models.text.qwen_pixels import ImagePatches
from diffuserve.models.text.qwen_vision_config import QwenVisionConfig
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.loading import Placement, load_weights, tensor_names

Patches = Float[Tensor, "patches d"]
_EPS = 1e-6
_PATCH_WEIGHT = "patch_embed.proj.weight"


@dataclass(frozen=True)
class PackedPatches:
    """The patches of several images in one row, window by window.

    `places` are the windows' cells in the row of all images, each of them row by row.
    """

    pixels: Float[Tensor, "patches inputs"]
    rotation: Complex64[Tensor, "patches half"]
    images: Segments
    windows: Segments
    places: Int[Tensor, "cells"]

    @classmethod
    def of(
        cls,
        images: Sequence[ImagePatches],
        config: QwenVisionConfig,
        device: torch.device,
        dtype: torch.dtype,
    ) -> "PackedPatches":
        """Pack images; numbers are moved to the device and the dtype of the tower."""
        merged = config.spatial_merge_size**2
        windows = [list(_windows(image.rows, image.columns, config.window)) for image in images]
        counts = [image.rows * image.columns for image in images]
        firsts = torch.tensor([0, *counts[:-1]]).cumsum(0).tolist()
        places = torch.cat([first + cell for first, own in zip(firsts, windows, strict=True) for cell in own])
        cells = torch.cat([image.pixels for image in images]).unflatten(0, (-1, merged))
        positions = torch.cat([_positions(image, config.spatial_merge_size) for image in images])
        half = config.hidden_size // config.num_heads // 2
        return cls(
            to_device(cells[places].flatten(0, 1).to(dtype), device),
            to_device(rotations(positions[places].flatten(0, 1).float(), (half, half)), device),
            Segments.of(tuple(count * merged for count in counts), device),
            Segments.of(tuple(len(cell) * merged for own in windows for cell in own), device),
            to_device(places, device),
        )


def load_qwen_vision(
    config: QwenVisionConfig, files: Sequence[Path], plan: LoadPlan, attention: AttentionKernel
) -> "QwenVision":
    """Load the vision tower of a checkpoint of `Qwen2_5_VLForConditionalGeneration`.

    Raise `InvalidModel` for tensors that are missing or unexpected.
    """
    with torch.device("meta"):
        tower = QwenVision(config, attention)
    names = tensor_names(files)
    prefix = next((name.removesuffix(_PATCH_WEIGHT) for name in names if name.endswith(_PATCH_WEIGHT)), "")
    patch = (config.temporal_patch_size, config.patch_size, config.patch_size)
    placements = gated_placements(tower, prefix, {})
    placements[prefix + _PATCH_WEIGHT] = Placement(_PATCH_WEIGHT, patch=patch)
    others = tuple(sorted(name for name in names if not name.startswith(prefix)))
    load_weights(tower, files, placements, plan, others)
    if plan.device.type == "cpu":
        set_tiling(tower, cpu_tilings(plan.deterministic)[0])
    return tower.eval()


class QwenVision(nn.Module):
    """A transformer over the patches of images, most of whose blocks attend within windows."""

    def __init__(self, config: QwenVisionConfig, attention: AttentionKernel) -> None:
        super().__init__()
        self.config = config
        self.patch_embed = nn.ModuleDict(
            {"proj": Linear(config.patch_inputs, config.hidden_size, bias=False)}
        )
        self.blocks = nn.ModuleList(_Block(config, attention) for _ in range(config.depth))
        self.merger = _Merger(config)

    @property
    def component(self) -> Component:
        """Return how its weights may be kept on the host."""
        return Component(self, [Ring(list(self.blocks))], is_encoder=True)

    def forward(self, patches: PackedPatches) -> Float[Tensor, "cells out"]:
        """Return the tokens of all images, each image's row by row."""
        x = self.patch_embed["proj"](patches.pixels)
        for number, block in enumerate(self.blocks):
            sees_all = number in self.config.fullatt_block_indexes
            x = block(x, patches.rotation, patches.images if sees_all else patches.windows)
        merged = self.merger(x)
        return torch.empty_like(merged).index_copy_(0, patches.places, merged)


class _Block(nn.Module):
    def __init__(self, config: QwenVisionConfig, attention: AttentionKernel) -> None:
        super().__init__()
        self.norm1, self.norm2 = (TokenRmsNorm(config.hidden_size, _EPS) for _ in range(2))
        self.attn = _Attention(config, attention)
        self.mlp = GatedFeedForward(config.hidden_size, config.intermediate_size, bias=True)

    def forward(self, x: Patches, rotation: Complex64[Tensor, "patches half"], segments: Segments) -> Patches:
        x = x + self.attn(self.norm1(x), rotation, segments)
        return x + self.mlp(self.norm2(x))


class _Attention(nn.Module):
    def __init__(self, config: QwenVisionConfig, attention: AttentionKernel) -> None:
        super().__init__()
        self.attention, self.num_heads = attention, config.num_heads
        self.qkv = Linear(config.hidden_size, 3 * config.hidden_size)
        self.proj = Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Patches, rotation: Complex64[Tensor, "patches half"], segments: Segments) -> Patches:
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, -1))
        query_key = rotate_halves(qkv[:, :2].flatten(1, 2), rotation).unflatten(1, (2, -1))
        attended = self.attention(torch.cat([query_key, qkv[:, 2:]], dim=1), segments)
        return self.proj(attended.flatten(1))


class _Merger(nn.Module):
    """Merges the patches of a cell into a token of the language model."""

    def __init__(self, config: QwenVisionConfig) -> None:
        super().__init__()
        self.width = config.hidden_size * config.spatial_merge_size**2
        self.ln_q = TokenRmsNorm(config.hidden_size, _EPS)
        self.mlp = nn.ModuleList(
            [Linear(self.width, self.width), nn.Identity(), Linear(self.width, config.out_hidden_size)]
        )

    def forward(self, x: Patches) -> Float[Tensor, "cells out"]:
        widen, _, narrow = self.mlp
        return narrow(F.gelu(widen(self.ln_q(x).view(-1, self.width))))


def _windows(rows: int, columns: int, side: int) -> Iterator[Int[Tensor, "_"]]:
    """Yield the cells of each window of an image; those at the lower and right edges may be smaller."""
    for band in torch.arange(rows * columns).view(rows, columns).split(side):
        for window in band.split(side, dim=1):
            yield window.flatten()


def _positions(image: ImagePatches, merged: int) -> Int[Tensor, "cells patches 2"]:
    """Return row and column of each patch of each cell."""
    rows, columns = (torch.arange(cells * merged) for cells in (image.rows, image.columns))
    grid = torch.stack(torch.meshgrid(rows, columns, indexing="ij"), dim=-1)
    cells = grid.unflatten(1, (image.columns, merged)).unflatten(0, (image.rows, merged)).transpose(1, 2)
    return cells.flatten(2, 3).flatten(0, 1)
