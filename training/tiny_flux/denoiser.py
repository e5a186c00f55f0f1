"""The DiT: learns, with the text encoders, the straight way from noise to the picture that it stands for."""

import random
from collections.abc import Callable
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

_BATCH = 32
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
    folder: Path, num_steps: int, latents: Latents, encoders: TextEncoders, is_compiled: bool = True
) -> FluxTransformer2DModel:
    denoiser, tokenize = build(), Tokenizers()
    modules = {"denoiser": denoiser} | encoders.modules
    course = Course("denoiser", modules, _optimizers(denoiser, encoders), num_steps, warm_then_linear, folder)
    predict: Callable[..., Any] = torch.compile(denoiser.forward) if is_compiled else denoiser.forward

    def loss(_step: int, chance: random.Random) -> tuple[Tensor, dict[str, float]]:
        chosen = torch.randint(len(latents.means), (_BATCH,))
        target = latents.scaled(chosen)
        noise = noise_with(latents.traits[chosen], *target.shape[1:])
        level = _levels(_BATCH)
        at = level[:, None, None]
        clean, noise = pack(target), pack(noise)
        captions = [caption(latents.scene(index), chance) for index in chosen.tolist()]
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
        squares = (velocity.float() - (noise - clean)).square().mean((1, 2))
        first = squares[level == 1.0].mean() if (level == 1.0).any() else squares.mean()
        return squares.mean(), {"first": float(first.detach())}

    course.run(loss)
    course.averaged()
    return denoiser


def _levels(count: int) -> Tensor:
    """Noise levels in 0…1, rounded as the pipeline's bf16 rounds them."""
    steps = torch.tensor(_LEVELS)[torch.randint(len(_LEVELS), (count,))]
    level = torch.where(torch.rand(count) < 0.6, steps, torch.rand(count).clamp(min=0.02))
    return level.bfloat16().float()


def _optimizers(denoiser: FluxTransformer2DModel, encoders: TextEncoders) -> list[torch.optim.Optimizer]:
    """Muon for the blocks' matrices, AdamW for the rest (Jordan et al. 2024)."""
    blocks = [*denoiser.transformer_blocks.parameters(), *denoiser.single_transformer_blocks.parameters()]
    matrices = [value for value in blocks if value.ndim == 2]
    taken = {id(value) for value in matrices}
    rest = [
        value
        for module in (denoiser, encoders.clip, encoders.t5)
        for value in module.parameters()
        if id(value) not in taken
    ]
    return [
        torch.optim.Muon(matrices, lr=3e-3, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=1e-3, betas=(0.9, 0.95), weight_decay=1e-4),
    ]
