"""Tokenizers made here and small random text encoders, as several pipelines use them."""

import inspect
from typing import Any

import transformers
from tokenizers.pre_tokenizers import ByteLevel

from diffuserve.models.bundled import bundled_models
from diffuserve.testing.checkpoints import bundled_config

QWEN_SPECIALS = (
    "<|im_start|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
_CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for c in m.content %}{{ c.text if c.type == 'text' else '<|image_pad|>' }}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def clip_tokenizer() -> Any:
    """Return the bundled model's CLIP tokenizer, with CLIP's own length."""
    folder = bundled_models()["tiny-flux"] / "tokenizer"
    return transformers.CLIPTokenizer.from_pretrained(
        folder, model_max_length=77, local_files_only=True, trust_remote_code=False
    )


def t5_tokenizer(length: int = 512) -> Any:
    """Return the bundled model's T5 tokenizer, for prompts up to `length` tokens."""
    folder = bundled_models()["tiny-flux"] / "tokenizer_2"
    return transformers.AutoTokenizer.from_pretrained(
        folder, model_max_length=length, local_files_only=True, trust_remote_code=False
    )


def template_of(pipeline_class: Any) -> str:
    """Return the lines in which a pipeline class sets its prompt template."""
    return inspect.getsource(pipeline_class.__init__).encode().decode("unicode_escape")


def qwen_tokenizer(template: str = "") -> Any:
    """Return a byte-level tokenizer with the special tokens and the chat template of Qwen's.

    The words of `template` are a token each, as in the real vocabulary: pipelines cut a fixed number of
    tokens from the front, and a long template of bytes would drown a short prompt.
    """
    vocabulary = {character: number for number, character in enumerate(sorted(ByteLevel.alphabet()))}
    tokenizer = transformers.Qwen2Tokenizer(vocab=vocabulary, merges=[])
    tokenizer.add_special_tokens(
        {
            "pad_token": "<|endoftext|>",
            "eos_token": "<|im_end|>",
            "additional_special_tokens": list(QWEN_SPECIALS),
        }
    )
    if template:
        tokenizer = tokenizer.train_new_from_iterator([template], vocab_size=4000, show_progress=False)
    tokenizer.chat_template = _CHAT
    return tokenizer


def vocabulary_size(tokenizer: Any) -> int:
    """Return how many rows the embedding of a tokenizer's encoder needs."""
    return len(tokenizer) + 8


def t5(dim: int = 32) -> Any:
    """Return a T5 encoder for `t5_tokenizer`."""
    return transformers.T5EncoderModel(transformers.T5Config(**_t5_values(dim)))


def umt5() -> Any:
    """Return a UMT5 encoder, whose every layer has positions of its own, for `t5_tokenizer`."""
    return transformers.UMT5EncoderModel(transformers.UMT5Config(**_t5_values(32)))


def byte_t5() -> Any:
    """Return a T5 encoder for the tokenizer of bytes."""
    return transformers.T5EncoderModel(transformers.T5Config(**_t5_values(32) | {"vocab_size": 384}))


def _t5_values(dim: int) -> dict[str, Any]:
    tokens = bundled_config("text_encoder_2", "vocab_size", "eos_token_id", "pad_token_id")
    shape = {"d_model": dim, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4}
    return {**shape, "feed_forward_proj": "gated-gelu", **tokens}


def clip(dim: int, projects: bool = False, length: int = 77) -> Any:
    """Return a CLIP text encoder for `clip_tokenizer`, with a projection where a pipeline reads it."""
    tokens = bundled_config("text_encoder", "vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")
    config = transformers.CLIPTextConfig(
        hidden_size=dim,
        projection_dim=dim,
        intermediate_size=2 * dim,
        num_hidden_layers=3,
        num_attention_heads=2,
        max_position_embeddings=length,
        **tokens,
    )
    kind = transformers.CLIPTextModelWithProjection if projects else transformers.CLIPTextModel
    return kind(config)


def qwen3_config(tokenizer: Any, layers: int = 3) -> Any:
    """Return the config of a small Qwen3 for a tokenizer."""
    return transformers.Qwen3Config(
        vocab_size=vocabulary_size(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
    )


def qwen25_vl_text_values(tokenizer: Any) -> dict[str, Any]:
    """Return the values of the text half of a small Qwen2.5-VL."""
    return {
        "vocab_size": vocabulary_size(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e6},
    }


def qwen25_vl(tokenizer: Any) -> Any:
    """Return a small Qwen2.5-VL, eyes included."""
    token = tokenizer.convert_tokens_to_ids
    config = transformers.Qwen2_5_VLConfig(
        text_config=qwen25_vl_text_values(tokenizer),
        vision_config={
            "depth": 1,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_heads": 2,
            "out_hidden_size": 32,
            "fullatt_block_indexes": [0],
        },
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
    )
    return transformers.Qwen2_5_VLForConditionalGeneration(config)


def qwen_processor(tokenizer: Any) -> Any:
    """Return a processor of texts and images that does as Qwen-VL's.

    Qwen-VL's own has a part for videos, which transformers refuses without torchvision.
    """
    tokenizer._set_model_specific_special_tokens({"image_token": "<|image_pad|>"})  # saved with it
    images = transformers.Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=56 * 56)
    return transformers.PaddleOCRVLProcessor(
        image_processor=images, tokenizer=tokenizer, chat_template=tokenizer.chat_template
    )


def gemma_tokenizer() -> Any:
    """Return Gemma's tokenizer with a token for each byte, which pads on the left."""
    specials = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    pieces = [*specials, *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    return transformers.GemmaTokenizer(vocab=vocabulary, merges=[], model_max_length=1024)


def gemma2(tokenizer: Any, layers: int = 1) -> Any:
    """Return a small Gemma 2."""
    config = transformers.Gemma2Config(
        vocab_size=vocabulary_size(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        attn_implementation="eager",
    )
    return transformers.Gemma2Model(config)


def qwen3_vl_config(tokenizer: Any) -> Any:
    """Return the config of a small Qwen3-VL."""
    return transformers.Qwen3VLConfig(
        text_config={
            "vocab_size": vocabulary_size(tokenizer),
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
        },
        vision_config={
            "depth": 1,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_heads": 2,
            "out_hidden_size": 32,
        },
    )


def llama_config(tokenizer: Any, layers: int = 2) -> Any:
    """Return the config of a small Llama for a tokenizer."""
    return transformers.LlamaConfig(
        vocab_size=vocabulary_size(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def mistral3(tokenizer: Any) -> Any:
    """Return a small Mistral 3 of 31 layers."""
    config = transformers.Mistral3Config(
        text_config={
            "model_type": "mistral",
            "vocab_size": vocabulary_size(tokenizer),
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 31,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "sliding_window": None,
        },
        vision_config={
            "model_type": "pixtral",
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 16,
            "image_size": 30,
            "patch_size": 6,
            "num_channels": 3,
        },
        vision_feature_layer=-1,
        image_token_index=tokenizer.convert_tokens_to_ids("<|image_pad|>"),
    )
    return transformers.Mistral3ForConditionalGeneration(config)
