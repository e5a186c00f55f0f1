"""The shape of language models whose states condition a denoiser: Qwen2.5, Qwen3 and Mistral.

Importing this file loads no torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, with_config

from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.config import SCHEMA, Vocabulary, Width, parse_config
from diffuserve.models.folders.folder import ModelFolder

_QWEN2, _QWEN3 = ("qwen2", "qwen2_5_vl", "qwen2_5_vl_text"), ("qwen3",)
_Theta = Annotated[float, Field(ge=1, le=1e12)]
_Section = Annotated[int, Field(ge=0, le=256)]
_DEFAULT_THETA = 10_000.0  # transformers' own where a config has none


@with_config(SCHEMA)
@dataclass(frozen=True)
class RopeParameters:
    """The rotation of a language model; older configs call `rope_type` only `type`.

    The `mrope_section`s are the rotary pairs that turn by a token's frame, row and column: the positions of
    text are equal in all three.
    """

    rope_type: Literal["default", "mrope"] = "default"
    type: Literal["default", "mrope"] = "default"
    rope_theta: _Theta | None = None
    mrope_section: tuple[_Section, _Section, _Section] | None = None


@with_config(SCHEMA)
@dataclass(frozen=True)
class QwenConfig:
    """The values of a text encoder's `config.json` that shape its language model, with transformers' names.

    Qwen3 normalizes the heads of queries and keys, Qwen2.5 adds a bias to queries, keys and values, and
    Mistral does neither.
    """

    model_type: Literal["qwen2", "qwen2_5_vl", "qwen2_5_vl_text", "qwen3", "mistral"]
    vocab_size: Vocabulary
    hidden_size: Width
    intermediate_size: Width
    num_hidden_layers: Annotated[int, Field(ge=1, le=512)]
    num_attention_heads: Annotated[int, Field(ge=1, le=512)]
    num_key_value_heads: Annotated[int, Field(ge=1, le=512)]
    head_dim: Annotated[int, Field(ge=2, le=512, multiple_of=2)] | None = None
    rms_norm_eps: Annotated[float, Field(gt=0, le=1)] = 1e-6
    hidden_act: Literal["silu"] = "silu"
    attention_bias: Literal[False] = False
    use_sliding_window: Literal[False] | None = False
    sliding_window: Annotated[int, Field(ge=4096)] | None = None  # no prompt is longer
    rope_theta: _Theta | None = None
    rope_parameters: RopeParameters | None = None
    rope_scaling: RopeParameters | None = None

    @property
    def shared(self) -> Mapping[str, int]:
        """Return how many there are of what ranks share, by its name."""
        return {
            "key and value heads in its text encoder": self.num_key_value_heads,
            "features in its text encoder's layers": self.intermediate_size,
            "features of its text encoder's tokens": self.hidden_size,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], origin: str) -> "QwenConfig":
        """Build a config from transformers' own, whose language model may stand in `text_config`.

        Raise `InvalidModel`, which names `origin` and the value, for one out of bounds or that does not fit.
        """
        own = values.get("text_config")
        config = parse_config(cls, {**values, **own} if isinstance(own, dict) else values, origin)
        heads, groups = config.num_attention_heads, config.num_key_value_heads
        if heads % groups:
            raise InvalidModel(
                f"{origin}: num_attention_heads={heads} must be a multiple of num_key_value_heads={groups}"
            )
        if config.head_dim is None and config.hidden_size % (2 * heads):
            raise InvalidModel(
                f"{origin}: hidden_size={config.hidden_size} must be a multiple of 2 × "
                f"num_attention_heads={heads}"
            )
        sections, pairs = config.rope_sections, config.dim_of_head // 2
        if sections is not None and sum(sections) != pairs:
            raise InvalidModel(
                f"{origin}: mrope_section={list(sections)} must sum to {pairs}, half the channels of a head"
            )
        return config

    @classmethod
    def read(cls, folder: ModelFolder, component: str) -> "QwenConfig":
        """Read a component's config. Raise `InvalidModel` for values out of bounds."""
        return cls.from_dict(*folder.config(component))

    @property
    def dim_of_head(self) -> int:
        """Channels of a head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def has_head_norms(self) -> bool:
        return self.model_type in _QWEN3

    @property
    def has_biases(self) -> bool:
        """Return whether queries, keys and values have a bias."""
        return self.model_type in _QWEN2

    @property
    def theta(self) -> float:
        """Base of the rotation's wavelengths."""
        own = None if self.rope_parameters is None else self.rope_parameters.rope_theta
        return own or self.rope_theta or _DEFAULT_THETA

    @property
    def rope_sections(self) -> tuple[int, int, int] | None:
        """The rotary pairs of each axis of a position; `None` if positions have one axis."""
        found = (each.mrope_section for each in (self.rope_parameters, self.rope_scaling) if each)
        return next((sections for sections in found if sections is not None), None)

    def states_to_read(self, wanted: Sequence[int], origin: object) -> tuple[int, ...]:
        """Return, of indices into transformers' `hidden_states`, those that count from the front.

        State 0 is the embedding, `k` that after `k` layers, and the last one, -1, is normalized. Raise
        `InvalidModel`, which names `origin`, if the model has too few layers.
        """
        last = self.num_hidden_layers
        found = tuple(index + last + 1 if index < 0 else index for index in wanted)
        if not all(0 <= index <= last for index in found):
            raise InvalidModel(
                f"{origin}: num_hidden_layers={last}, but states {list(wanted)} are read: "
                "this is not the text encoder that the model was trained with"
            )
        return found
