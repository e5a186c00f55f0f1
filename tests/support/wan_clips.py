"""Clips for Wan's transformer, packed for ours and one at a time for diffusers', with the same weights."""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from diffusers import WanTransformer3DModel
from torch import Tensor, nn

from diffuserve.models.families.wan.config import WanTransformerConfig
from diffuserve.models.families.wan.packing import ClipShape, pack_layout, patchify, unpatchify
from diffuserve.models.families.wan.transformer import PackedWanInput, WanTransformer, load_transformer
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.folders.pretrained import load_module
from diffuserve.models.layers.attention import AttentionKernel, choose_kernel
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.testing.checkpoints import redraw_weights, save_module

CPU = torch.device("cpu")
PROMPT_TOKENS = 64  # of a padded prompt
CHECKPOINTS: dict[str, dict[str, Any]] = {
    "t2v": {},
    "ti2v": {"in_channels": 6, "out_channels": 6, "num_attention_heads": 2, "attention_head_dim": 32},
    "i2v": {"in_channels": 12, "image_dim": 24, "added_kv_proj_dim": 64},
    "flf2v": {"in_channels": 12, "image_dim": 24, "added_kv_proj_dim": 64, "pos_embed_seq_len": 14},
}
IMAGE_TOKENS = 7


@dataclass(frozen=True)
class Clip:
    """A sequence of a forward pass, with its inputs. `timesteps` are one for each factor row."""

    latents: Tensor
    timesteps: tuple[float, ...]
    text: Tensor
    image: Tensor | None
    padding: int

    @property
    def shape(self) -> ClipShape:
        _, _, frames, height, width = self.latents.shape
        return ClipShape(
            frames=frames,
            rows=height // 2,
            columns=width // 2,
            text=len(self.text),
            padding=self.padding,
            image=0 if self.image is None else len(self.image),
            has_first_frame=len(self.timesteps) == 2,
        )


@dataclass(frozen=True)
class Checkpoint:
    """The same weights twice: in diffusers' class and in ours."""

    folder: ModelFolder

    @cache  # noqa: B019 (the checkpoint lives as long as the module's tests)
    def theirs(self, dtype: torch.dtype = torch.float32) -> Any:
        return load_module(WanTransformer3DModel, self.folder.component("transformer"), dtype=dtype)

    def ours(
        self,
        dtype: torch.dtype = torch.float32,
        tiled: bool = False,
        kernel: AttentionKernel | None = None,
    ) -> WanTransformer:
        kernel = kernel or choose_kernel(CPU, dtype)
        return load_transformer(self.folder, "transformer", kernel, LoadPlan(CPU, dtype), is_tiled=tiled)


def write_checkpoint(folder: Path, options: dict[str, Any]) -> Checkpoint:
    layout = {
        "num_attention_heads": 4,
        "attention_head_dim": 16,
        "in_channels": 4,
        "out_channels": 4,
        "text_dim": 32,
        "freq_dim": 32,
        "ffn_dim": 96,
        "num_layers": 2,
        "cross_attn_norm": True,
        "rope_max_seq_len": 64,
    }
    with torch.random.fork_rng(devices=[]):
        model = WanTransformer3DModel(**layout | options)
    generator = torch.Generator().manual_seed(0)
    redraw_weights(model, generator)
    for name, parameter in model.named_parameters():
        if name.endswith("scale_shift_table"):  # of the same size as what is added to it
            parameter.data = torch.randn(parameter.shape, generator=generator) / 2
    save_module(model, folder / "transformer")
    return Checkpoint(ModelFolder(folder))


def make_clip(
    config: WanTransformerConfig,
    seed: int,
    sides: tuple[int, int, int],
    timesteps: tuple[float, ...] = (500.0,),
    text: int = 5,
    dtype: torch.dtype = torch.float32,
) -> Clip:
    generator = torch.Generator().manual_seed(seed)
    latents = torch.randn(1, config.in_channels, *sides, generator=generator)
    states = torch.randn(text, config.text_dim, generator=generator)
    image = torch.randn(config.pos_embed_seq_len or IMAGE_TOKENS, config.image_dim or 1, generator=generator)
    return Clip(
        latents.to(dtype),
        timesteps,
        states.to(dtype),
        None if config.image_dim is None else image.to(dtype),
        PROMPT_TOKENS - text,
    )


def make_mixed(config: WanTransformerConfig, dtype: torch.dtype = torch.float32) -> list[Clip]:
    """Return clips of 1, 5, 9 and 17 frames that differ in size, step and prompt, some with a first frame."""
    return [
        make_clip(config, 0, (1, 8, 8), (999.0,), 3, dtype),
        make_clip(config, 1, (2, 4, 8), (750.0,), 31, dtype),
        make_clip(config, 2, (3, 4, 4), (0.0, 250.0), 32, dtype),
        make_clip(config, 3, (5, 6, 4), (333.0,), 64, dtype),
        make_clip(config, 4, (5, 6, 4), (0.0, 12.0), 63, dtype),
        make_clip(config, 5, (5, 6, 4), (12.0,), 1, dtype),
        make_clip(config, 6, (1, 2, 2), (1.0,), 8, dtype),
        make_clip(config, 7, (2, 4, 8), (0.0, 900.0), 12, dtype),
    ]


def pack(clips: list[Clip], config: WanTransformerConfig) -> PackedWanInput:
    images = [clip.image for clip in clips if clip.image is not None]
    return PackedWanInput(
        tokens=torch.cat([patchify(clip.latents, config.patch_size) for clip in clips]),
        timestep=torch.tensor([value for clip in clips for value in clip.timesteps]),
        text=torch.cat([nn.functional.pad(clip.text, (0, 0, 0, min(1, clip.padding))) for clip in clips]),
        image=torch.cat(images) if images else None,
        layout=pack_layout([clip.shape for clip in clips], config, CPU),
    )


def predict(model: WanTransformer, clips: list[Clip]) -> list[Tensor]:
    with torch.inference_mode():
        velocity: Tensor = model(pack(clips, model.config))
    shapes = [clip.shape for clip in clips]
    parts = velocity.split([shape.tokens for shape in shapes])
    patch = model.config.patch_size
    return [unpatchify(part, shape, patch) for part, shape in zip(parts, shapes, strict=True)]


def predict_by_reference(model: Any, clip: Clip) -> Tensor:
    """Call diffusers' transformer as its pipelines do: with a timestep a token if there are several."""
    shape, image = clip.shape, clip.image
    timestep = torch.tensor([clip.timesteps[0]])
    if shape.has_first_frame:
        counts = torch.tensor(shape.factor_rows)
        timestep = torch.tensor(clip.timesteps).repeat_interleave(counts)[None]
    text = nn.functional.pad(clip.text, (0, 0, 0, clip.padding))
    if image is not None:  # diffusers takes the last 512 for the prompt's
        text = nn.functional.pad(clip.text, (0, 0, 0, 512 - len(clip.text)))
    with torch.inference_mode():
        velocity: Tensor = model(
            hidden_states=clip.latents,
            timestep=timestep,
            encoder_hidden_states=text[None],
            encoder_hidden_states_image=None if image is None else image.unflatten(0, (-1, IMAGE_TOKENS)),
            return_dict=False,
        )[0]
    return velocity


def distance(left: Tensor, right: Tensor) -> float:
    """Return the largest absolute difference, relative to the largest value of `right`."""
    return float((left.double() - right.double()).abs().max() / right.double().abs().max())


def as_the_reference_pads(clip: Clip) -> Clip:
    return clip if clip.image is None else replace(clip, padding=512 - len(clip.text))
