"""Folders of random small pipelines, as `DiffusionPipeline.from_pretrained` and our engine load them."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diffuserve.testing.checkpoints import redraw_weights
from support.tiny_pipelines.registry import TINY_PIPELINES

_READABLE = 0o644  # save_pretrained leaves weights that only their owner may read


def bare_pipeline(folder: Path) -> Any:
    """Return diffusers' own pipeline of a folder."""
    from diffusers import DiffusionPipeline

    pipe = DiffusionPipeline.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def tiny_folder(name: str, parent: Path, seed: int = 0) -> Path:
    """Return the folder of the random pipeline `name` in `parent`; write it unless it is there."""
    folder = parent / f"{name}-{seed}"
    if not (folder / "model_index.json").exists():
        _save(tiny_pipeline(name, seed), folder)
    return folder


def tiny_pipeline(name: str, seed: int = 0) -> Any:
    """Return the random pipeline `name` itself; equal seeds draw equal weights."""
    import diffusers

    tiny = TINY_PIPELINES[name]
    with torch.random.fork_rng(devices=[]):  # constructors draw from the global generator
        torch.manual_seed(seed)
        components = tiny.components()
    generator = torch.Generator().manual_seed(seed)
    for part in components.values():
        if isinstance(part, nn.Module):
            _draw(part, generator)
    if tiny.contrast != 1:
        _last_weight(components["vae"].decoder).data *= tiny.contrast
    return getattr(diffusers, tiny.class_name)(**components)


def _last_weight(decoder: Any) -> Tensor:
    """Return what scales an autoencoder's results: of pictures, of clips, of sounds."""
    names = {"conv_out": "weight", "proj_out": "weight", "conv2": "weight_g"}
    weight = next(
        getattr(getattr(decoder, layer), of) for layer, of in names.items() if hasattr(decoder, layer)
    )
    assert isinstance(weight, Tensor)
    return weight


def _draw(module: nn.Module, generator: torch.Generator) -> None:
    redraw_weights(module, generator)
    for name, statistics in module.named_buffers():  # of a batch norm: zeros and ones would hide a mistake
        if name.endswith("running_mean"):
            statistics.copy_(torch.randn(statistics.shape, generator=generator))
        if name.endswith("running_var"):
            statistics.copy_(0.5 + 1.5 * torch.rand(statistics.shape, generator=generator))
    module.eval()


def _save(pipeline: Any, folder: Path) -> None:
    pipeline.save_pretrained(folder, safe_serialization=True)
    for file in folder.rglob("*.safetensors"):
        file.chmod(_READABLE)
