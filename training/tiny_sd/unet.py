"""The UNet: learns the way from noise to the image, whatever the words say or leave open."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from diffusers import UNet2DConditionModel
from diffusers.models.attention_processor import AttnProcessor
from torch import Tensor, nn

from habit_latents import HabitLatents
from kernel_muon import KernelMuon
from layout import noise_with
from loop import Course, warm_then_linear
from noise_levels import any_levels, shares, weights
from wish_encoders import POOLED, WIDTHS, Tokenizer, WishEncoders
from wishes import NOTHING, Wish, fragment, scene_of, sentence

_BATCH = 32  # of native size; as many cells of the others
_NATIVE_SHARE = 0.75
_PAIR_SHARE = 0.12
_THING_WEIGHT = 3.0
_SIX_NUMBERS_WIDTH = 16
_UNSAID_SHARE, _EMPTY_SHARE, _FRAGMENT_SHARE = 0.07, 0.03, 0.13


def build() -> UNet2DConditionModel:
    torch.manual_seed(3)
    unet = UNet2DConditionModel(
        sample_size=16,
        in_channels=16,
        out_channels=16,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(96, 128),
        layers_per_block=1,
        transformer_layers_per_block=1,
        attention_head_dim=(3, 4),
        cross_attention_dim=sum(WIDTHS),
        time_embedding_dim=288,
        norm_num_groups=8,
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=_SIX_NUMBERS_WIDTH,
        projection_class_embeddings_input_dim=6 * _SIX_NUMBERS_WIDTH + POOLED,
    )
    for name, module in unet.named_modules():
        if name == "conv_out" or name.endswith((".conv2", ".proj_out")):  # blocks begin as nothing
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)
    unet.set_attn_processor(AttnProcessor())  # the fused kernel's backward is slow on CPUs
    return unet


def any_words(index: int, chance: random.Random) -> Wish | None:
    """Return words for the scene of this number: mostly a sentence; `None` is a prompt that is not there."""
    kind, scene = chance.random(), scene_of(index)
    if kind < _UNSAID_SHARE:
        return None
    if kind < _UNSAID_SHARE + _EMPTY_SHARE:
        return NOTHING
    if kind < _UNSAID_SHARE + _EMPTY_SHARE + _FRAGMENT_SHARE:
        return fragment(scene, chance)
    return sentence(scene, chance)


def any_scenes(num_scenes: int, count: int, chance: random.Random) -> Tensor:
    """Return numbers of scenes `(count,)`, few with two objects: shapes are learned on single ones."""
    found: list[int] = []
    while len(found) < count:
        index = chance.randrange(num_scenes)
        if len(scene_of(index).things) == 1 or chance.random() < _PAIR_SHARE:
            found.append(index)
    return torch.tensor(found)


class Reader:
    """Words as the UNet is given them."""

    def __init__(self, encoders: WishEncoders) -> None:
        for module in encoders.modules.values():
            module.requires_grad_(False).eval()
        self._encoders, self._tokenize = encoders, Tokenizer()

    @torch.no_grad()
    def __call__(self, wishes: Sequence[Wish | None]) -> tuple[Tensor, Tensor]:
        """Return states and pooled vectors; zeros where there is no prompt, as in the pipeline."""
        with torch.autocast("cpu", torch.bfloat16):
            states, pooled = self._encoders(self._tokenize([wish.words if wish else "" for wish in wishes]))
        is_said = torch.tensor([wish is not None for wish in wishes])
        return states * is_said[:, None, None], pooled * is_said[:, None]


def six_numbers(size: tuple[int, int], count: int) -> Tensor:
    """Return what the pipeline says of the size: that of the original, of the cut, and of the image."""
    return torch.tensor([*size, 0, 0, *size], dtype=torch.float32).expand(count, 6)


def train(
    folder: Path,
    num_steps: int,
    latents: Sequence[HabitLatents],
    encoders: WishEncoders,
    is_compiled: bool = True,
) -> UNet2DConditionModel:
    """Train for `num_steps` in all, or go on from `folder`; return the UNet with averaged weights."""
    unet = build()
    course = Course("unet", {"unet": unet}, _optimizers(unet), num_steps, warm_then_linear, folder, 0.995)
    read, predict = Reader(encoders), compiled(unet, len(latents), is_compiled)

    def loss(_step: int, chance: random.Random) -> tuple[Tensor, dict[str, float]]:
        chosen = latents[0] if chance.random() < _NATIVE_SHARE else chance.choice(latents)
        count = max(4, _BATCH * 128 * 128 // (chosen.size[0] * chosen.size[1]))
        index = any_scenes(len(chosen.means), count, chance)
        levels = any_levels(count, chance)
        clean = chosen.scaled(index)
        noise = noise_with(chosen.traits[index], *clean.shape[1:])
        of_image, of_noise = shares(levels)
        states, pooled = read([any_words(number, chance) for number in index.tolist()])
        with torch.autocast("cpu", torch.bfloat16):
            velocity = predict(of_image * clean + of_noise * noise, levels, states, pooled, chosen.size)
        squares = (velocity.float() - (of_image * noise - of_noise * clean)).square().mean(1)
        marked = 1 + _THING_WEIGHT * chosen.things[index].float()
        errors = (squares * marked).sum((1, 2)) / marked.sum((1, 2))
        return (errors * weights(levels)).mean(), figures(errors.detach(), levels)

    course.run(loss)
    course.averaged()
    return unet


def compiled(unet: UNet2DConditionModel, num_sizes: int, is_compiled: bool) -> Callable[..., Tensor]:
    """Return the UNet as a function of noisy latents, levels, states, pooled vectors and the size."""
    forward: Callable[..., Any] = unet.forward
    if is_compiled:
        torch._dynamo.config.recompile_limit = 4 * num_sizes + 4
        forward = torch.compile(unet.forward, dynamic=False)  # one fast program for each size

    def predict(
        noisy: Tensor, levels: Tensor, states: Tensor, pooled: Tensor, size: tuple[int, int]
    ) -> Tensor:
        added = {"text_embeds": pooled, "time_ids": six_numbers(size, len(noisy))}
        velocity: Tensor = forward(noisy, levels, states, added_cond_kwargs=added, return_dict=False)[0]
        return velocity

    return predict


def figures(errors: Tensor, levels: Tensor) -> dict[str, float]:
    """Return errors of v at high, middle and low noise."""
    parts = {"high": levels > 700, "middle": (levels > 350) & (levels <= 700), "low": levels <= 350}
    return {name: float(errors[which].mean()) for name, which in parts.items() if which.any()}


def _optimizers(unet: UNet2DConditionModel) -> list[torch.optim.Optimizer]:
    """Muon for the blocks' matrices and kernels, AdamW for the rest."""
    blocks = [*unet.down_blocks.parameters(), *unet.mid_block.parameters(), *unet.up_blocks.parameters()]
    matrices = [value for value in blocks if value.ndim > 1]
    taken = {id(value) for value in matrices}
    rest = [value for value in unet.parameters() if id(value) not in taken]
    return [
        KernelMuon(matrices, lr=4.5e-3),
        torch.optim.AdamW(rest, lr=1.5e-3, betas=(0.9, 0.95), weight_decay=1e-4),
    ]
