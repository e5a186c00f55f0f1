"""Small Qwen-Image checkpoints with random weights, in diffusers' format.

As in `checkpoints`, images show noise, but every tensor of the architecture takes part in them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from diffuserve.testing.checkpoints import as_module, redraw_weights, require_libraries
from diffuserve.testing.qwen_parts import qwen_processor, qwen_tokenizer, qwen_vl, template_of

QwenImageKind = Literal["image", "edit", "edit-plus", "edit-2511"]

_HEADS, _HEAD_DIM, _ROPE_AXES, _TEXT_DIM = 4, 16, (4, 6, 6), 32
_LATENT_CHANNELS = 16
_NORM_SPREAD, _CONTRAST = 0.2, 2.0
_MAX_IMAGE_TOKENS = 16
_READABLE = 0o644  # save_pretrained leaves weights that only their owner may read
_CLASSES: Mapping[QwenImageKind, str] = {
    "image": "QwenImagePipeline",
    "edit": "QwenImageEditPipeline",
    "edit-plus": "QwenImageEditPlusPipeline",
    "edit-2511": "QwenImageEditPlusPipeline",
}
_SCHEDULER: Mapping[str, Any] = {
    "base_image_seq_len": 256,
    "base_shift": 0.5,
    "max_image_seq_len": 8192,
    "max_shift": 0.9,
    "shift": 1.0,
    "shift_terminal": 0.02,
    "use_dynamic_shifting": True,
}


def write_qwen_image_checkpoint(  # noqa: PLR0913 (a checkpoint has that many options)
    folder: Path,
    *,
    kind: QwenImageKind = "image",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    num_files: int = 1,
    scheduler: Mapping[str, Any] | None = None,
    vae: Mapping[str, Any] | None = None,
    text_encoder: Mapping[str, Any] | None = None,
    **transformer: Any,
) -> Path:
    """Write a random Qwen-Image checkpoint into `folder` and return it.

    `image` draws from a prompt, and begins with an image if there is one. `edit` reads one reference,
    `edit-plus` several, as Qwen-Image-Edit-2509 does, and `edit-2511` modulates them apart. `scheduler`
    overrides values of the scheduler's config, `vae` those of the autoencoder's, `text_encoder` those of the
    language model's, and further options those of the transformer's. With `num_files` above 1 the transformer
    is split into at least that many files with an index. Equal arguments write equal weights.

    Raise `ImportError` with the remedy unless diffusers and transformers are installed.
    """
    require_libraries()
    import diffusers

    pipeline_class = getattr(diffusers, _CLASSES[kind])
    with torch.random.fork_rng(devices=[]):  # the constructors draw from the global generator
        parts: dict[str, Any] = {
            "transformer": _transformer(kind, transformer),
            "vae": _vae(vae or {}, seed),
            **_text_parts(kind, template_of(pipeline_class), text_encoder or {}),
        }
    generator = torch.Generator().manual_seed(seed)
    for part in parts.values():
        if isinstance(part, nn.Module):
            _redraw(part, generator)
            nn.Module.to(part, dtype)  # diffusers' own `to` keeps some modules in float32, and warns
    parts["vae"].decoder.conv_out.weight.data *= _CONTRAST
    values: dict[str, Any] = {**_SCHEDULER, **(scheduler or {})}
    parts["scheduler"] = diffusers.FlowMatchEulerDiscreteScheduler(**values)
    num_bytes = sum(parameter.nbytes for parameter in parts["transformer"].parameters())
    pipeline_class(**parts).save_pretrained(folder, max_shard_size=num_bytes // num_files)
    for file in folder.rglob("*.safetensors"):
        file.chmod(_READABLE)
    return folder


def _transformer(kind: QwenImageKind, options: Mapping[str, Any]) -> nn.Module:
    from diffusers import QwenImageTransformer2DModel

    layout: dict[str, Any] = {
        "in_channels": 4 * _LATENT_CHANNELS,
        "out_channels": _LATENT_CHANNELS,
        "num_layers": 2,
        "attention_head_dim": _HEAD_DIM,
        "num_attention_heads": _HEADS,
        "joint_attention_dim": _TEXT_DIM,
        "axes_dims_rope": _ROPE_AXES,
        "zero_cond_t": kind == "edit-2511",
    }
    return as_module(QwenImageTransformer2DModel(**layout | dict(options)))


def _text_parts(kind: QwenImageKind, template: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the text encoder, and what makes its input of texts and images."""
    tokenizer = qwen_tokenizer(template)
    parts = {"text_encoder": qwen_vl(tokenizer, _TEXT_DIM, **options), "tokenizer": tokenizer}
    return parts if kind == "image" else {**parts, "processor": qwen_processor(tokenizer, _MAX_IMAGE_TOKENS)}


def _vae(options: Mapping[str, Any], seed: int) -> nn.Module:
    """Return an autoencoder whose latents have means and deviations of their own."""
    from diffusers import AutoencoderKLQwenImage

    generator = torch.Generator().manual_seed(seed)
    means, deviations = (torch.rand(_LATENT_CHANNELS, generator=generator) for _ in range(2))
    layout: dict[str, Any] = {
        "base_dim": 8,
        "z_dim": _LATENT_CHANNELS,
        "dim_mult": [1, 2, 2, 2],
        "num_res_blocks": 1,
        "temperal_downsample": [False, True, True],
        "latents_mean": [round(mean - 0.5, 4) for mean in means.tolist()],
        "latents_std": [round(1.5 + deviation, 4) for deviation in deviations.tolist()],
    }
    return as_module(AutoencoderKLQwenImage(**layout | dict(options)))


def _redraw(module: nn.Module, generator: torch.Generator) -> None:
    """Randomise every parameter, norms around 1."""
    redraw_weights(module, generator)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith("gamma"):
                parameter.copy_(1 + _noise(parameter, generator) * _NORM_SPREAD)


def _noise(parameter: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(parameter.shape, generator=generator)
