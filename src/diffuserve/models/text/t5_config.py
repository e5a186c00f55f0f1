"""The shape of the encoders of T5 and UMT5. Importing this file loads no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, with_config

from diffuserve.domain.models.config import SCHEMA, Vocabulary, Width, parse_config
from diffuserve.models.folders.folder import ModelFolder


@with_config(SCHEMA)
@dataclass(frozen=True)
class T5Config:
    """The values of a text encoder's `config.json` that shape it, with transformers' defaults."""

    vocab_size: Vocabulary = 32128
    d_model: Width = 512
    d_kv: Width = 64
    d_ff: Width = 2048
    num_layers: Annotated[int, Field(ge=1, le=512)] = 6
    num_heads: Width = 8
    relative_attention_num_buckets: Annotated[int, Field(ge=4, le=65_536)] = 32
    relative_attention_max_distance: Width = 128
    layer_norm_epsilon: Annotated[float, Field(ge=0, le=1)] = 1e-6
    feed_forward_proj: Literal["relu", "gelu", "gated-relu", "gated-gelu"] = "relu"

    @classmethod
    def read(cls, folder: ModelFolder, component: str) -> "T5Config":
        """Read a component's config. Raise `InvalidModel` for values out of bounds."""
        return parse_config(cls, *folder.config(component))

    @property
    def has_shared_bias(self) -> bool:
        """Return whether all layers add the bias of the first one."""
        return True

    @property
    def shared(self) -> Mapping[str, int]:
        """Return how many there are of what ranks share, by its name."""
        return {
            "attention heads in its text encoder": self.num_heads,
            "features in its text encoder's layers": self.d_ff,
            "features of its text encoder's tokens": self.d_model,
        }

    @property
    def is_gated(self) -> bool:
        return self.feed_forward_proj.startswith("gated-")

    @property
    def activation(self) -> str:
        return self.feed_forward_proj.removeprefix("gated-")


@with_config(SCHEMA)
@dataclass(frozen=True)
class Umt5Config(T5Config):
    """The same values of UMT5, where each layer has a bias of its own."""

    vocab_size: Vocabulary = 250112
    d_ff: Width = 1024
    num_layers: Annotated[int, Field(ge=1, le=512)] = 8
    num_heads: Width = 6
    feed_forward_proj: Literal["relu", "gelu", "gated-relu", "gated-gelu"] = "gated-gelu"

    @property
    def has_shared_bias(self) -> bool:
        return False
