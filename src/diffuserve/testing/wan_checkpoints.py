"""Small Wan checkpoints with random weights, in diffusers' format.

As in `checkpoints`, clips show noise, but every tensor of the architecture takes part in them.
"""

import json
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from diffuserve.models.bundled import bundled_models
from diffuserve.testing.checkpoints import (
    as_module,
    bundled_config,
    redraw_weights,
    require_libraries,
    save_module,
)

WanKind = Literal["t2v", "i2v", "flf2v", "ti2v", "a14b", "a14b-i2v", "tiny"]

_HEADS, _HEAD_DIM, _TEXT_DIM, _FREQ_DIM = 4, 16, 32, 32
_IMAGE_DIM, _IMAGE_SIZE, _IMAGE_PATCH = 24, 28, 14
_IMAGE_TOKENS = (_IMAGE_SIZE // _IMAGE_PATCH) ** 2 + 1
_TABLE_SPREAD, _NORM_SPREAD = 0.5, 0.2
_MASK_CHANNELS = 4  # one for each frame of a latent frame
_WITH_CLIP = ("i2v", "flf2v")
_IMAGE_TO_VIDEO = (*_WITH_CLIP, "a14b-i2v")
_SCHEDULER: dict[str, Any] = {
    "_class_name": "UniPCMultistepScheduler",
    "num_train_timesteps": 1000,
    "prediction_type": "flow_prediction",
    "use_flow_sigmas": True,
    "flow_shift": 3.0,
    "solver_order": 2,
    "solver_type": "bh2",
    "predict_x0": True,
    "lower_order_final": True,
    "final_sigmas_type": "zero",
    "timestep_spacing": "linspace",
}
_TINY_SCHEDULER: dict[str, Any] = {
    "flow_shift": 1.0,
    "solver_order": 1,
    "disable_corrector": list(range(100)),
}
_VAES: Mapping[str, dict[str, Any]] = {
    "2.1": {"base_dim": 8, "dim_mult": [1, 2, 2, 2], "temperal_downsample": [False, True, True]},
    "2.2": {
        "base_dim": 8,
        "decoder_base_dim": 12,
        "z_dim": 24,
        "dim_mult": [1, 2, 2, 2],
        "temperal_downsample": [False, True, True],
        "is_residual": True,
        "patch_size": 2,
        "in_channels": 12,
        "out_channels": 12,
        "scale_factor_spatial": 16,
    },
    "tiny": {
        "base_dim": 8,
        "dim_mult": [1, 2, 2],
        "temperal_downsample": [True, True],
        "is_residual": True,
        "patch_size": 2,
        "in_channels": 12,
        "out_channels": 12,
    },
}


def write_wan_checkpoint(  # noqa: PLR0913 (a checkpoint has that many options)
    folder: Path,
    *,
    kind: WanKind = "t2v",
    scheduler: Mapping[str, Any] | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    num_files: int = 1,
    vae: Mapping[str, Any] | None = None,
    **transformer: Any,
) -> Path:
    """Write a random Wan checkpoint into `folder` and return it.

    `t2v` has the layout of Wan 2.1, and `i2v` that of its image-to-video, with an image encoder; `flf2v`
    reads a last frame beside the first. `ti2v` is Wan 2.2 5B's, which takes text alone or with an image;
    `a14b` and `a14b-i2v` have two transformers, and `tiny` is a smaller `ti2v` whose sampler is of the first
    order. `scheduler` overrides values of the kind's `scheduler_config.json`, `vae` those of its autoencoder,
    and further options those of the transformers; the text encoder has their `text_dim`. The tokenizer is the
    bundled tiny-flux's. Equal arguments write equal weights.

    Raise `ImportError` with the remedy unless diffusers and transformers are installed.
    """
    require_libraries()
    with torch.random.fork_rng(devices=[]):  # the constructors draw from the global generator
        components = _components(kind, transformer, vae or {}, seed)
    generator = torch.Generator().manual_seed(seed)
    for name, module in components.items():
        _redraw(module, generator)
        nn.Module.to(module, dtype)  # diffusers' own `to` keeps some modules in float32, and warns
        save_module(module, folder / name, num_files if name in ("transformer", "text_encoder") else 1)
    _write_scheduler(folder, kind, scheduler or {})
    shutil.copytree(bundled_models()["tiny-flux"] / "tokenizer_2", folder / "tokenizer", dirs_exist_ok=True)
    if kind in _WITH_CLIP:
        _write_image_processor(folder)
    _write_index(folder, kind, components)
    return folder


def _components(
    kind: WanKind, transformer: Mapping[str, Any], vae: Mapping[str, Any], seed: int
) -> dict[str, nn.Module]:
    layout = _VAES["tiny" if kind == "tiny" else "2.2" if kind == "ti2v" else "2.1"] | dict(vae)
    channels = layout.get("z_dim", 16)
    drawn = {
        "transformer": _transformer(kind, channels, transformer),
        "vae": _vae(layout, seed),
        "text_encoder": _umt5(transformer.get("text_dim", _TEXT_DIM)),
    }
    if kind.startswith("a14b"):
        drawn["transformer_2"] = _transformer(kind, channels, transformer)
    if kind in _WITH_CLIP:
        drawn["image_encoder"] = _clip_vision()
    return drawn


def _transformer(kind: WanKind, channels: int, options: Mapping[str, Any]) -> nn.Module:
    from diffusers import WanTransformer3DModel

    has_clip = kind in _WITH_CLIP
    layout: dict[str, Any] = {
        "num_attention_heads": _HEADS,
        "attention_head_dim": _HEAD_DIM,
        "in_channels": 2 * channels + _MASK_CHANNELS if kind in _IMAGE_TO_VIDEO else channels,
        "out_channels": channels,
        "text_dim": _TEXT_DIM,
        "freq_dim": _FREQ_DIM,
        "ffn_dim": 96,
        "num_layers": 2,
        "cross_attn_norm": True,
        "rope_max_seq_len": 64,
        "image_dim": _IMAGE_DIM if has_clip else None,
        "added_kv_proj_dim": _HEADS * _HEAD_DIM if has_clip else None,
        "pos_embed_seq_len": 2 * _IMAGE_TOKENS if kind == "flf2v" else None,
    }
    return as_module(WanTransformer3DModel(**layout | dict(options)))


def _vae(layout: Mapping[str, Any], seed: int) -> nn.Module:
    """Return an autoencoder whose latents have means and deviations of their own."""
    from diffusers import AutoencoderKLWan

    channels = layout.get("z_dim", 16)
    generator = torch.Generator().manual_seed(seed)
    means, deviations = torch.randn(channels, generator=generator), torch.rand(channels, generator=generator)
    return as_module(
        AutoencoderKLWan(
            **layout,
            num_res_blocks=1,
            latents_mean=[round(mean, 4) for mean in means.tolist()],
            latents_std=[round(0.5 + deviation, 4) for deviation in deviations.tolist()],
        )
    )


def _umt5(width: int) -> nn.Module:
    from transformers import UMT5Config, UMT5EncoderModel

    tokens = bundled_config("text_encoder_2", "vocab_size", "eos_token_id", "pad_token_id")
    config = UMT5Config(
        d_model=width,
        d_kv=8,
        d_ff=2 * width,
        num_layers=2,
        num_heads=4,
        feed_forward_proj="gated-gelu",
        **tokens,
    )
    return as_module(UMT5EncoderModel(config))


def _clip_vision() -> nn.Module:
    from transformers import CLIPVisionConfig, CLIPVisionModel

    config = CLIPVisionConfig(
        hidden_size=_IMAGE_DIM,
        projection_dim=_IMAGE_DIM,
        intermediate_size=2 * _IMAGE_DIM,
        num_hidden_layers=3,
        num_attention_heads=2,
        image_size=_IMAGE_SIZE,
        patch_size=_IMAGE_PATCH,
        hidden_act="gelu",
    )
    return as_module(CLIPVisionModel(config))


def _redraw(module: nn.Module, generator: torch.Generator) -> None:
    """Randomise every parameter, norms around 1 and the tables of factors as wide as trained ones."""
    redraw_weights(module, generator)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith("gamma"):
                parameter.copy_(1 + _noise(parameter, generator) * _NORM_SPREAD)
            elif name.endswith("scale_shift_table"):
                parameter.copy_(_noise(parameter, generator) * _TABLE_SPREAD)


def _noise(parameter: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(parameter.shape, generator=generator)


def _write_scheduler(folder: Path, kind: WanKind, options: Mapping[str, Any]) -> None:
    own = _SCHEDULER | (_TINY_SCHEDULER if kind == "tiny" else {})
    _write_json(folder / "scheduler" / "scheduler_config.json", own | dict(options))


def _write_image_processor(folder: Path) -> None:
    from transformers import CLIPImageProcessor

    processor = CLIPImageProcessor(
        size={"shortest_edge": _IMAGE_SIZE}, crop_size={"height": _IMAGE_SIZE, "width": _IMAGE_SIZE}
    )
    processor.save_pretrained(folder / "image_processor")


def _write_index(folder: Path, kind: WanKind, components: Mapping[str, nn.Module]) -> None:
    scheduler = json.loads((folder / "scheduler" / "scheduler_config.json").read_text("utf-8"))
    transformer, absent = ["diffusers", "WanTransformer3DModel"], [None, None]
    has_clip = kind in _WITH_CLIP
    index: dict[str, Any] = {
        "_class_name": "WanImageToVideoPipeline" if kind in _IMAGE_TO_VIDEO else "WanPipeline",
        "_diffusers_version": version("diffusers"),
        "boundary_ratio": 0.875 if kind.startswith("a14b") else None,
        "expand_timesteps": kind in ("ti2v", "tiny"),
        "scheduler": ["diffusers", scheduler["_class_name"]],
        "text_encoder": ["transformers", "UMT5EncoderModel"],
        "tokenizer": ["transformers", "T5Tokenizer"],
        "transformer": transformer,
        "transformer_2": transformer if "transformer_2" in components else absent,
        "vae": ["diffusers", "AutoencoderKLWan"],
    }
    if kind in _IMAGE_TO_VIDEO:
        index |= {
            "image_encoder": ["transformers", "CLIPVisionModel"] if has_clip else absent,
            "image_processor": ["transformers", "CLIPImageProcessor"] if has_clip else absent,
        }
    _write_json(folder / "model_index.json", index)


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values, indent=2) + "\n", "utf-8")
