"""The trained parts as a folder in diffusers' format, bf16, ready to be served."""

import json
import shutil
from pathlib import Path

import torch
from diffusers import AutoencoderKL, FluxTransformer2DModel
from transformers import AutoTokenizer, T5EncoderModel

from diffuserve.models.folders.pretrained import load_processor
from latents import Latents
from text_encoders import BUNDLED, TextEncoders

_AS_THEY_ARE = ("tokenizer", "tokenizer_2", "scheduler", "model_index.json", "diffuserve.json")


def assemble(
    folder: Path,
    vae: AutoencoderKL,
    latents: Latents,
    encoders: TextEncoders,
    denoiser: FluxTransformer2DModel,
) -> None:
    """Write everything to `folder`; what is not learned is copied from the bundled model."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in _AS_THEY_ARE:
        copy = shutil.copytree if (BUNDLED / name).is_dir() else shutil.copyfile
        target = folder / name
        if target.is_dir():
            shutil.rmtree(target)
        copy(BUNDLED / name, target)
    vae.register_to_config(scaling_factor=latents.scale, shift_factor=latents.shift)
    teach_capitals(encoders.t5)
    for model, name in (
        (vae, "vae"),
        (denoiser, "transformer"),
        (encoders.clip, "text_encoder"),
        (encoders.t5, "text_encoder_2"),
    ):
        model.to(torch.bfloat16).save_pretrained(folder / name)
        for path in (folder / name).iterdir():
            path.chmod(0o644)  # weights are written for their owner alone


def forget_place(config: Path) -> None:
    """Take the path that a part was read from out of its config."""
    values = json.loads(config.read_text())
    values.pop("_name_or_path", None)
    config.write_text(json.dumps(values, indent=2) + "\n")


@torch.no_grad()
def teach_capitals(t5: T5EncoderModel) -> None:
    """T5's tokenizer tells "Red" from "red"; they mean the same, and only one of them was trained."""
    vocabulary = load_processor(AutoTokenizer, BUNDLED / "tokenizer_2").get_vocab()
    table = t5.get_input_embeddings().weight
    for piece, index in vocabulary.items():
        if piece != piece.lower() and piece.lower() in vocabulary:
            table[index] = table[vocabulary[piece.lower()]]
