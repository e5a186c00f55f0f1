"""Small FLUX.2 checkpoints with random weights, in diffusers' format.

As in `checkpoints`, images show noise, but every tensor of the architecture takes part in them. Text encoders
have as many layers as are read of the published ones, and one more.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from diffuserve.testing.checkpoints import as_module, redraw_weights, require_libraries
from diffuserve.testing.qwen_parts import qwen3, qwen_tokenizer

Flux2Kind = Literal["klein", "base", "dev"]

_HEADS, _HEAD_DIM, _ROPE_AXES = 4, 16, (4, 4, 4, 4)
_TEXT_DIM, _LATENT_CHANNELS = 32, 32
_READABLE = 0o644  # save_pretrained leaves weights that only their owner may read
_MISTRAL_SPECIALS = ("<s>", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[INST]", "[/INST]")
_MISTRAL_CHAT = (
    "<s>{% for m in messages %}{% set tag = 'INST' if m.role == 'user' else 'SYSTEM_PROMPT' %}"
    "[{{ tag }}]{% for part in m.content %}{{ part.text }}{% endfor %}[/{{ tag }}]{% endfor %}"
)


def write_flux2_checkpoint(
    folder: Path,
    *,
    kind: Flux2Kind = "klein",
    seed: int = 0,
    transformer: Mapping[str, Any] | None = None,
    text_encoder: Mapping[str, Any] | None = None,
) -> Path:
    """Write a random FLUX.2 checkpoint into `folder`, in float32, and return it.

    `klein` is distilled, `base` guides by two passes, and `dev` reads guidance as an input, and its prompts
    by Mistral's layers instead of Qwen's. The values of `transformer` and `text_encoder` override those of
    their configs. Equal arguments write equal weights.

    Raise `ImportError` with the remedy unless diffusers and transformers are installed.
    """
    require_libraries()
    import diffusers

    tokenizer = _mistral_tokenizer() if kind == "dev" else qwen_tokenizer()
    encoder = _mistral if kind == "dev" else _qwen
    with torch.random.fork_rng(devices=[]):  # the constructors draw from the global generator
        modules = {
            "transformer": _transformer(guidance_embeds=kind == "dev", **transformer or {}),
            "vae": _vae(),
            "text_encoder": encoder(tokenizer, **text_encoder or {}),
        }
    generator = torch.Generator().manual_seed(seed)
    for module in modules.values():
        redraw_weights(module, generator)
    _redraw_statistics(modules["vae"], generator)
    parts: dict[str, Any] = {**modules, "tokenizer": tokenizer, "scheduler": _scheduler()}
    if kind == "dev":
        pipeline = diffusers.Flux2Pipeline(**parts)
    else:
        pipeline = diffusers.Flux2KleinPipeline(**parts, is_distilled=kind == "klein")
    pipeline.save_pretrained(folder, safe_serialization=True)
    for file in folder.rglob("*.safetensors"):
        file.chmod(_READABLE)
    if kind == "dev":
        _pad_on_the_left(folder / "tokenizer" / "tokenizer_config.json")
    return folder


def _pad_on_the_left(config: Path) -> None:
    """Say so in a tokenizer's config, where the published one says it."""
    values = json.loads(config.read_text("utf-8")) | {"padding_side": "left"}
    config.write_text(json.dumps(values, indent=2) + "\n", "utf-8")


def _redraw_statistics(vae: nn.Module, generator: torch.Generator) -> None:
    """Randomise the batch norm's statistics, which are buffers."""
    for name, statistics in vae.named_buffers():
        if name == "bn.running_mean":
            statistics.copy_(torch.randn(statistics.shape, generator=generator))
        if name == "bn.running_var":
            statistics.copy_(0.5 + 1.5 * torch.rand(statistics.shape, generator=generator))


def _transformer(**values: Any) -> nn.Module:
    from diffusers import Flux2Transformer2DModel

    config: dict[str, Any] = {
        "in_channels": 4 * _LATENT_CHANNELS,
        "num_layers": 2,
        "num_single_layers": 3,
        "attention_head_dim": _HEAD_DIM,
        "num_attention_heads": _HEADS,
        "joint_attention_dim": 3 * _TEXT_DIM,
        "axes_dims_rope": _ROPE_AXES,
    }
    return as_module(Flux2Transformer2DModel(**config | values))


def _vae() -> nn.Module:
    from diffusers import AutoencoderKLFlux2

    return as_module(
        AutoencoderKLFlux2(
            block_out_channels=(8, 8, 16, 16),
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            layers_per_block=1,
            latent_channels=_LATENT_CHANNELS,
            norm_num_groups=4,
            sample_size=64,
        )
    )


def _scheduler() -> Any:
    from diffusers import FlowMatchEulerDiscreteScheduler

    return FlowMatchEulerDiscreteScheduler(shift=3.0, use_dynamic_shifting=True)


def _qwen(tokenizer: Any, **values: Any) -> nn.Module:
    from transformers import Qwen3ForCausalLM

    config: Any = qwen3(tokenizer, _TEXT_DIM, num_layers=28, **values).config
    return as_module(Qwen3ForCausalLM(config))


def _mistral(tokenizer: Any, **values: Any) -> nn.Module:
    """Return Mistral 3, whose eyes draw no prompt."""
    from transformers import Mistral3Config, Mistral3ForConditionalGeneration

    text: dict[str, Any] = {
        "model_type": "mistral",
        "sliding_window": None,
        "vocab_size": len(tokenizer),
        "hidden_size": _TEXT_DIM,
        "intermediate_size": 2 * _TEXT_DIM,
        "num_hidden_layers": 31,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
    }
    eyes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    vision = {"model_type": "pixtral", "image_size": 30, "patch_size": 6, "num_channels": 3, **eyes}
    config = Mistral3Config(
        text_config=text | values,
        vision_config=vision,
        vision_feature_layer=-1,
        image_token_index=tokenizer.pad_token_id,
    )
    return as_module(Mistral3ForConditionalGeneration(config))


def _mistral_tokenizer() -> Any:
    """Return a tokenizer of bytes with the special tokens and the chat of Mistral's.

    Words of FLUX.2's system message are a token each, as in the real vocabulary: it precedes each prompt.
    """
    from diffusers.pipelines.flux2.system_messages import SYSTEM_MESSAGE

    bare = qwen_tokenizer()
    tokenizer = bare.train_new_from_iterator([SYSTEM_MESSAGE], vocab_size=1000, show_progress=False)
    tokenizer.add_special_tokens({"pad_token": "<pad>", "additional_special_tokens": list(_MISTRAL_SPECIALS)})
    tokenizer.chat_template = _MISTRAL_CHAT
    return tokenizer
