"""Small Z-Image checkpoints with random weights, in diffusers' format.

As in `checkpoints`, images show noise, but every tensor of the architecture takes part in them.
"""

import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from diffuserve.testing.checkpoints import (
    as_module,
    autoencoder,
    redraw_weights,
    require_libraries,
    save_module,
)
from diffuserve.testing.qwen_parts import qwen3, qwen_tokenizer

_TEXT_DIM = 32


def write_z_image_checkpoint(  # noqa: PLR0913 (a checkpoint has that many options)
    folder: Path,
    *,
    class_name: str = "ZImagePipeline",
    shift: float = 3.0,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    num_files: int = 1,
    text_encoder: Mapping[str, Any] | None = None,
    **transformer: Any,
) -> Path:
    """Write a random Z-Image checkpoint into `folder` and return it.

    It is of Turbo if the folder's name says so. `shift` is that of its schedule, `text_encoder` overrides
    values of the text encoder's config, and further options those of the transformer. With `num_files` above
    1 the transformer and the text encoder are split into at least that many files with an index. The
    tokenizer has a token for each byte. Equal arguments write equal weights.

    Raise `ImportError` with the remedy unless diffusers and transformers are installed.
    """
    require_libraries()
    tokenizer = qwen_tokenizer()
    with torch.random.fork_rng(devices=[]):  # the constructors draw from the global generator
        components = {
            "transformer": _transformer(**transformer),
            "vae": autoencoder(),
            "text_encoder": qwen3(tokenizer, _TEXT_DIM, **text_encoder or {}),
        }
    generator = torch.Generator().manual_seed(seed)
    for name, module in components.items():
        redraw_weights(module, generator)
        nn.Module.to(module, dtype)
        save_module(module, folder / name, 1 if name == "vae" else num_files)
    tokenizer.save_pretrained(folder / "tokenizer")
    _save_scheduler(folder / "scheduler", shift)
    _write_index(folder, class_name)
    return folder


def _transformer(**values: Any) -> nn.Module:
    from diffusers import ZImageTransformer2DModel

    config: dict[str, Any] = {
        "dim": 96,
        "n_layers": 2,
        "n_refiner_layers": 1,
        "n_heads": 4,
        "n_kv_heads": 4,
        "cap_feat_dim": _TEXT_DIM,
        "axes_dims": [8, 8, 8],
        "axes_lens": [640, 64, 64],
    }
    return as_module(ZImageTransformer2DModel(**config | values))


def _save_scheduler(folder: Path, shift: float) -> None:
    from diffusers import FlowMatchEulerDiscreteScheduler

    FlowMatchEulerDiscreteScheduler(shift=shift).save_pretrained(folder)


def _write_index(folder: Path, class_name: str) -> None:
    index = {
        "_class_name": class_name,
        "_diffusers_version": version("diffusers"),
        "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
        "text_encoder": ["transformers", "Qwen3Model"],
        "tokenizer": ["transformers", "Qwen2Tokenizer"],
        "transformer": ["diffusers", "ZImageTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    }
    (folder / "model_index.json").write_text(json.dumps(index, indent=2) + "\n", "utf-8")
