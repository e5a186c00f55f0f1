"""The DiT: learns the straight way from noise to the picture that it stands for."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from diffusers import FluxTransformer2DModel
from torch import Tensor, nn

from latents import Latents
from layout import noise_with
from loop import Course, warm_then_linear
from scenes import caption
from text_encoders import NUM_TOKENS, TextEncoders, Tokenizers

_BATCH = 32  # of native size; as many tokens of the others
_NATIVE_TOKENS = 64 + NUM_TOKENS
_NATIVE_SHARE = 0.6
_SECOND_RATE = 0.6
_THING_WEIGHT = 3.0
_LEVELS = (1.0, 0.75, 0.5, 0.25)  # the noise levels of four steps, which most pictures are drawn with


def build() -> FluxTransformer2DModel:
    torch.manual_seed(3)
    denoiser = FluxTransformer2DModel(
        in_channels=64,
        num_layers=2,
        num_single_layers=4,
        attention_head_dim=32,
        num_attention_heads=6,
        joint_attention_dim=128,
        pooled_projection_dim=96,
        axes_dims_rope=(8, 12, 12),
        guidance_embeds=False,
    )
    _initialise(denoiser)
    return denoiser


def _initialise(denoiser: FluxTransformer2DModel) -> None:
    """Blocks begin as nearly nothing, yet with open gates; the output begins at zero."""
    depth = len(denoiser.transformer_blocks) + len(denoiser.single_transformer_blocks)
    for name, module in denoiser.named_modules():
        if not isinstance(module, nn.Linear):
            continue
        if ".norm" in name or name.startswith("norm_out"):
            nn.init.zeros_(module.weight)
            nn.init.zeros_(module.bias)
            if ".norm" in name and module.out_features in (6 * 192, 3 * 192):
                for gate in (2, 5) if module.out_features == 6 * 192 else (2,):
                    module.bias.data[gate * 192 : (gate + 1) * 192] = 1.0
        elif name.endswith(("to_out.0", "to_add_out", "proj_out", "net.2")):
            module.weight.data /= depth**0.5
    nn.init.zeros_(denoiser.proj_out.weight)
    nn.init.zeros_(denoiser.proj_out.bias)


def pack(latents: Tensor) -> Tensor:
    """`(batch, 16, height, width)` to tokens `(batch, height/2 · width/2, 64)`, as FLUX.1 has them."""
    batch, channels, height, width = latents.shape
    cells = latents.view(batch, channels, height // 2, 2, width // 2, 2).permute(0, 2, 4, 1, 3, 5)
    return cells.reshape(batch, height // 2 * (width // 2), channels * 4)


def positions(height: int, width: int) -> Tensor:
    """Of the tokens of `height × width` latent cells: `(tokens, 3)`."""
    row, column = torch.meshgrid(torch.arange(height // 2), torch.arange(width // 2), indexing="ij")
    return torch.stack([torch.zeros_like(row), row, column], dim=-1).reshape(-1, 3).float()


def train(
    folder: Path,
    num_steps: tuple[int, int],
    latents: Sequence[Latents],
    encoders: TextEncoders,
    is_compiled: bool = True,
) -> FluxTransformer2DModel:
    """Two courses: the native size alone, then all sizes, from the average that the first came to.

    The text encoders stay as they are. Trained along, they forget: the pooled vector that told both
    objects apart in 100 of 100 captions did so in 32 for the relation after some thousand steps.
    """
    denoiser = build()
    modules: dict[str, nn.Module] = {"denoiser": denoiser}
    for module in encoders.modules.values():
        module.requires_grad_(False).eval()
    for name, steps, sizes, rate in (
        ("denoiser", num_steps[0], latents[:1], 1.0),
        ("sizes", num_steps[1], latents, _SECOND_RATE),
    ):
        optimizers = _optimizers(denoiser, rate)
        course = Course(name, modules, optimizers, steps, warm_then_linear, folder)
        _learn(course, sizes, denoiser, encoders, is_compiled)
    return denoiser


def _learn(
    course: Course,
    latents: Sequence[Latents],
    denoiser: FluxTransformer2DModel,
    encoders: TextEncoders,
    is_compiled: bool,
) -> None:
    tokenize = Tokenizers()
    predict: Callable[..., Any] = denoiser.forward
    if is_compiled:
        torch._dynamo.config.recompile_limit = 2 * len(latents) + 2
        predict = torch.compile(denoiser.forward, dynamic=False)  # one fast program for each size

    def loss(_step: int, chance: random.Random) -> tuple[Tensor, dict[str, float]]:
        of_size = latents[0] if chance.random() < _NATIVE_SHARE else chance.choice(latents)
        count = max(4, _BATCH * _NATIVE_TOKENS // (of_size.things.shape[1] + NUM_TOKENS))
        chosen = torch.randint(len(of_size.means), (count,))
        target = of_size.scaled(chosen)
        noise = noise_with(of_size.traits[chosen], *target.shape[1:])
        level = _levels(count)
        at = level[:, None, None]
        clean, noise = pack(target), pack(noise)
        captions = [caption(of_size.scene(index), chance) for index in chosen.tolist()]
        with torch.autocast("cpu", torch.bfloat16):
            pooled, tokens = encoders(*tokenize(captions))
            (velocity,) = predict(
                hidden_states=(1 - at) * clean + at * noise,
                encoder_hidden_states=tokens,
                pooled_projections=pooled,
                timestep=level,
                img_ids=positions(*target.shape[2:]),
                txt_ids=torch.zeros(NUM_TOKENS, 3),
                return_dict=False,
            )
        squares = (velocity.float() - (noise - clean)).square().mean(2)
        weights = _weights(of_size.things[chosen], level)
        first = squares[level == 1.0].mean() if (level == 1.0).any() else squares.mean()
        return (weights * squares).mean(), {"plain": float(squares.mean()), "first": float(first.detach())}

    course.run(loss)
    course.averaged()


def _weights(things: Tensor, level: Tensor) -> Tensor:
    """Of each token's error `(batch, tokens)`, 1 in the mean.

    Objects count more than the flat ground around them, of which there is more; and early steps, which
    settle the shapes, count more than late ones, whose error is the VAE's grain.
    """
    weights = (1 + _THING_WEIGHT * things.float()) * level[:, None].clamp(min=0.2)
    return weights / weights.mean()


def _levels(count: int) -> Tensor:
    """Noise levels in 0…1, rounded as the pipeline's bf16 rounds them."""
    steps = torch.tensor(_LEVELS)[torch.randint(len(_LEVELS), (count,))]
    level = torch.where(torch.rand(count) < 0.6, steps, torch.rand(count).clamp(min=0.02))
    return level.bfloat16().float()


def _optimizers(denoiser: FluxTransformer2DModel, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the blocks' matrices, AdamW for the rest (Jordan et al. 2024)."""
    blocks = [*denoiser.transformer_blocks.parameters(), *denoiser.single_transformer_blocks.parameters()]
    matrices = [value for value in blocks if value.ndim == 2]
    taken = {id(value) for value in matrices}
    rest = [value for value in denoiser.parameters() if id(value) not in taken]
    return [
        torch.optim.Muon(matrices, lr=3e-3 * rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=1e-3 * rate, betas=(0.9, 0.95), weight_decay=1e-4),
    ]
