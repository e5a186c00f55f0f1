"""The DiT: learns the straight way from noise to the image that it stands for."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from diffusers import FluxTransformer2DModel
from torch import Tensor, nn

from latents import Latents
from loop import Course, warm_then_linear
from scenes import caption
from text_encoders import NUM_TOKENS, TextEncoders, Tokenizers
from walks import Walks

_BATCH = 32
_NATIVE_TOKENS = 64 + NUM_TOKENS
_NATIVE_SHARE = 0.7
_SECOND_RATE = 0.6
_THING_WEIGHT = 3.0


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
    initialize(denoiser)
    denoiser.set_attention_backend("_native_math")  # the fused kernel's backward took a third of a step
    return denoiser


def initialize(denoiser: FluxTransformer2DModel) -> None:
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


def positions(height: int, width: int) -> Tensor:
    """Return position ids `(tokens, 3)` for the tokens of `height × width` latent cells."""
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
        optimizers = optimizers_of(denoiser, rate)
        course = Course(name, modules, optimizers, steps, warm_then_linear, folder)
        learn(course, sizes, denoiser, encoders, is_compiled)
    return denoiser


def learn(
    course: Course,
    latents: Sequence[Latents],
    denoiser: FluxTransformer2DModel,
    encoders: TextEncoders,
    is_compiled: bool,
    batch: int = _BATCH,
) -> None:
    """Run a course on half-drawn images, of the native size more often; leave the average in place.

    A `batch` is so many of native size, and as many tokens of the others.
    """
    tokenize = Tokenizers()
    predict: Callable[..., Any] = denoiser.forward
    if is_compiled:
        torch._dynamo.config.recompile_limit = 2 * len(latents) + 2
        predict = torch.compile(denoiser.forward, dynamic=False)  # one fast program for each size
    walks = [Walks(of_size, _count(of_size, batch)) for of_size in latents]

    def loss(_step: int, chance: random.Random) -> tuple[Tensor, dict[str, float]]:
        walk = walks[0] if chance.random() < _NATIVE_SHARE else chance.choice(walks)
        captions = [caption(walk.latents.scene(index), chance) for index in walk.index.tolist()]
        with torch.autocast("cpu", torch.bfloat16):
            pooled, tokens = encoders(*tokenize(captions))
            (velocity,) = predict(
                hidden_states=walk.noisy,
                encoder_hidden_states=tokens,
                pooled_projections=pooled,
                timestep=walk.level,
                img_ids=positions(*walk.latents.means.shape[2:]),
                txt_ids=torch.zeros(NUM_TOKENS, 3),
                return_dict=False,
            )
        squares = (velocity.float() - walk.velocity).square().mean(2)
        weighted = token_weights(walk.latents.things[walk.index], walk.level) * squares
        figures = figures_of(squares.detach().mean(1), walk.level)
        walk.advance(velocity.detach().float())
        return weighted.mean(), figures

    course.run(loss)
    course.averaged()


def _count(latents: Latents, batch: int) -> int:
    """Images of a size that are learned at once."""
    return max(4, batch * _NATIVE_TOKENS // (latents.things.shape[1] + NUM_TOKENS))


def figures_of(squares: Tensor, level: Tensor) -> dict[str, float]:
    """Errors of the finished image, said from pure noise and from the last of four steps."""
    of_image = squares * level.square()
    levels = {"first": 1.0, "last": 0.25}
    return {name: float(of_image[level == at].mean()) for name, at in levels.items() if (level == at).any()}


def token_weights(things: Tensor, level: Tensor, thing_weight: float = _THING_WEIGHT) -> Tensor:
    """Return the weights `(batch, tokens)` of the tokens' errors; their mean is 1.

    Objects count more than the flat ground around them, of which there is more. The error of a velocity
    times its level is that of the finished image: so every step counts by the image that it leads to.
    """
    weights = (1 + thing_weight * things.float()) * level.square()[:, None]
    return weights / weights.mean()


def optimizers_of(denoiser: FluxTransformer2DModel, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the blocks' matrices, AdamW for the rest (Jordan et al. 2024)."""
    blocks = [*denoiser.transformer_blocks.parameters(), *denoiser.single_transformer_blocks.parameters()]
    matrices = [value for value in blocks if value.ndim == 2]
    taken = {id(value) for value in matrices}
    rest = [value for value in denoiser.parameters() if id(value) not in taken]
    return [
        torch.optim.Muon(matrices, lr=3e-3 * rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=1e-3 * rate, betas=(0.9, 0.95), weight_decay=1e-4),
    ]
