"""Small text encoders of Qwen's with random weights, and a tokenizer for them."""

from typing import Any

from torch import nn

from diffuserve.testing.checkpoints import as_module

_SPECIALS = ("<|im_start|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for c in m.content %}{{ c.text if c.type == 'text' else '<|image_pad|>' }}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}"
)


def qwen_tokenizer() -> Any:
    """Return a tokenizer with a token for each byte, and with the special tokens and the chat of Qwen 3."""
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import Qwen2Tokenizer

    vocabulary = {character: number for number, character in enumerate(sorted(ByteLevel.alphabet()))}
    tokenizer = Qwen2Tokenizer(vocab=vocabulary, merges=[])
    tokenizer.add_special_tokens(
        {
            "pad_token": "<|endoftext|>",
            "eos_token": "<|im_end|>",
            "additional_special_tokens": list(_SPECIALS),
        }
    )
    tokenizer.chat_template = _CHAT
    return tokenizer


def qwen3(tokenizer: Any, width: int, num_layers: int = 3, **values: Any) -> nn.Module:
    """Return a small Qwen 3 whose states are `width` wide; `values` are further ones of its config."""
    from transformers import Qwen3Config, Qwen3Model

    config: dict[str, Any] = {
        "vocab_size": len(tokenizer) + 8,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": num_layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
    }
    return as_module(Qwen3Model(Qwen3Config(**config | values)))
