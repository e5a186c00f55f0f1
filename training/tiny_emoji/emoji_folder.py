"""The trained parts as a folder of a `FluxPipeline` in diffusers' format, bf16, ready to be served."""

import json
import lzma
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from diffusers import AutoencoderKL, FluxTransformer2DModel
from safetensors.torch import load_file

import diffuserve.models.bundled
from assemble import forget_place
from emoji_tokenizers import copy_tokenizers
from emoji_vocabulary import FILE as VOCABULARY
from emoji_vocabulary import declared
from emoji_walks import Studio
from packed import pack

SIDE = 128
HOME = Path(diffuserve.models.bundled.__file__).parent
NAME = "tiny-emoji"
STEPS = "steps"
"""In the header of the weights: how many the denoiser has done."""
_CODES = {"vae": 1 / 4, "text_encoder": 1 / 4, "text_encoder_2": 1 / 8, "transformer": 1 / 12}
"""Coarser codes of T5 and the denoiser, 1/6 for both, cost four in a hundred things that the judge names."""
_LONG_LISTS = ("tokenizer.json", VOCABULARY)
_AS_THEY_ARE = ("scheduler", "model_index.json", "diffuserve.json")


def assemble(
    folder: Path, tokenizers: Path, vae: AutoencoderKL, studio: Studio, denoiser: FluxTransformer2DModel
) -> None:
    """Write everything to `folder`; what is not learned is as in the bundled folder."""
    folder.mkdir(parents=True, exist_ok=True)
    copy_tokenizers(tokenizers, folder)
    for name in _AS_THEY_ARE:
        copy: Callable[..., object] = shutil.copyfile
        if (HOME / NAME / name).is_dir():
            copy = partial(shutil.copytree, dirs_exist_ok=True)
        copy(HOME / NAME / name, folder / name)
    words = json.dumps(declared(studio.lesson.things), separators=(",", ":"))
    (folder / VOCABULARY).write_text(words)
    vae.register_to_config(scaling_factor=studio.scale, shift_factor=studio.shift, sample_size=SIDE)
    parts = {
        "vae": vae,
        "transformer": denoiser,
        "text_encoder": studio.encoders.clip,
        "text_encoder_2": studio.encoders.t5,
    }
    for name, part in parts.items():
        part.to("cpu", torch.bfloat16).save_pretrained(folder / name)
    for path in folder.rglob("*.safetensors"):
        path.chmod(0o644)  # weights are written for their owner alone
    forget_place(folder / "vae" / "config.json")


def bundle(folder: Path, home: Path, num_steps: int) -> list[Path]:
    """Put an assembled folder among the bundled models in `home`; return what is packed of it.

    The weights become codes, and what was unpacked of earlier ones is removed: so this machine, too, has what
    others will unpack. `num_steps` are the denoiser's so far, from which its training goes on.
    """
    packed = []
    for path in (path for path in sorted(folder.rglob("*")) if path.is_file()):
        plain = home / folder.name / path.relative_to(folder)
        plain.parent.mkdir(parents=True, exist_ok=True)
        content = _packed(path, num_steps)
        if content is None:
            shutil.copyfile(path, plain)
            continue
        target = home / "packed" / folder.name / path.relative_to(folder).with_name(f"{path.name}.xz")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        plain.unlink(missing_ok=True)
        packed.append(target)
    return packed


def _packed(path: Path, num_steps: int) -> bytes | None:
    """Return what the repository keeps of a file; `None` if that is the file itself."""
    if path.suffix == ".safetensors":
        told = {STEPS: str(num_steps)} if path.parent.name == "transformer" else {}
        return pack(load_file(path), _CODES[path.parent.name], told)
    if path.name in _LONG_LISTS:
        return lzma.compress(path.read_bytes(), preset=9 | lzma.PRESET_EXTREME)
    return None
