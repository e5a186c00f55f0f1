"""Training goes on on another machine from the bundled weights: those of every stage, and the tokenizers."""

from pathlib import Path

import torch
from diffusers import AutoencoderKL, FluxTransformer2DModel
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import CLIPTextModel, T5EncoderModel

import emoji_autoencoder
import emoji_denoiser
import emoji_text
from diffuserve.models.folders.pretrained import load_module
from emoji_folder import STEPS
from emoji_tokenizers import copy_tokenizers

TOKENIZERS = "tokenizers"
_AVERAGE, _WEIGHT, _STEP = "average:", "weight:", "step"
_TRANSFORMER = "transformer"
_PARTS: dict[str, dict[str, tuple[type[nn.Module], str]]] = {
    emoji_autoencoder.NAME: {"vae": (AutoencoderKL, "vae")},
    emoji_text.NAME: {"clip": (CLIPTextModel, "text_encoder"), "t5": (T5EncoderModel, "text_encoder_2")},
    emoji_denoiser.NAME: {"denoiser": (FluxTransformer2DModel, _TRANSFORMER)},
}
"""By stage: its modules, each as a part of the folder."""


def adopt(folder: Path, state: Path, num_steps: dict[str, int]) -> list[str]:
    """Put what the folder of a model holds and `state` lacks into `state`; return the stages' names.

    Both the weights and their averages begin as the folder's; optimizers begin anew, and so do the heads that
    ask the text encoders what they know. Of each stage `num_steps` are done, but for the denoiser's.
    """
    if not (state / TOKENIZERS).exists():
        copy_tokenizers(folder, state / TOKENIZERS)
    lacking = [stage for stage in _PARTS if not path_of(state, stage).exists()]
    for stage in lacking:
        done = steps_of(folder) if stage == emoji_denoiser.NAME else num_steps[stage]
        tensors = {_STEP: torch.tensor(done)}
        for prefix, (kind, part) in _PARTS[stage].items():
            for name, value in load_module(kind, folder / part).float().named_parameters():
                tensors[f"{_WEIGHT}{prefix}.{name}"] = value.detach()
                tensors[f"{_AVERAGE}{prefix}.{name}"] = value.detach().clone()
        save_file(tensors, path_of(state, stage))
    return lacking


def steps_of(folder: Path) -> int:
    """Return how many steps the denoiser of a bundled folder has done."""
    [weights] = (folder / _TRANSFORMER).glob("*.safetensors")
    with safe_open(weights, framework="pt") as opened:
        return int((opened.metadata() or {}).get(STEPS, 0))


def steps_done(state: Path) -> int:
    """Return how many steps the denoiser in `state` has done."""
    with safe_open(path_of(state, emoji_denoiser.NAME), framework="pt") as opened:
        return int(opened.get_tensor(_STEP))


def path_of(state: Path, stage: str) -> Path:
    return state / f"{stage}.safetensors"


def load_averages(path: Path, modules: dict[str, nn.Module]) -> None:
    """Put the averaged weights of a stage's state at `path` into its modules; it is only read."""
    tensors = load_file(path)
    for prefix, module in modules.items():
        for name, value in module.named_parameters():
            value.data.copy_(tensors[f"{_AVERAGE}{prefix}.{name}"])
