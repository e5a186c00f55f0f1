"""How FLUX.2's prompts are read: the turn of a chat, and the states of a language model after some layers.

Importing this file loads no torch.
"""

from dataclasses import dataclass

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.families.flux2.config import Flux2Config, is_klein
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.text.chat import QWEN3_CHAT_WITHOUT_THOUGHT, mistral_chat
from diffuserve.models.text.qwen_config import QwenConfig


@dataclass(frozen=True)
class PromptReading:
    """The language model's kind, the chat around a prompt, and the states that are read."""

    model_type: str
    template: str
    states: tuple[int, ...]


_SYSTEM = (
    "You are an AI that reasons about image descriptions. You give structured responses focusing on object "
    "relationships, object\nattribution and actions without speculation."
)
_KLEIN = PromptReading("qwen3", QWEN3_CHAT_WITHOUT_THOUGHT, (9, 18, 27))
_DEV = PromptReading("mistral", mistral_chat(_SYSTEM), (10, 20, 30))


def prompt_reading(folder: ModelFolder) -> PromptReading:
    """Return how a model's prompts are read."""
    return _KLEIN if is_klein(folder) else _DEV


def check_text_encoder(folder: ModelFolder, transformer: Flux2Config) -> QwenConfig:
    """Return the text encoder's config. Raise `InvalidModel` unless the transformer was trained with it."""
    reading, text = prompt_reading(folder), QwenConfig.read(folder, "text_encoder")
    expected, width = transformer.joint_attention_dim, len(reading.states) * text.hidden_size
    text.states_to_read(reading.states, f"{folder.path}/text_encoder")
    if (text.model_type, width) != (reading.model_type, expected):
        raise InvalidModel(
            f"{folder.path}: the text encoder is {text.model_type} with hidden_size={text.hidden_size}, but "
            f"the transformer with joint_attention_dim={expected} was trained with {reading.model_type} and "
            f"hidden_size={expected / len(reading.states):g}; take the model's own text encoder"
        )
    return text
