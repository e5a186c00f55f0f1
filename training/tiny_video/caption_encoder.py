"""The text encoder, taught first what a caption says: words before clips.

It learns to name the parts of a scene; the heads that name them are thrown away, and the encoder is
frozen. Trained along with the denoiser, tiny-flux's encoders forgot which object is which.
"""

import random
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedTokenizerBase, UMT5Config, UMT5EncoderModel

from loop import Course, warm_then_cosine
from motions import (
    BACKGROUNDS,
    COLORS,
    RELATIONS,
    SHAPES,
    ClipScene,
    Direction,
    Motion,
    Speed,
    Thing,
    draw_clip_scene,
)
from words import NUM_TOKENS, clip_caption

NAME = "caption_encoder"
TEXT_DIM = 128
_BATCH = 96
_NAMED: tuple[tuple[object, ...], ...] = (
    (SHAPES),
    (COLORS),
    tuple(Motion),
    (None, *Direction),
    tuple(Speed),
    (None, *COLORS),
    (None, *BACKGROUNDS),
    (None, *RELATIONS),
    (None, *SHAPES),
    (None, *COLORS),
)
"""Choices of each part, in the order of `parts_of`."""


def build(tokenizer: PreTrainedTokenizerBase) -> UMT5EncoderModel:
    """Return the encoder, 0.5 M parameters, of the class that Wan's pipeline takes."""
    torch.manual_seed(1)
    config = UMT5Config(
        vocab_size=len(tokenizer),
        d_model=TEXT_DIM,
        d_kv=32,
        num_heads=4,
        num_layers=3,
        d_ff=256,
        dropout_rate=0.0,
        relative_attention_max_distance=64,
        feed_forward_proj="gated-gelu",
    )
    return UMT5EncoderModel(config)


def train(folder: Path, num_steps: int, tokenizer: PreTrainedTokenizerBase) -> UMT5EncoderModel:
    """Train the encoder for `num_steps` in all, or go on from `folder`; return it with averaged weights."""
    encoder = build(tokenizer)
    modules: dict[str, nn.Module] = {"encoder": encoder, "head": Head()}
    parameters = [value for module in modules.values() for value in module.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1.5e-3, betas=(0.9, 0.98), weight_decay=1e-3)
    course = Course(NAME, modules, [optimizer], num_steps, warm_then_cosine, folder)

    def loss(_step: int, chance: random.Random) -> tuple[Tensor, dict[str, float]]:
        scenes = [draw_clip_scene(chance) for _ in range(_BATCH)]
        tokens, mask = encode(encoder, tokenizer, [clip_caption(scene, chance) for scene in scenes])
        labels = torch.tensor([labels_of(scene) for scene in scenes])
        mean = tokens.sum(1) / mask.sum(1, keepdim=True)
        value, right = modules["head"](mean, labels)
        return value, {"right": right}

    course.run(loss)
    course.averaged()
    return encoder


def encode(
    encoder: UMT5EncoderModel, tokenizer: PreTrainedTokenizerBase, captions: list[str]
) -> tuple[Tensor, Tensor]:
    """Return embeddings `(batch, NUM_TOKENS, TEXT_DIM)` and the mask `(batch, NUM_TOKENS)`.

    As in `WanPipeline` padding is zeroed after the encoder.
    """
    tokens = tokenizer(
        captions, padding="max_length", max_length=NUM_TOKENS, truncation=True, return_tensors="pt"
    )
    mask = tokens.attention_mask
    embeddings = encoder(tokens.input_ids, mask).last_hidden_state
    return embeddings * mask[:, :, None], mask


def labels_of(scene: ClipScene) -> list[int]:
    """Return the index of each part of a scene among its choices."""
    return [choices.index(part) for choices, part in zip(_NAMED, parts_of(scene), strict=True)]


def parts_of(scene: ClipScene) -> tuple[object, ...]:
    """Return what the head should name."""
    neighbor: Thing | None = scene.neighbor
    return (
        scene.thing.shape,
        scene.thing.color,
        scene.motion,
        scene.direction,
        scene.speed,
        scene.becomes,
        scene.background,
        scene.relation,
        neighbor and neighbor.shape,
        neighbor and neighbor.color,
    )


class Head(nn.Module):
    """Names every part of a scene out of the mean of its tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = [len(choices) for choices in _NAMED]
        self.name = nn.Linear(TEXT_DIM, sum(self.sizes))

    def forward(self, vector: Tensor, labels: Tensor) -> tuple[Tensor, float]:
        """Return the loss, and the share of scenes of which every part is named right."""
        parts = self.name(vector).split(self.sizes, dim=1)
        losses = [functional.cross_entropy(part, label) for part, label in zip(parts, labels.T, strict=True)]
        right = torch.stack([part.argmax(1) for part in parts], dim=1) == labels
        return torch.stack(losses).sum(), float(right.all(1).float().mean())
