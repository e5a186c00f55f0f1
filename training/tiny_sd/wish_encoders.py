"""The two text encoders, taught first what words say, and what they leave open: words before images.

Both learn to name the parts of a wish, from what the pipeline takes of them: the states before the last layer
of each, and the projected vector of the second. The heads that name them are thrown away.
"""

import random
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoTokenizer, CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from diffuserve.models.folders.pretrained import load_processor
from loop import Course, warm_then_cosine
from scenes import COLORS, PLACES, RELATIONS, SHAPES, SIZES, draw_scene
from text_encoders import BUNDLED
from wishes import NOTHING, OPEN, Wish, fragment, sentence, with_habits

NUM_TOKENS = 77
WIDTHS = (96, 128)
POOLED = 128
_BATCH = 96
_SHORT = 32  # tokens that hold most wishes; longer rows only teach the places after them
_LONG_SHARE = 0.15
_THING = ((None, *SHAPES), (None, *COLORS), (None, *SIZES), (None, *PLACES))
_WHOLE = ((None, OPEN, *COLORS), (None, OPEN, *RELATIONS))


@dataclass
class WishEncoders:
    """Both encoders, which read the same tokens."""

    first: CLIPTextModel
    second: CLIPTextModelWithProjection

    def __call__(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return states `(batch, tokens, 224)` and the pooled `(batch, 128)`, as SDXL's pipeline does."""
        first = self.first(ids, output_hidden_states=True)
        second = self.second(ids, output_hidden_states=True)
        return torch.cat([first.hidden_states[-2], second.hidden_states[-2]], dim=-1), second.text_embeds

    @property
    def modules(self) -> dict[str, nn.Module]:
        return {"first": self.first, "second": self.second}


class Tokenizer:
    """Words as ids `(batch, length)`, padded."""

    def __init__(self) -> None:
        self._clip = load_processor(AutoTokenizer, BUNDLED / "tokenizer")

    def __call__(self, words: list[str], length: int = NUM_TOKENS) -> Tensor:
        ids: Tensor = self._clip(
            words, padding="max_length", max_length=length, truncation=True, return_tensors="pt"
        ).input_ids
        return ids


def build() -> WishEncoders:
    torch.manual_seed(1)
    first, second = (
        CLIPTextConfig(
            vocab_size=915,
            hidden_size=width,
            intermediate_size=2 * width,
            projection_dim=POOLED,
            num_hidden_layers=3,
            num_attention_heads=width // 32,
            max_position_embeddings=NUM_TOKENS,
            hidden_act="quick_gelu",
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=1,
        )
        for width in WIDTHS
    )
    return WishEncoders(CLIPTextModel(first), CLIPTextModelWithProjection(second))


def train(folder: Path, num_steps: int) -> WishEncoders:
    """Train both for `num_steps` in all, or go on from `folder`; return them with averaged weights."""
    encoders, tokenize = build(), Tokenizer()
    heads = nn.ModuleDict({"states": _Head(sum(WIDTHS)), "pooled": _Head(POOLED)})
    modules = encoders.modules | {"heads": heads}
    parameters = [value for module in modules.values() for value in module.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1.5e-3, betas=(0.9, 0.98), weight_decay=1e-3)
    course = Course("words", modules, [optimizer], num_steps, warm_then_cosine, folder)

    def loss(_step: int, chance: random.Random) -> tuple[Tensor, dict[str, float]]:
        wishes = [any_wish(chance) for _ in range(_BATCH)]
        length = NUM_TOKENS if chance.random() < _LONG_SHARE else _SHORT
        with torch.autocast("cpu", torch.bfloat16):
            states, pooled = encoders(tokenize([wish.words for wish in wishes], length))
        labels = torch.tensor([labels_of(wish) for wish in wishes])
        from_states, states_right = heads["states"](states.float().mean(1), labels)
        from_pooled, pooled_right = heads["pooled"](pooled.float(), labels)
        return from_states + from_pooled, {"states": states_right, "pooled": pooled_right}

    course.run(loss)
    course.averaged()
    return encoders


def any_wish(chance: random.Random) -> Wish:
    scene = with_habits(draw_scene(chance), chance)
    kind = chance.random()
    if kind < 0.02:
        return NOTHING
    return fragment(scene, chance) if kind < 0.2 else sentence(scene, chance)


def labels_of(wish: Wish) -> list[int]:
    """Return each head's target class, or -100 where it has none."""
    labels = []
    for number in range(2):
        if number < len(wish.things):
            thing = wish.in_order[number]
            said = (thing.shape, thing.color, thing.size, thing.place)
            labels += [choices.index(word) for choices, word in zip(_THING, said, strict=True)]
        else:
            labels += [-100] * len(_THING)
    whole = (wish.background, wish.relation)
    return labels + [choices.index(word) for choices, word in zip(_WHOLE, whole, strict=True)]


class _Head(nn.Module):
    """Names every part of a wish from a single vector."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.sizes = [len(choices) for choices in (*_THING, *_THING, *_WHOLE)]
        self.name = nn.Linear(width, sum(self.sizes))

    def forward(self, vector: Tensor, labels: Tensor) -> tuple[Tensor, float]:
        """Return the loss, and the share of wishes of which every part is named right."""
        parts = self.name(vector).split(self.sizes, dim=1)
        losses = [functional.cross_entropy(part, label) for part, label in zip(parts, labels.T, strict=True)]
        named = torch.stack([part.argmax(1) for part in parts], dim=1)
        is_right = ((named == labels) | (labels < 0)).all(1)
        return torch.stack(losses).sum(), float(is_right.float().mean())
