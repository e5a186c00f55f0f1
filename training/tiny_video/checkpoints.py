"""Weights of every stage: read out of its state, or begun with those of a finished model's folder."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import caption_encoder
import video_autoencoder
import video_denoiser

_AVERAGE, _WEIGHT, _STEP = "average:", "weight:", "step"
_MODULES = {
    video_autoencoder.NAME: ("vae", "vae"),
    caption_encoder.NAME: ("encoder", "text_encoder"),
    video_denoiser.NAME: ("denoiser", "transformer"),
}
"""A stage's module, and the subfolder of the finished model that holds it."""


def load_average(path: Path, name: str, module: nn.Module) -> None:
    """Put the averaged weights of a stage's module `name` into `module`; the state at `path` stays."""
    prefix = f"{_AVERAGE}{name}."
    weights = {
        key.removeprefix(prefix): value for key, value in load_file(path).items() if key.startswith(prefix)
    }
    module.load_state_dict(weights)


def adopt_model(folder: Path, steps: dict[str, int], state: Path) -> list[str]:
    """Write the stages that `state` lacks as a model's `folder` has them, each after its number of `steps`.

    Return their names. Both the weights and their average begin as the folder's. Optimizers begin anew, as
    does what a model's folder lacks: the heads with which the text encoder was taught.
    """
    adopted = [name for name in _MODULES if not (state / f"{name}.safetensors").exists()]
    for name in adopted:
        weights = _weights(folder, name)
        tensors = {f"{_WEIGHT}{key}": value for key, value in weights.items()}
        tensors |= {f"{_AVERAGE}{key}": value.clone() for key, value in weights.items()}
        save_file(tensors | {_STEP: torch.tensor(steps[name])}, state / f"{name}.safetensors")
    return adopted


def _weights(folder: Path, stage: str) -> dict[str, Tensor]:
    module, component = _MODULES[stage]
    [file] = (folder / component).glob("*.safetensors")
    weights = {f"{module}.{name}": value.float() for name, value in load_file(file).items()}
    if stage == caption_encoder.NAME:
        heads = caption_encoder.Head().named_parameters()
        weights |= {f"head.{name}": value.detach().clone() for name, value in heads}
    return weights
