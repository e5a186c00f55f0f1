"""Tokenizers and small random text encoders of the Qwen family, for checkpoints of models that read them."""

import inspect
from typing import Any

from tokenizers.pre_tokenizers import ByteLevel
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
_LONGEST = 131_072  # tokens of a text
_SPARE_ROWS = 8  # of an embedding, as real ones have
_CELL = 28  # pixels of a side that are one token


def qwen_tokenizer(template: str = "") -> Any:
    """Return a byte-level tokenizer with the special tokens of Qwen's.

    The words of `template` are a token each, as in the real vocabulary: pipelines cut a fixed number of
    tokens from the front.
    """
    import transformers

    vocabulary = {character: number for number, character in enumerate(sorted(ByteLevel.alphabet()))}
    tokenizer: Any = transformers.Qwen2Tokenizer(vocab=vocabulary, merges=[], model_max_length=_LONGEST)
    tokenizer.add_special_tokens(
        {
            "pad_token": "<|endoftext|>",
            "eos_token": "<|im_end|>",
            "additional_special_tokens": list(_SPECIALS),
        }
    )
    tokenizer.chat_template = _CHAT
    if template:
        tokenizer = tokenizer.train_new_from_iterator([template], vocab_size=4000, show_progress=False)
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


def template_of(pipeline_class: Any) -> str:
    """Return the lines in which a pipeline class of diffusers sets its prompt template."""
    return inspect.getsource(pipeline_class.__init__).encode().decode("unicode_escape")


def qwen_vl(tokenizer: Any, width: int = 32, **text: Any) -> nn.Module:
    """Return a small Qwen2.5-VL for a tokenizer; of its two visual blocks the second sees the whole image.

    `text` overrides values of the language model's config.
    """
    import transformers

    token = tokenizer.convert_tokens_to_ids
    config = transformers.Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer) + _SPARE_ROWS,
            "hidden_size": width,
            "intermediate_size": 2 * width,
            "num_hidden_layers": 2,
            "bos_token_id": None,
            "eos_token_id": None,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 4096,
            "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e6},
            **text,
        },
        vision_config={
            "depth": 2,
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_heads": 2,
            "out_hidden_size": width,
            "fullatt_block_indexes": [1],
        },
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
    )
    return as_module(transformers.Qwen2_5_VLForConditionalGeneration(config))


def qwen_processor(tokenizer: Any, max_tokens: int) -> Any:
    """Return a processor of texts and images, of at most `max_tokens` each, that does as Qwen-VL's.

    Qwen-VL's own has a part for videos, which transformers refuses without torchvision.
    """
    import transformers

    tokenizer._set_model_specific_special_tokens({"image_token": "<|image_pad|>"})  # saved with it
    images = transformers.Qwen2VLImageProcessorPil(min_pixels=_CELL**2, max_pixels=max_tokens * _CELL**2)
    return transformers.PaddleOCRVLProcessor(image_processor=images, tokenizer=tokenizer)
