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
from emoji_refit import refit
from emoji_text import Lesson
from emoji_tokenizers import copy_tokenizers
from text_encoders import TextEncoders

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
    """Put of the stages in `num_steps` what `state` lacks into it, from the folder of a model; return these.

    So many steps of each are then done. Both the weights and their averages begin as the folder's; optimizers
    begin anew, and so do the heads that ask the text encoders what they know.
    """
    if not (state / TOKENIZERS).exists():
        copy_tokenizers(folder, state / TOKENIZERS)
    lacking = [stage for stage in num_steps if not path_of(state, stage).exists()]
    for stage in lacking:
        modules = {prefix: load_part(folder, stage, prefix) for prefix in _PARTS[stage]}
        begin(state, stage, modules, num_steps[stage])
    return lacking


def adopt_denoiser(folder: Path, state: Path, encoders: TextEncoders, lesson: Lesson) -> bool:
    """Put the folder's denoiser into `state` if that has none, refitted if `encoders` learned more since."""
    if path_of(state, emoji_denoiser.NAME).exists():
        return False
    denoiser = load_part(folder, emoji_denoiser.NAME, "denoiser")
    assert isinstance(denoiser, FluxTransformer2DModel)
    parts = [load_part(folder, emoji_text.NAME, prefix) for prefix in ("clip", "t5")]
    earlier = TextEncoders(*parts)
    if not are_equal(earlier, encoders):
        refit(denoiser, earlier, encoders, lesson)
    begin(state, emoji_denoiser.NAME, {"denoiser": denoiser}, steps_of(folder))
    return True


def load_part(folder: Path, stage: str, prefix: str) -> nn.Module:
    """Return a module of a stage, in float32, from the folder of a model."""
    kind, part = _PARTS[stage][prefix]
    module: nn.Module = load_module(kind, folder / part).float()
    return module


def begin(state: Path, stage: str, modules: dict[str, nn.Module], num_steps: int) -> None:
    """Save a stage of which so many steps are done, with these weights as they are and on average."""
    tensors = {_STEP: torch.tensor(num_steps)}
    for prefix, module in modules.items():
        for name, value in module.named_parameters():
            tensors[f"{_WEIGHT}{prefix}.{name}"] = value.detach()
            tensors[f"{_AVERAGE}{prefix}.{name}"] = value.detach().clone()
    save_file(tensors, path_of(state, stage))


def are_equal(some: TextEncoders, others: TextEncoders) -> bool:
    """Return whether two pairs of encoders have the same weights."""
    pairs = zip(some.modules.values(), others.modules.values(), strict=True)
    return all(
        torch.equal(value, other)
        for module, twin in pairs
        for value, other in zip(module.parameters(), twin.parameters(), strict=True)
    )


def steps_of(folder: Path) -> int:
    """Return how many steps the denoiser of a bundled folder has done."""
    [weights] = (folder / _TRANSFORMER).glob("*.safetensors")
    with safe_open(weights, framework="pt") as opened:
        return int((opened.metadata() or {}).get(STEPS, 0))


def steps_done(state: Path, stage: str = emoji_denoiser.NAME) -> int:
    """Return how many steps a stage in `state` has done."""
    with safe_open(path_of(state, stage), framework="pt") as opened:
        return int(opened.get_tensor(_STEP))


def path_of(state: Path, stage: str) -> Path:
    return state / f"{stage}.safetensors"


def load_averages(path: Path, modules: dict[str, nn.Module]) -> None:
    """Put the averaged weights of a stage's state at `path` into its modules; it is only read."""
    tensors = load_file(path)
    for prefix, module in modules.items():
        for name, value in module.named_parameters():
            value.data.copy_(tensors[f"{_AVERAGE}{prefix}.{name}"])
