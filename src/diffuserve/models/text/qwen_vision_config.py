"""The shape of Qwen2.5-VL's vision tower, and how it wants images. Importing this file loads no torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, with_config

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.config import SCHEMA, Width, parse_config
from diffuserve.models.folders.folder import ModelFolder

_Patch = Annotated[int, Field(ge=1, le=64)]
_Merged = Annotated[int, Field(ge=1, le=8)]
_Pixels = Annotated[int, Field(ge=1, le=1 << 26)]
_Level = Annotated[float, Field(ge=-10, le=10)]
_Deviation = Annotated[float, Field(gt=0, le=10)]
_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")


@with_config(SCHEMA)
@dataclass(frozen=True)
class QwenVisionConfig:
    """The values of a text encoder's `vision_config` that shape the tower, with transformers' names.

    Blocks attend within windows of `window_size` pixels, but for those of `fullatt_block_indexes`, which
    attend to the whole image. In the end cells of `spatial_merge_size`² patches are merged into a token.
    """

    depth: Annotated[int, Field(ge=1, le=512)]
    hidden_size: Width
    intermediate_size: Width
    num_heads: Annotated[int, Field(ge=1, le=512)]
    out_hidden_size: Width
    fullatt_block_indexes: tuple[Annotated[int, Field(ge=0, lt=512)], ...] = (7, 15, 23, 31)
    in_channels: Literal[3] = 3
    patch_size: _Patch = 14
    temporal_patch_size: _Merged = 2
    spatial_merge_size: _Merged = 2
    window_size: Annotated[int, Field(ge=1, le=4096)] = 112
    hidden_act: Literal["silu"] = "silu"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], origin: str) -> "QwenVisionConfig":
        """Build a config from a text encoder's own.

        Raise `InvalidModel`, which names `origin` and the value, for one that is out of bounds or missing.
        """
        own = values.get("vision_config")
        if not isinstance(own, dict):
            raise InvalidModel(f"{origin}: has no vision_config: the text encoder reads no images")
        config = parse_config(cls, own, f"{origin}: vision_config")
        if config.hidden_size % (4 * config.num_heads):
            raise InvalidModel(
                f"{origin}: vision_config: hidden_size={config.hidden_size} must be a multiple of 4 × "
                f"num_heads={config.num_heads}"
            )
        if config.window_size < config.cell:
            raise InvalidModel(
                f"{origin}: vision_config: window_size={config.window_size} must be at least {config.cell}"
            )
        return config

    @classmethod
    def read(cls, folder: ModelFolder, component: str) -> "QwenVisionConfig":
        """Read the config of a component's vision tower. Raise `InvalidModel` for values out of bounds."""
        return cls.from_dict(*folder.config(component))

    @property
    def cell(self) -> int:
        """Pixels of a side that are one token of the language model."""
        return self.patch_size * self.spatial_merge_size

    @property
    def window(self) -> int:
        """Tokens of a side of a window."""
        return self.window_size // self.cell

    @property
    def patch_inputs(self) -> int:
        """Numbers of a patch, which holds a still image once for each of its frames."""
        return self.in_channels * self.temporal_patch_size * self.patch_size**2


@with_config(SCHEMA)
@dataclass(frozen=True)
class _Edges:
    """Least and largest numbers of pixels, by transformers' newer names."""

    shortest_edge: _Pixels
    longest_edge: _Pixels


@with_config(SCHEMA)
@dataclass(frozen=True)
class QwenPixelsConfig:
    """The values of `preprocessor_config.json`: images are resized within these bounds and normalized.

    Older files have `min_pixels` and `max_pixels`, newer ones a `size`, and the newest call the file
    `processor_config.json`.
    """

    min_pixels: _Pixels | None = None
    max_pixels: _Pixels | None = None
    size: _Edges | None = None
    image_mean: tuple[_Level, _Level, _Level] = (0.48145466, 0.4578275, 0.40821073)
    image_std: tuple[_Deviation, _Deviation, _Deviation] = (0.26862954, 0.26130258, 0.27577711)

    @classmethod
    def read(cls, folder: ModelFolder, component: str = "processor") -> "QwenPixelsConfig":
        """Read a folder's config. Raise `InvalidModel` if it is missing or has values out of bounds."""
        files = [f"{component}/{name}" for name in _PROCESSOR_FILES]
        file = next((each for each in files if (folder.path / each).is_file()), files[0])
        values = folder.json(file)
        return parse_config(cls, values.get("image_processor") or values, f"{folder.path}/{file}")

    @property
    def bounds(self) -> tuple[int, int]:
        """Least and largest number of pixels of an image."""
        size = self.size or _Edges(56 * 56, 28 * 28 * 1280)
        return self.min_pixels or size.shortest_edge, self.max_pixels or size.longest_edge

    def resized(self, width: int, height: int, cell: int) -> tuple[int, int]:
        """Return width and height of an image in multiples of `cell`, within the bounds, in its proportions.

        Reference implementation: `smart_resize` of transformers' `Qwen2VLImageProcessor`.
        """
        least, most = self.bounds
        sides = tuple(round(side / cell) * cell for side in (width, height))
        if math.prod(sides) > most:
            shrink = math.sqrt(width * height / most)
            sides = tuple(max(cell, math.floor(side / shrink / cell) * cell) for side in (width, height))
        elif math.prod(sides) < least:
            grow = math.sqrt(least / (width * height))
            sides = tuple(math.ceil(side * grow / cell) * cell for side in (width, height))
        return sides[0], sides[1]
