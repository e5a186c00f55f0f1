"""Small IP-Adapters in the official layout and small FLUX.1 Redux folders, with random weights."""

import json
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from diffuserve.testing.checkpoints import as_module, redraw_weights, require_libraries, save_module

_SIDE, _PATCH, _WIDTH, _PROJECTED = 28, 7, 24, 20
_TOKENS, _QUERIES = 4, 6
_RESAMPLED, _INNER, _LAYERS = 32, 128, 4  # diffusers builds four layers, of heads of 64
_ENCODER: dict[str, Any] = {
    "hidden_size": _WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": _SIDE,
}

Shapes = dict[str, tuple[int, ...]]


def write_ip_adapter(
    folder: Path, model: Path, *, kind: Literal["plain", "plus"] = "plain", seed: int = 0
) -> Path:
    """Write a random IP-Adapter for a folder of Stable Diffusion, with its image encoder beside it.

    Return the adapter's file. Raise `ImportError` with the remedy unless diffusers and transformers are
    installed.
    """
    require_libraries()
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    _write_clip(folder / "image_encoder", generator)
    attentions, text_dim = _attentions(model)
    projection = _projection(text_dim) if kind == "plain" else _resampler(text_dim)
    shapes = attentions | {f"image_proj.{name}": shape for name, shape in projection.items()}
    tensors = {
        name: torch.randn(shape, generator=generator) * (shape[-1] ** -0.5 if len(shape) > 1 else 0.3)
        for name, shape in shapes.items()
    }
    file = folder / f"ip-adapter-{kind}.safetensors"
    save_file(tensors, file)
    return file


def write_redux(folder: Path, model: Path, *, seed: int = 0) -> Path:
    """Write a random FLUX.1 Redux for a folder of FLUX.1 into `folder`, in diffusers' format, and return it.

    Raise `ImportError` with the remedy unless diffusers and transformers are installed.
    """
    require_libraries()
    from diffusers.pipelines.flux.modeling_flux import ReduxImageEncoder
    from transformers import SiglipImageProcessorPil, SiglipVisionConfig, SiglipVisionModel

    # Many tokens: beside those of a prompt few would hardly show.
    config = SiglipVisionConfig(**_ENCODER, patch_size=2)
    text_dim = _config(model / "transformer")["joint_attention_dim"]
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):  # the constructors draw from the global generator
        components = {
            "image_encoder": as_module(SiglipVisionModel(config)),
            "image_embedder": as_module(ReduxImageEncoder(_WIDTH, text_dim)),
        }
    for name, module in components.items():
        redraw_weights(module, generator)
        save_module(module, folder / name)
    processor = SiglipImageProcessorPil(size={"height": _SIDE, "width": _SIDE})
    processor.save_pretrained(folder / "feature_extractor")
    return folder


def _attentions(model: Path) -> tuple[Shapes, int]:
    """Return the keys and values for each cross-attention of a UNet, and the width of what it reads.

    They are numbered as diffusers numbers all attentions.
    """
    from diffusers import UNet2DConditionModel

    with torch.device("meta"):
        unet: Any = UNet2DConditionModel.from_config(_config(model / "unet"))
    text_dim = unet.config.cross_attention_dim
    widths = {
        index: unet.get_submodule(name.removesuffix(".processor")).to_k.out_features
        for index, name in enumerate(unet.attn_processors)
        if name.endswith("attn2.processor")
    }
    return {
        f"ip_adapter.{index}.{part}.weight": (width, text_dim)
        for index, width in widths.items()
        for part in ("to_k_ip", "to_v_ip")
    }, text_dim


def _projection(text_dim: int) -> Shapes:
    rows = _TOKENS * text_dim
    return {"proj.weight": (rows, _PROJECTED), "proj.bias": (rows,), **_norm("norm", text_dim)}


def _resampler(text_dim: int) -> Shapes:
    width = _RESAMPLED
    shapes: Shapes = {
        "latents": (1, _QUERIES, width),
        "proj_in.weight": (width, _WIDTH),
        "proj_in.bias": (width,),
        "proj_out.weight": (text_dim, width),
        "proj_out.bias": (text_dim,),
        **_norm("norm_out", text_dim),
    }
    for index in range(_LAYERS):
        shapes |= {
            f"layers.{index}.0.to_q.weight": (_INNER, width),
            f"layers.{index}.0.to_kv.weight": (2 * _INNER, width),
            f"layers.{index}.0.to_out.weight": (width, _INNER),
            f"layers.{index}.1.1.weight": (4 * width, width),
            f"layers.{index}.1.3.weight": (width, 4 * width),
        }
        for name in ("0.norm1", "0.norm2", "1.0"):
            shapes |= _norm(f"layers.{index}.{name}", width)
    return shapes


def _norm(name: str, width: int) -> Shapes:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def _write_clip(folder: Path, generator: torch.Generator) -> None:
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    config = CLIPVisionConfig(**_ENCODER, patch_size=_PATCH, projection_dim=_PROJECTED, hidden_act="gelu")
    with torch.random.fork_rng(devices=[]):  # the constructor draws from the global generator
        encoder: nn.Module = as_module(CLIPVisionModelWithProjection(config))
    redraw_weights(encoder, generator)
    save_module(encoder, folder)


def _config(component: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((component / "config.json").read_text("utf-8"))
    return config
