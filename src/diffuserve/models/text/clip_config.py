"""The shapes of CLIP's encoders. Importing this file loads no torch."""

from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

from pydantic import Field, with_config

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.config import SCHEMA, Depth, Vocabulary, Width, parse_config
from diffuserve.models.folders.folder import ModelFolder

Config = TypeVar("Config", bound="ClipLayersConfig")


@with_config(SCHEMA)
@dataclass(frozen=True)
class ClipLayersConfig:
    """The values of an encoder's `config.json` that shape its layers, with a text encoder's defaults."""

    hidden_size: Width = 512
    intermediate_size: Width = 2048
    num_hidden_layers: Depth = 12
    num_attention_heads: Width = 8
    hidden_act: Literal["quick_gelu", "gelu", "gelu_pytorch_tanh"] = "quick_gelu"
    layer_norm_eps: Annotated[float, Field(ge=0, le=1)] = 1e-5

    @classmethod
    def read(cls: type[Config], folder: ModelFolder, component: str) -> Config:
        """Read a component's config. Raise `InvalidModel` for values out of bounds."""
        config = parse_config(cls, *folder.config(component))
        if config.hidden_size % config.num_attention_heads:
            raise InvalidModel(
                f"{folder.component(component)}: hidden_size={config.hidden_size} must be a multiple of "
                f"num_attention_heads={config.num_attention_heads}"
            )
        return config


@with_config(SCHEMA)
@dataclass(frozen=True)
class ClipConfig(ClipLayersConfig):
    """The values of a text encoder's `config.json` that shape it, with transformers' defaults."""

    vocab_size: Vocabulary = 49408
    max_position_embeddings: Width = 77
    eos_token_id: int = 49407
    projection_dim: Width = 512
