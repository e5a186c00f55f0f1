"""The DiT: learns the straight way from noise to the picture that it stands for."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from diffusers import FluxTransformer2DModel
from torch import Tensor, nn
from torch.func import functional_call

from curriculum import Phase, phase_at
from denoiser import figures_of, initialize, optimizers_of, positions, token_weights
from emoji_text import WIDTH
from emoji_tokenizers import NUM_TOKENS
from emoji_walks import Batch, EmojiWalks, Studio
from loop import Course
from pictures import draw_picture

NAME = "emoji_denoiser"
NUM_SINGLE_BLOCKS = 5
_BATCH_TOKENS = 32 * (36 + NUM_TOKENS)  # 32 pictures of 96 × 96
_THING_WEIGHT = 7.0  # more than shapes need: things have details
_CHECK_EVERY, _NUM_CHECKED = 250, 64

Predict = Callable[[Tensor, Tensor, Batch, tuple[int, int]], Tensor]
"""Of noisy pictures, their levels, what belongs to them and their size: velocities."""


def build() -> FluxTransformer2DModel:
    """Return a new DiT."""
    torch.manual_seed(3)
    denoiser = FluxTransformer2DModel(
        in_channels=64,
        num_layers=1,
        num_single_layers=NUM_SINGLE_BLOCKS,
        attention_head_dim=32,
        num_attention_heads=6,
        joint_attention_dim=WIDTH,
        pooled_projection_dim=WIDTH,
        axes_dims_rope=(8, 12, 12),
        guidance_embeds=False,
    )
    initialize(denoiser)
    if not torch.cuda.is_available():
        denoiser.set_attention_backend("_native_math")  # the fused kernel's backward is slow on CPUs
    return denoiser


def train(folder: Path, num_steps: int, studio: Studio) -> FluxTransformer2DModel:
    """Train for `num_steps` in all, or go on from `folder`; return the DiT with averaged weights."""
    denoiser = build().to(studio.lesson.device)
    modules: dict[str, nn.Module] = {"denoiser": denoiser}
    course = Course(NAME, modules, optimizers_of(denoiser, 1.0), num_steps, warm_then_steady, folder)
    num_things = len(studio.lesson.things)
    predict, walks = predictor(denoiser), dict[tuple[int, int], EmojiWalks]()

    def loss(step: int, chance: random.Random) -> tuple[Tensor, dict[str, float]]:
        phase = phase_at(step, num_things)
        if step % _CHECK_EVERY == 0:
            tell_validation(step, course, denoiser, studio, phase)
        size = chance.choice(phase.sizes)
        walk = walks.setdefault(size, EmojiWalks(studio, size, count_of(size)))
        walk.begin(phase.drawn, chance)
        return step_of(walk, predict)

    course.run(loss)
    course.averaged()
    return denoiser


def step_of(walk: EmojiWalks, predict: Predict) -> tuple[Tensor, dict[str, float]]:
    """Return the loss of pictures on their way, with figures to show, and move the pictures one step on."""
    velocity = predict(walk.noisy, walk.level, walk.batch, walk.size)
    squares = (velocity - walk.velocity).square().mean(2)
    weighted = token_weights(walk.batch.things, walk.level, _THING_WEIGHT) * squares
    figures = figures_of(squares.detach().mean(1), walk.level)
    walk.advance(velocity.detach())
    return weighted.mean(), figures


def warm_then_steady(done: float) -> float:
    """A short rise, a long plateau, and down to nothing over the last fifth."""
    return min(done / 0.002 + 0.1, 1.0, (1 - done) / 0.2)


def count_of(size: tuple[int, int]) -> int:
    """Return how many pictures of a size are learned at once."""
    return max(4, _BATCH_TOKENS // (size[0] * size[1] // 256 + NUM_TOKENS))


def predictor(denoiser: FluxTransformer2DModel, weights: dict[str, Tensor] | None = None) -> Predict:
    """Return the DiT as a function, with its own or with other weights."""

    def predict(noisy: Tensor, level: Tensor, batch: Batch, size: tuple[int, int]) -> Tensor:
        device = noisy.device
        inputs: dict[str, Any] = {
            "hidden_states": noisy,
            "encoder_hidden_states": batch.tokens,
            "pooled_projections": batch.pooled,
            "timestep": level,
            "img_ids": positions(size[1] // 8, size[0] // 8).to(device),
            "txt_ids": torch.zeros(NUM_TOKENS, 3, device=device),
            "return_dict": False,
        }
        with torch.autocast(device.type, torch.bfloat16):
            found = denoiser(**inputs) if weights is None else functional_call(denoiser, weights, (), inputs)
        velocity: Tensor = found[0].float()
        return velocity

    return predict


@torch.no_grad()
def tell_validation(
    step: int, course: Course, denoiser: FluxTransformer2DModel, studio: Studio, phase: Phase
) -> None:
    """Print the averaged weights' error on pictures that are never trained on, of the finished picture.

    From pure noise and from half of it; 1 is knowing nothing. Those of things count as in training.
    """
    chance, size = random.Random("validation"), phase.sizes[0]
    pictures = [draw_picture(chance, phase.drawn, held_out=True) for _ in range(_NUM_CHECKED)]
    torch.manual_seed(0)
    batch = studio.make(pictures, size, chance)
    torch.manual_seed(step)
    predict, errors = predictor(denoiser, course.average_of("denoiser")), []
    for share in (1.0, 0.5):
        level = torch.full((_NUM_CHECKED,), share, device=batch.clean.device)
        noisy = (1 - share) * batch.clean + share * batch.noise
        error = (noisy - share * predict(noisy, level, batch, size) - batch.clean).square().mean(2)
        errors.append(float((error * token_weights(batch.things, torch.ones_like(level))).mean()))
    shown = f"validation {errors[0]:.4f} from noise, {errors[1]:.4f} from halfway"
    print(f"{course.name} {step} {shown}, of {phase.drawn.num_things} things", flush=True)
