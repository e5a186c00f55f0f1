"""The shapes of image encoders, and their preprocessing. Importing this file loads no torch."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, with_config

from diffuserve.domain.models.config import SCHEMA, Width, parse_config
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.text.clip_config import ClipLayersConfig

Side = Annotated[int, Field(ge=1, le=4096)]
_Color = Annotated[float, Field(ge=-1_000, le=1_000)]
_Deviation = Annotated[float, Field(gt=0, le=1_000)]


@with_config(SCHEMA)
@dataclass(frozen=True)
class _ImageEncoderConfig(ClipLayersConfig):
    """What both configs have, with the defaults that they share in transformers."""

    hidden_size: Width = 768
    intermediate_size: Width = 3072
    num_attention_heads: Width = 12
    num_channels: Literal[3] = 3
    image_size: Side = 224


@with_config(SCHEMA)
@dataclass(frozen=True)
class ClipVisionConfig(_ImageEncoderConfig):
    """The values of CLIP's `config.json` that shape its image encoder, with transformers' defaults."""

    projection_dim: Width = 512
    patch_size: Side = 32

    @property
    def num_tokens(self) -> int:
        """Return the embeddings of an image: one for each patch, and one for all of it."""
        return (self.image_size // self.patch_size) ** 2 + 1


@with_config(SCHEMA)
@dataclass(frozen=True)
class SiglipVisionConfig(_ImageEncoderConfig):
    """The values of SigLIP's `config.json` that shape its image encoder, with transformers' defaults."""

    patch_size: Side = 16
    hidden_act: Literal["quick_gelu", "gelu", "gelu_pytorch_tanh"] = "gelu_pytorch_tanh"
    layer_norm_eps: Annotated[float, Field(ge=0, le=1)] = 1e-6

    @property
    def num_tokens(self) -> int:
        """Return the embeddings of an image: one for each patch."""
        return (self.image_size // self.patch_size) ** 2


@with_config(SCHEMA)
@dataclass(frozen=True)
class _Shortest:
    shortest_edge: Side


@with_config(SCHEMA)
@dataclass(frozen=True)
class _Crop:
    height: Side
    width: Side


@with_config(SCHEMA)
@dataclass(frozen=True)
class ImageProcessorConfig:
    """The values of `image_processor/preprocessor_config.json`, with transformers' defaults.

    The shorter side becomes `size`, of which the middle is cut out; colors are normalized by mean and
    deviation.
    """

    size: _Shortest = _Shortest(224)
    crop_size: _Crop = _Crop(224, 224)
    image_mean: tuple[_Color, _Color, _Color] = (0.48145466, 0.4578275, 0.40821073)
    image_std: tuple[_Deviation, _Deviation, _Deviation] = (0.26862954, 0.26130258, 0.27577711)
    resample: Literal[3] = 3  # bicubic
    do_resize: Literal[True] = True
    do_center_crop: Literal[True] = True
    do_rescale: Literal[True] = True
    do_normalize: Literal[True] = True
    rescale_factor: Annotated[float, Field(gt=0, le=1)] = 1 / 255

    @classmethod
    def square(cls, side: int) -> "ImageProcessorConfig":
        """Return the preprocessing of a checkpoint that states none: the middle, of this side."""
        return cls(_Shortest(side), _Crop(side, side))

    @classmethod
    def read(cls, folder: ModelFolder) -> "ImageProcessorConfig":
        """Read a folder's config. Raise `InvalidModel` for unsupported preprocessing."""
        name = "image_processor/preprocessor_config.json"
        return parse_config(cls, folder.json(name), f"{folder.path}/{name}")


@with_config(SCHEMA)
@dataclass(frozen=True)
class SiglipProcessorConfig:
    """The values of `feature_extractor/preprocessor_config.json` of SigLIP, with transformers' defaults.

    Images are stretched to `size`; colors are normalized by mean and deviation.
    """

    size: _Crop = _Crop(224, 224)
    image_mean: tuple[_Color, _Color, _Color] = (0.5, 0.5, 0.5)
    image_std: tuple[_Deviation, _Deviation, _Deviation] = (0.5, 0.5, 0.5)
    resample: Literal[3] = 3  # bicubic
    do_resize: Literal[True] = True
    do_rescale: Literal[True] = True
    do_normalize: Literal[True] = True
    rescale_factor: Annotated[float, Field(gt=0, le=1)] = 1 / 255

    @classmethod
    def read(cls, folder: ModelFolder) -> "SiglipProcessorConfig":
        """Read a folder's config. Raise `InvalidModel` for unsupported preprocessing."""
        name = "feature_extractor/preprocessor_config.json"
        return parse_config(cls, folder.json(name), f"{folder.path}/{name}")
