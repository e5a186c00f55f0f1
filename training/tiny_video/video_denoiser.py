"""The transformer: learns the straight way from noise to the clip that it stands for."""

import random
from pathlib import Path

import torch
from diffusers import WanTransformer3DModel
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase, UMT5EncoderModel

from caption_encoder import TEXT_DIM, encode
from clip_latents import ClipLatents, scene_of
from clip_walks import ClipWalks, levels_of
from loop import Course, warm_then_linear
from quick_forward import make_forward
from trait_readers import read_traits
from video_autoencoder import LATENT_CHANNELS
from words import clip_caption

NAME = "video_denoiser"
_BATCH = 16
_THING_WEIGHT = 3.0
_NUM_LAYERS = 8
_GATES = (2, 5)  # rows of a block's table that scale what attention and feed-forward add


def build() -> WanTransformer3DModel:
    """Return the transformer, 5.1 M parameters."""
    torch.manual_seed(3)
    denoiser = WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=6,
        attention_head_dim=32,
        in_channels=LATENT_CHANNELS,
        out_channels=LATENT_CHANNELS,
        text_dim=TEXT_DIM,
        freq_dim=128,
        ffn_dim=768,
        num_layers=_NUM_LAYERS,
        cross_attn_norm=True,
        rope_max_seq_len=64,
    )
    _initialize(denoiser)
    read_traits(denoiser)
    denoiser.set_attention_backend("_native_math")  # the fused kernel's backward took twice as long
    return denoiser


@torch.no_grad()
def _initialize(denoiser: WanTransformer3DModel) -> None:
    """Begin with blocks that add little through open gates, and with an output of zero."""
    for block in denoiser.blocks:
        block.scale_shift_table[:, _GATES] = 1.0
        for layer in (block.attn1.to_out[0], block.attn2.to_out[0], block.ffn.net[2]):
            layer.weight /= _NUM_LAYERS**0.5
    nn.init.zeros_(denoiser.proj_out.weight)
    nn.init.zeros_(denoiser.proj_out.bias)


def train(
    folder: Path,
    num_steps: int,
    latents: ClipLatents,
    encoder: UMT5EncoderModel,
    tokenizer: PreTrainedTokenizerBase,
    is_compiled: bool = True,
) -> WanTransformer3DModel:
    """Train for `num_steps` in all, or go on from `folder`; return the averaged weights."""
    denoiser = build()
    course = Course(NAME, {"denoiser": denoiser}, _optimizers(denoiser), num_steps, warm_then_linear, folder)
    walks = ClipWalks(latents, _BATCH)
    forward = make_forward(denoiser, is_compiled)

    def loss(_step: int, chance: random.Random) -> tuple[Tensor, dict[str, float]]:
        captions = [clip_caption(scene_of(index), chance) for index in walks.index.tolist()]
        with torch.no_grad():
            text, _ = encode(encoder, tokenizer, captions)
        velocity = forward(walks.noisy, *timesteps(walks), text)
        squares = (velocity - walks.velocity).square().mean(1, keepdim=True)
        weighted = weights(walks) * squares
        figures = _figures(squares.detach(), walks)
        walks.advance(velocity.detach())
        return weighted.mean(), figures

    course.run(loss)
    course.averaged()
    return denoiser


def timesteps(walks: ClipWalks) -> tuple[Tensor, Tensor]:
    """Return the timesteps `(batch,)` of first latent frames and of the others, 0 for given frames.

    They are cut to whole numbers as in Wan's sampler.
    """
    whole = (levels_of(walks.step, walks.num_steps) * 1000).floor().clamp_max(999).float()
    return whole * ~walks.is_given, whole


def weights(walks: ClipWalks) -> Tensor:
    """Return the weight of each cell's error `(batch, 1, frames, rows, columns)`, 1 in the mean.

    Cells that an object is in at any time count more than the flat ground around them. The error of a
    velocity times its level is that of the finished clip: every step counts by the clip it leads to.
    """
    things = walks.latents.things[walks.index].float()[:, None, None]
    cells = things.repeat_interleave(2, dim=3).repeat_interleave(2, dim=4)
    weight = (1 + _THING_WEIGHT * cells) * walks.level.square()[:, None, None, None, None] * walks.is_learned
    return weight / weight.mean()


def _figures(squares: Tensor, walks: ClipWalks) -> dict[str, float]:
    """Return the errors of the finished clip, predicted from pure noise and from the last of four steps."""
    of_clip = (squares * walks.is_learned).mean((1, 2, 3, 4)) * walks.level.square()
    is_first, is_last = walks.step == 0, (walks.num_steps == 4) & (walks.step == 3)
    marks = {"first": is_first, "last": is_last}
    return {name: float(of_clip[mark].mean()) for name, mark in marks.items() if mark.any()}


def _optimizers(denoiser: WanTransformer3DModel) -> list[torch.optim.Optimizer]:
    """Return Muon for the blocks' matrices and AdamW for the rest (Jordan et al. 2024)."""
    matrices = [value for value in denoiser.blocks.parameters() if value.ndim == 2]
    taken = {id(value) for value in matrices}
    rest = [value for value in denoiser.parameters() if id(value) not in taken]
    return [
        torch.optim.Muon(matrices, lr=3e-3, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=1e-3, betas=(0.9, 0.95), weight_decay=1e-4),
    ]
